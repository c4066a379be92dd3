#include "drain.h"

#include <cstring>

#include "ring.h"

using spanlite::RecordHead;
using spanlite::RecordType;
using spanlite::Ring;

namespace {

// Where to keep a record of a type the caller has no buffer for: nowhere.
constexpr uint32_t kMaxRecordBytes = 64 * 1024;

bool Sound(const RecordHead& head) {
  if (head.size_bytes < sizeof(RecordHead) || head.size_bytes % spanlite::kRecordAlign != 0 ||
      head.size_bytes > kMaxRecordBytes)
    return false;
  const uint32_t fixed = spanlite_record_bytes(head.type);
  return fixed == 0 || fixed == head.size_bytes;
}

}  // namespace

void* spanlite_ring_open(const char* path) { return Ring::Open(path); }

void spanlite_ring_close(void* ring) { delete static_cast<Ring*>(ring); }

void* spanlite_ring_header(void* ring) { return static_cast<Ring*>(ring)->header(); }

int64_t spanlite_ring_drain(void* handle, uint8_t** buffers, const uint64_t* capacities,
                            uint64_t* used, uint32_t types) {
  auto* ring = static_cast<Ring*>(handle);
  std::memset(used, 0, sizeof(uint64_t) * types);
  int64_t records = 0;
  while (const RecordHead* head = ring->Peek()) {
    if (!Sound(*head)) return -1;
    if (head->type < types && buffers[head->type] != nullptr) {
      uint64_t& at = used[head->type];
      if (at + head->size_bytes > capacities[head->type]) break;
      std::memcpy(buffers[head->type] + at, head, head->size_bytes);
      at += head->size_bytes;
    }
    ring->Consume();
    ++records;
  }
  return records;
}

uint32_t spanlite_record_bytes(uint32_t type) {
  switch (static_cast<RecordType>(type)) {
    case RecordType::kClock: return sizeof(spanlite::ClockRecord);
    case RecordType::kKernel: return sizeof(spanlite::KernelRecord);
    case RecordType::kMemcpy:
    case RecordType::kMemset: return sizeof(spanlite::MemoryRecord);
    case RecordType::kSync: return sizeof(spanlite::SyncRecord);
    case RecordType::kApi: return sizeof(spanlite::ApiRecord);
    case RecordType::kGraph: return sizeof(spanlite::GraphRecord);
    case RecordType::kOverhead: return sizeof(spanlite::OverheadRecord);
    case RecordType::kRange: return sizeof(spanlite::RangeRecord);
    case RecordType::kWindow: return sizeof(spanlite::WindowRecord);
    case RecordType::kStep: return sizeof(spanlite::StepRecord);
    default: return 0;
  }
}
