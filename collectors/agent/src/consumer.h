// The daemon's side of the ring. It trusts nothing in the file: a corrupt or hostile one ends
// in `kCorrupt`, never in a crash, even where the file is cut short while it is mapped.
#pragma once

#include <cstdint>
#include <string>

#include "ring_layout.h"

namespace spanlite {

// Whether it is a ring's of this layout, as far as the header tells.
bool SoundHeader(const Header& header);
// Size of a record of fixed length, 0 for strings and unknown types.
uint32_t FixedRecordBytes(uint32_t type);

class Consumer {
 public:
  static constexpr int64_t kCorrupt = -1;

  // Maps an existing ring; nullptr, with errno set, where it is none of this layout.
  static Consumer* Open(const std::string& path);
  // Reads through a mapping of this process, which must outlive it: for tests under a thread
  // sanitizer, which follows addresses and not files.
  static Consumer* Over(Header* header);
  ~Consumer();
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  // Where records of one type are to go. A null `buffer`: they are read and left out.
  struct Output {
    uint8_t* buffer = nullptr;
    uint64_t capacity = 0;
    uint64_t used = 0;
  };

  // Copies records until the ring is empty or an output is full. Returns how many, or kCorrupt.
  int64_t Drain(Output* outputs, uint32_t types);
  // For a process that is dead: steps over one record that it never finished, or over room that
  // it never began, and counts a kTorn. Returns the bytes skipped, 0 where there is nothing to
  // skip, or kCorrupt.
  int64_t SkipTorn();
  // Whether the process that made the ring still holds it (in any PID namespace).
  bool ProducerAlive() const;

  // Copies the header's page. False where the file was cut short.
  bool ReadHeader(uint8_t* page);
  // Sets a word of 4 or 8 bytes in it. False where it cannot lie there, or the file was cut short.
  bool WriteWord(uint32_t offset, uint32_t bytes, uint64_t value);

 private:
  Consumer(Header* header, uint64_t mapped_bytes, int file);
  // The record at `tail_`: false where there is none (yet) or where it makes no sense, in
  // which case `corrupt_` is set.
  bool Next(RecordHead* head);
  bool SetTail();
  void SeeSize();
  int64_t DrainGuarded(Output* outputs, uint32_t types);
  int64_t SkipTornGuarded();
  void Advance(uint32_t size_bytes);
  void Publish();
  uint8_t* At(uint64_t position) { return data_ + (position & mask_); }

  Header* header_;
  uint8_t* data_;
  uint64_t mask_;
  uint64_t there_;  // bytes of the ring that the file has
  uint64_t mapped_bytes_;
  int file_;
  uint64_t tail_ = 0;       // ours; the file's copy is for the producers
  uint64_t published_ = 0;  // what the file says
  bool corrupt_ = false;
};

}  // namespace spanlite
