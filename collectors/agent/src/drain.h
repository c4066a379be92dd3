// What the daemon calls (from Python, through ctypes) to empty a ring.
//
// Records of one type are copied one behind the other into the buffer of that type, so that
// the caller reads each buffer as one array. Strings keep their variable size.
#pragma once

#include <cstdint>

extern "C" {

// Opens a ring file. Null, with errno set, where it is none of this layout.
__attribute__((visibility("default"))) void* spanlite_ring_open(const char* path);
__attribute__((visibility("default"))) void spanlite_ring_close(void* ring);
// The mapped header (ring_layout.h), for control and state.
__attribute__((visibility("default"))) void* spanlite_ring_header(void* ring);
// Copies records until the ring is empty or a buffer is full. `buffers[type]` has room for
// `capacities[type]` bytes; `used[type]` receives what was written. Returns the number of
// records, or -1 where the ring is corrupt (nothing of it can be trusted from there on).
__attribute__((visibility("default"))) int64_t spanlite_ring_drain(
    void* ring, uint8_t** buffers, const uint64_t* capacities, uint64_t* used, uint32_t types);
// Size of a fixed record, 0 for strings and unknown types.
__attribute__((visibility("default"))) uint32_t spanlite_record_bytes(uint32_t type);

}  // extern "C"
