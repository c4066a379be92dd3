#include "string_table.h"

#include <cstring>

namespace spanlite {

uint32_t Strings::Intern(std::string_view text) {
  if (text.empty()) return 0;
  text = text.substr(0, kMaxLength);
  const uint32_t epoch = ring_->header()->control.strings_epoch.load(std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  if (epoch != epoch_) {  // a new daemon knows none of them
    Forget();
    epoch_ = epoch;
  }
  auto found = ids_.find(text);
  if (found != ids_.end()) return found->second;
  if (texts_.size() >= kMaxTexts || bytes_ >= kMaxBytes) {
    if (!Send(0, "")) return 0;
    Forget();
  }
  const uint32_t id = next_;
  if (!Send(id, text)) return 0;  // the ring is full: try again with the next record
  ++next_;
  texts_.emplace_back(text);
  bytes_ += text.size();
  ids_.emplace(texts_.back(), id);
  return id;
}

void Strings::Forget() {
  forgets_.fetch_add(1, std::memory_order_relaxed);
  ids_.clear();
  texts_.clear();
  bytes_ = 0;
}

bool Strings::Send(uint32_t id, std::string_view text) {
  const uint32_t body = static_cast<uint32_t>(sizeof(StringRecord) + text.size());
  const uint32_t size = (body + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
  void* room = ring_->Reserve(size);
  if (room == nullptr) return false;
  auto* record = static_cast<StringRecord*>(room);
  record->id = id;
  record->length = static_cast<uint32_t>(text.size());
  std::memcpy(record + 1, text.data(), text.size());
  Ring::Commit(room, RecordType::kString, size);
  return true;
}

}  // namespace spanlite
