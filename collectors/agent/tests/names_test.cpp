// Names and their numbers: a thread's cache of them against the table, and the table's marks.
//   names_test FOLDER
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "consumer.h"
#include "name_cache.h"
#include "ring.h"

using namespace spanlite;

namespace {

const Config g_config;

// A ring of its own, and what a daemon reads from it.
struct Fixture {
  explicit Fixture(const std::string& path)
      : ring(Ring::Create(path, kMinCapacity)), strings(ring.get()),
        consumer(Consumer::Over(ring->header())), space(1 << 20) {}

  std::unique_ptr<Ring> ring;
  Strings strings;
  std::unique_ptr<Consumer> consumer;
  std::vector<uint8_t> space;
  std::map<uint32_t, std::string> texts;
  uint32_t sent = 0;

  void Drain() {
    constexpr auto kString = static_cast<uint32_t>(RecordType::kString);
    Consumer::Output outputs[kString + 1];
    outputs[kString] = {space.data(), space.size(), 0};
    while (consumer->Drain(outputs, kString + 1) > 0)
      for (uint64_t at = 0; at < outputs[kString].used;) {
        StringRecord record;
        std::memcpy(&record, space.data() + at, sizeof record);
        const auto* text = reinterpret_cast<const char*>(space.data() + at + sizeof record);
        texts[record.id] = std::string(text, record.length);
        at += record.head.size_bytes;
        ++sent;
      }
  }

