// Text goes into the ring once; records carry its number.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ring.h"

namespace spanlite {

// Thread-safe. 0 stands for the empty text and for text that could not be sent.
class Strings {
 public:
  // The longest text kept; a templated kernel name can run to several KB.
  static constexpr size_t kMaxLength = 8192;

  explicit Strings(Ring* ring) : ring_(ring) {}

  // The number of `text`, sending it first where the daemon has not got it yet.
  uint32_t Intern(std::string_view text);

  // Changes when the numbers given so far are to be used no more. Read it before `Intern`, and keep
  // what that gave for as long as it is the same.
  uint64_t Version() const {
    const uint64_t epoch = ring_->header()->control.strings_epoch.load(std::memory_order_relaxed);
    return epoch << 32 | forgets_.load(std::memory_order_relaxed);
  }

 private:
  // What the table may hold: names with a number in them ("request:81234") never end.
  static constexpr size_t kMaxTexts = 32768;
  // The same in bytes: a step's text may name all requests that it serves.
  static constexpr size_t kMaxBytes = 2 << 20;

  bool Send(uint32_t id, std::string_view text);
  void Forget();

  Ring* ring_;
  std::atomic<uint32_t> forgets_{0};  // here, as each range reads both
  std::mutex mutex_;
  // The views point into `texts_`, so that a look-up allocates nothing.
  std::unordered_map<std::string_view, uint32_t> ids_;
  std::deque<std::string> texts_;
  size_t bytes_ = 0;
  uint32_t epoch_ = 0;
  // Goes on growing across epochs, so that an old record never finds a wrong text.
  uint32_t next_ = 1;
};

}  // namespace spanlite
