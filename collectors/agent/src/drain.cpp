#include "drain.h"

#include <algorithm>

#include "consumer.h"

using spanlite::Consumer;
using spanlite::Header;

namespace {

constexpr uint32_t kMaxTypes = 64;

Consumer* Of(void* handle) { return static_cast<Consumer*>(handle); }

}  // namespace

void* spanlite_ring_open(const char* path) { return Consumer::Open(path); }

void spanlite_ring_close(void* ring) { delete Of(ring); }

int spanlite_ring_read_header(void* ring, uint8_t* page) {
  return Of(ring)->ReadHeader(page) ? 0 : -1;
}

int spanlite_ring_write_word(void* ring, uint32_t offset, uint32_t bytes, uint64_t value) {
  return Of(ring)->WriteWord(offset, bytes, value) ? 0 : -1;
}

int64_t spanlite_ring_drain(void* ring, uint8_t** buffers, const uint64_t* capacities,
                            uint64_t* used, uint32_t types) {
  Consumer::Output outputs[kMaxTypes];
  types = std::min(types, kMaxTypes);
  for (uint32_t type = 0; type < types; ++type)
    outputs[type] = Consumer::Output{buffers[type], capacities[type], 0};
  const int64_t records = Of(ring)->Drain(outputs, types);
  for (uint32_t type = 0; type < types; ++type) used[type] = outputs[type].used;
  return records;
}

int spanlite_ring_producer_alive(void* ring) { return Of(ring)->ProducerAlive() ? 1 : 0; }

int64_t spanlite_ring_skip_torn(void* ring) { return Of(ring)->SkipTorn(); }

uint32_t spanlite_record_bytes(uint32_t type) { return spanlite::FixedRecordBytes(type); }

uint32_t spanlite_ring_offset(uint32_t field) {
  const size_t offsets[] = {offsetof(Header, control), offsetof(Header, state),
                            offsetof(Header, dropped), offsetof(Header, head),
                            offsetof(Header, tail),    spanlite::kLayoutVersion,
                            spanlite::kToldOffset};
  return field < std::size(offsets) ? static_cast<uint32_t>(offsets[field]) : 0;
}