  // What a reader takes `text` for.
  std::string Read(NameCache* names, std::string_view text) {
    const uint32_t id = names->Of(text, &strings, g_config).id;
    Drain();
    return texts[id];
  }
};

// All lengths, the change of any one byte, and bytes that are zeros.
void TextsAreToldApartByAllTheirBytes(const std::string& folder) {
  Fixture at(folder + "/bytes.ring");
  NameCache names;
  for (int round = 0; round < 2; ++round)
    for (size_t length = 0; length < 60; ++length)
      for (size_t changed = 0; changed <= length; ++changed) {
        std::string text(length, 'a');
        if (changed < length) text[changed] = '\0';
        CHECK(at.Read(&names, text) == text);
      }
}

void APlaceThatIsUsedAgainSaysWhatLiesThere(const std::string& folder) {
  Fixture at(folder + "/place.ring");
  NameCache names;
  char place[64];
  for (int round = 0; round < 3; ++round)
    for (int number = 0; number < 1000; ++number) {
      std::snprintf(place, sizeof place, "layer:%03d%s", number,
                    number % 5 ? "" : " with a name of more than forty bytes");
      CHECK(at.Read(&names, place) == place);
    }
  CHECK(at.sent == 1000);  // each text once, whatever the cache has let go of
}

void KeptTextsAreKnownByTheirPlace(const std::string& folder) {
  Fixture at(folder + "/kept.ring");
  NameCache names;
  std::vector<std::unique_ptr<std::string>> kept;
  for (int i = 0; i < 1000; ++i) kept.push_back(std::make_unique<std::string>(std::to_string(i)));
  for (int round = 0; round < 2; ++round)
    for (const auto& text : kept) {
      const uint32_t id = names.OfKept(*text, &at.strings, g_config).id;
      CHECK(id == at.strings.Intern(*text));
      at.Drain();
      CHECK(at.texts[id] == *text);
    }
}

void StepsAreKnownByTheirNames(const std::string& folder) {
  Fixture at(folder + "/steps.ring");
  NameCache names;
  const std::string far = "step:" + std::string(100, 'x'), kept = "execute_model";
  for (int round = 0; round < 2; ++round) {
    CHECK(names.Of("step:7", &at.strings, g_config).is_step);
    CHECK(names.Of(far, &at.strings, g_config).is_step);
    CHECK(names.OfKept(kept, &at.strings, g_config).is_step);
    CHECK(!names.Of("FFN", &at.strings, g_config).is_step);
  }
}

void ANewDaemonGetsTheTextAnew(const std::string& folder) {
  Fixture at(folder + "/epoch.ring");
  NameCache names;
  const std::string far(100, 'x'), kept = "kept";
  const auto all = [&] {
    return std::vector<uint32_t>{names.Of("FFN", &at.strings, g_config).id,
                                 names.Of(far, &at.strings, g_config).id,
                                 names.OfKept(kept, &at.strings, g_config).id};
  };
  all();
  at.Drain();
  for (uint32_t epoch = 1; epoch < 4; ++epoch) {
    at.texts.clear();
    at.ring->header()->control.strings_epoch = epoch;
    for (int again = 0; again < 2; ++again) {
      const std::vector<uint32_t> ids = all();
      at.Drain();
      CHECK(at.texts[ids[0]] == "FFN" && at.texts[ids[1]] == far && at.texts[ids[2]] == kept);
    }
    CHECK(at.sent == 3 * (epoch + 1));
  }
}

// A table that is full forgets, and says so: a reader drops what is older.
void WhatTheTableForgetsTheCacheForgets(const std::string& folder) {
  Fixture at(folder + "/forget.ring");
  NameCache names;
  CHECK(at.Read(&names, "FFN") == "FFN");
  for (int number = 0; at.texts.count(0) == 0; ++number) {
    CHECK(number < 100'000);
    at.strings.Intern("other:" + std::to_string(number));
    at.Drain();
  }
  at.texts.clear();
  CHECK(at.Read(&names, "FFN") == "FFN");
}

void WhatAFullRingDidNotTakeIsSentLater(const std::string& folder) {
  Fixture at(folder + "/full.ring");
  NameCache names;
  const std::string far(100, 'x'), kept = "kept";
  while (at.ring->Write(KernelRecord{}, RecordType::kKernel)) {
  }
  while (at.ring->Write(RecordHead{}, RecordType::kPadding)) {
  }
  for (int again = 0; again < 2; ++again) {
    CHECK(names.Of("FFN", &at.strings, g_config).id == 0);
    CHECK(names.Of(far, &at.strings, g_config).id == 0);
    CHECK(names.OfKept(kept, &at.strings, g_config).id == 0);
  }
  at.Drain();
  CHECK(at.Read(&names, "FFN") == "FFN" && at.Read(&names, far) == far);
  CHECK(names.OfKept(kept, &at.strings, g_config).id != 0);
}

// Each thread with a cache of its own, while daemons come and the table overflows.
void ThreadsAgreeOnNumbers(const std::string& folder) {
  Fixture at(folder + "/threads.ring");
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&at, &running, t] {
      NameCache names;
      for (int i = 0; i < 20'000; ++i) {
        names.Of("layer:" + std::to_string(i % 40), &at.strings, g_config);
        if (i % 7 == 0) names.Of(std::to_string(t * 100'000 + i), &at.strings, g_config);
      }
      --running;
    });
  for (uint32_t epoch = 1; running != 0; ++epoch) {
    at.ring->header()->control.strings_epoch = epoch;
    at.Drain();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  at.Drain();
  at.texts.clear();
  at.ring->header()->control.strings_epoch = 0;
  NameCache names;
  for (int i = 0; i < 40; ++i) {
    const std::string text = "layer:" + std::to_string(i);
    CHECK(at.Read(&names, text) == text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const std::string folder = argv[1];
  TextsAreToldApartByAllTheirBytes(folder);
  APlaceThatIsUsedAgainSaysWhatLiesThere(folder);
  KeptTextsAreKnownByTheirPlace(folder);
  StepsAreKnownByTheirNames(folder);
  ANewDaemonGetsTheTextAnew(folder);
  WhatTheTableForgetsTheCacheForgets(folder);
  WhatAFullRingDidNotTakeIsSentLater(folder);
  ThreadsAgreeOnNumbers(folder);
  return 0;
}
