// What the daemon calls (from Python, through ctypes) to empty a ring. One thread a ring.
//
// Records of one type are copied one behind the other into the buffer of that type, so that
// the caller reads each buffer as one array (ring_layout.h has the layouts; each record starts
// with its 8-byte head). Strings keep their variable size: step by `size_bytes` of their heads.
//
//   ring = spanlite_ring_open("/dev/shm/spanlite/123-18f….ring")
//   loop:  n = spanlite_ring_drain(ring, buffers, capacities, used, 16)
//          n < 0: the file is damaged; what earlier calls gave is good, close it and delete it
//          n == 0 and not spanlite_ring_producer_alive(ring):
//              spanlite_ring_skip_torn(ring) == 0: all has been read; close it and delete it
#pragma once

#include <cstdint>

#define SPANLITE_EXPORT extern "C" __attribute__((visibility("default")))

// Opens a ring file. Null, with errno set, where it is none of this layout (EPROTO) or cannot be
// opened.
SPANLITE_EXPORT void* spanlite_ring_open(const char* path);
SPANLITE_EXPORT void spanlite_ring_close(void* ring);
// Copies the header's whole page (ring_layout.h). Returns 0, or -1 where the file was cut short.
SPANLITE_EXPORT int spanlite_ring_read_header(void* ring, uint8_t* page);
// Sets a word of 4 or 8 bytes in the header's page, at a multiple of its size. Returns 0, or -1 where
// that is no place for one or the file was cut short.
SPANLITE_EXPORT int spanlite_ring_write_word(void* ring, uint32_t offset, uint32_t bytes,
                                             uint64_t value);
// Copies records until the ring is empty or a buffer is full. `buffers[type]` has room for
// `capacities[type]` bytes (null: leave that type out); `used[type]` receives what was written.
// Returns the number of records, or -1 where the ring is damaged (nothing of it can be trusted
// from there on).
SPANLITE_EXPORT int64_t spanlite_ring_drain(void* ring, uint8_t** buffers,
                                            const uint64_t* capacities, uint64_t* used,
                                            uint32_t types);
// 1 while the process that made the ring lives, also in another PID namespace; else 0.
SPANLITE_EXPORT int spanlite_ring_producer_alive(void* ring);
// Only for a dead process: steps over one record that was begun and never finished, and counts
// it in the header's `dropped`. Returns the bytes skipped, 0 where the ring is empty or its next
// record is whole, -1 where it is damaged.
SPANLITE_EXPORT int64_t spanlite_ring_skip_torn(void* ring);
// Size of a fixed record, 0 for strings and unknown types.
SPANLITE_EXPORT uint32_t spanlite_record_bytes(uint32_t type);
// Where the header's `control`, `state`, `dropped`, `head` and `tail` begin (fields 0 to 4), the
// layout's version (5), and where the drops lie that a daemon has told (6).
SPANLITE_EXPORT uint32_t spanlite_ring_offset(uint32_t field);
