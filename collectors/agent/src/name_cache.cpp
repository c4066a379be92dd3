#include "name_cache.h"

namespace spanlite {
namespace {

bool IsStep(std::string_view name, const Config& config) {
  for (const std::string& prefix : config.step_ranges)
    if (name.substr(0, prefix.size()) == prefix) return true;
  return false;
}

}  // namespace

NameCache::Name NameCache::Learn(std::string_view text, Strings* strings, const Config& config) {
  Revise(*strings);
  return {strings->Intern(text), IsStep(text, config)};
}

NameCache::Name NameCache::OfLong(std::string_view text, Strings* strings, const Config& config) {
  Revise(*strings);
  text = text.substr(0, Strings::kMaxLength);
  for (const LongSlot& slot : slots_->long_ones)
    if (slot.text == text) return slot.name;
  LongSlot& slot = slots_->long_ones[slots_->next_long++ % kLongSlots];
  slot.name = Learn(text, strings, config);
  slot.text = slot.name.id == 0 ? std::string_view{} : text;  // not sent: again with the next one
  return slot.name;
}

void NameCache::Revise(const Strings& strings) {
  const uint64_t version = strings.Version();
  if (version == version_) return;
  Clear();
  version_ = version;
}

void NameCache::Clear() {
  for (Slot& slot : slots_->short_ones) slot.name.id = 0;
  for (KeptSlot& slot : slots_->kept) slot.name.id = 0;
  for (LongSlot& slot : slots_->long_ones) slot.text.clear();
}

}  // namespace spanlite
