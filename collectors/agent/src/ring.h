// The producer's side of the ring.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ring_layout.h"

namespace spanlite {

constexpr uint64_t kMinCapacity = 64 * 1024;
constexpr uint64_t kMaxCapacity = 1ull << 32;

// The first word of a record, as one atomic.
inline std::atomic<uint64_t>* HeadWord(void* record) {
  return reinterpret_cast<std::atomic<uint64_t>*>(record);
}

// Owns a mapping of one ring file and holds a shared lock on the file, by which the daemon
// knows that the process lives. Thread-safe for any number of producers.
class Ring {
 public:
  // Makes `path` with room for `capacity_bytes` (rounded up to a power of two).
  // Returns nullptr, with errno set, where the file cannot be made. `describe` fills in the header
  // before anybody else can see it.
  static Ring* Create(const std::string& path, uint64_t capacity_bytes,
                      const std::function<void(Header*)>& describe = nullptr);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Room for a record of `size_bytes`, or nullptr (and one more drop) where the ring is full.
  void* Reserve(uint32_t size_bytes);
  // Makes a reserved record visible. `record` starts with a RecordHead.
  static void Commit(void* record, RecordType type, uint32_t size_bytes, uint16_t flags = 0);

  // Maps the next MiB of the file, whose pages exist since `Create`, before records come to them:
  // each would cost its writer a fault. A third of a millisecond; false where all is mapped or the
  // kernel cannot. For one thread, that nobody waits for.
  bool MapMore();

  // Copies a record in, whole. False where it was dropped.
  template <typename Record>
  bool Write(const Record& record, RecordType type, uint16_t flags = 0) {
    void* room = Reserve(sizeof(Record));
    if (room == nullptr) return false;
    CopyBody(room, &record, sizeof(Record));
    Commit(room, type, sizeof(Record), flags);
    return true;
  }

  void CountDrop(Drop reason, uint64_t records = 1) {
    header_->dropped[static_cast<size_t>(reason)].fetch_add(records, std::memory_order_relaxed);
  }
  Header* header() { return header_; }
  // In a forked child, which shares the lock: lets go of it, so that it ends with the parent.
  void ReleaseLock();

 private:
  Ring(Header* header, uint64_t mapped_bytes, int file);
  static void CopyBody(void* room, const void* record, uint32_t size_bytes);

  Header* header_;
  uint8_t* data_;
  uint64_t mask_;  // our own: what a stranger writes into the file cannot move us out of it
  uint64_t mapped_bytes_;
  uint64_t mapped_ahead_ = 0;
  int file_;
};

}  // namespace spanlite
