// A thread's own memory of the names that it used last: their numbers, without a lock.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "config.h"
#include "string_table.h"

namespace spanlite {

// A text of up to 40 bytes, with zeros behind it.
class NameKey {
 public:
  static constexpr size_t kMaxLength = 40;

  NameKey() = default;
  explicit NameKey(std::string_view text);
  bool operator==(const NameKey& other) const;
  // The highest bits of a sum of products with odd numbers: they depend on every bit of every word.
  size_t Slot(size_t bits) const;

 private:
  std::array<uint64_t, kMaxLength / 8> words_{};
  uint32_t length_ = 0;
};

// Not thread-safe: one a thread. Names are told apart by what they say, never by where they lie:
// programs write the next name into the place of the last one.
class NameCache {
 public:
  struct Name {
    uint32_t id = 0;  // as Strings::Intern gives it
    bool is_step = false;
  };

  // The name `text`; interned where this thread has not used it lately.
  Name Of(std::string_view text, Strings* strings, const Config& config) {
    if (text.size() > NameKey::kMaxLength) return OfLong(text, strings, config);
    const NameKey key(text);
    Slot& slot = slots_->short_ones[key.Slot(kSlotBits)];
    if (strings->Version() == version_ && slot.name.id != 0 && slot.key == key) return slot.name;
    slot.key = key;
    return slot.name = Learn(text, strings, config);
  }
  // The same for a text that stays what and where it is as long as the process lives.
  Name OfKept(const std::string& text, Strings* strings, const Config& config) {
    KeptSlot& slot = slots_->kept[reinterpret_cast<uintptr_t>(&text) / 32 % kKeptSlots];
    if (strings->Version() == version_ && slot.name.id != 0 && slot.text == &text) return slot.name;
    slot.text = &text;
    return slot.name = Learn(text, strings, config);
  }
  // After a fork: the child has another table.
  void Clear();

 private:
  static constexpr size_t kSlotBits = 8;  // the layers and stages of a model
  static constexpr size_t kKeptSlots = 127;
  static constexpr size_t kLongSlots = 4;  // texts that name requests, 8 KiB at most each

  struct alignas(64) Slot {
    NameKey key;
    Name name;  // id 0: empty
  };
  struct KeptSlot {
    const std::string* text = nullptr;
    Name name;
  };
  struct LongSlot {
    std::string text;
    Name name;
  };

  Name Learn(std::string_view text, Strings* strings, const Config& config);
  Name OfLong(std::string_view text, Strings* strings, const Config& config);
  void Revise(const Strings& strings);

  struct Slots {
    std::array<Slot, 1 << kSlotBits> short_ones{};
    std::array<KeptSlot, kKeptSlots> kept{};
    std::array<LongSlot, kLongSlots> long_ones;
    size_t next_long = 0;
  };

  uint64_t version_ = 0;
  std::unique_ptr<Slots> slots_ = std::make_unique<Slots>();
};

inline NameKey::NameKey(std::string_view text) : length_(static_cast<uint32_t>(text.size())) {
  const char* at = text.data();
  const char* const whole = at + text.size() / 8 * 8;
  uint64_t* word = words_.data();
  for (; at != whole; at += 8) std::memcpy(word++, at, 8);
  // The rest, without reading a byte more.
  uint64_t rest = 0;
  uint32_t shift = 0;
  if (text.size() & 4) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    rest = four, shift = 32, at += 4;
  }
  if (text.size() & 2) {
    uint16_t two;
    std::memcpy(&two, at, 2);
    rest |= static_cast<uint64_t>(two) << shift, shift += 16, at += 2;
  }
  if (text.size() & 1) rest |= static_cast<uint64_t>(static_cast<uint8_t>(*at)) << shift;
  if (text.size() & 7) *word = rest;
}

inline bool NameKey::operator==(const NameKey& other) const {
  uint64_t differs = length_ ^ other.length_;
  for (size_t i = 0; i < words_.size(); ++i) differs |= words_[i] ^ other.words_[i];
  return differs == 0;
}

inline size_t NameKey::Slot(size_t bits) const {
  uint64_t odd = 0x9E3779B97F4A7C15ull, sum = length_ * odd;
  for (uint64_t word : words_) sum += word * (odd += 0x632BE59BD9B4E01Aull);
  return sum >> (64 - bits);
}

}  // namespace spanlite
