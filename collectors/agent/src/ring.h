// The producer's side of the ring, and the consumer's.
#pragma once

#include <cstdint>
#include <string>

#include "ring_layout.h"

namespace spanlite {

// Owns a mapping of one ring file. Thread-safe for any number of producers; one consumer.
class Ring {
 public:
  // Makes `path` with room for `capacity_bytes` (rounded up to a power of two).
  // Returns nullptr, with errno set, where the file cannot be made.
  static Ring* Create(const std::string& path, uint64_t capacity_bytes);
  // Maps an existing file; nullptr where it is not a ring of this layout.
  static Ring* Open(const std::string& path);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Room for a record of `size_bytes`, or nullptr (and one more drop) where the ring is full.
  void* Reserve(uint32_t size_bytes);
  // Makes a reserved record visible. `record` starts with a RecordHead.
  static void Commit(void* record, RecordType type, uint32_t size_bytes, uint16_t flags = 0);

  // Copies a record in, whole. False where it was dropped.
  template <typename Record>
  bool Write(Record& record, RecordType type, uint16_t flags = 0) {
    void* room = Reserve(sizeof(Record));
    if (room == nullptr) return false;
    CopyBody(room, &record, sizeof(Record));
    Commit(room, type, sizeof(Record), flags);
    return true;
  }

  // Next committed record, or nullptr. Valid until `Consume`.
  const RecordHead* Peek();
  void Consume();

  void CountDrop(Drop reason, uint64_t records = 1) {
    header_->dropped[static_cast<size_t>(reason)].fetch_add(records, std::memory_order_relaxed);
  }
  Header* header() { return header_; }
  const std::string& path() const { return path_; }

 private:
  Ring(std::string path, Header* header, uint64_t mapped_bytes);
  static void CopyBody(void* room, const void* record, uint32_t size_bytes);

  std::string path_;
  Header* header_;
  uint8_t* data_;
  uint64_t mask_;
  uint64_t mapped_bytes_;
};

}  // namespace spanlite
