// The ring under load and under attack.
//   ring_stress threads FOLDER PRODUCERS RECORDS   several producers, one consumer, one process
//   ring_stress produce FOLDER PRODUCERS           write until killed
//   ring_stress fuzz FOLDER SEED ROUNDS            a hostile process damages the file
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <random>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "consumer.h"
#include "ring.h"

using namespace spanlite;

namespace {

constexpr uint32_t kTypes = 16;

// A record whose every field follows from its producer and number, so that a torn one shows.
KernelRecord Make(uint32_t producer, uint64_t number) {
  KernelRecord record{};
  record.start_ns = number;
  record.end_ns = number ^ 0x5555555555555555ull;
  record.graph_node_id = number * 3;
  record.stream = producer;
  record.correlation_id = static_cast<uint32_t>(number * 7);
  record.launch_type = static_cast<uint32_t>(number * 11);
  return record;
}

bool Whole(const KernelRecord& r) {
  const KernelRecord expected = Make(r.stream, r.start_ns);
  return std::memcmp(reinterpret_cast<const char*>(&r) + sizeof(RecordHead),
                     reinterpret_cast<const char*>(&expected) + sizeof(RecordHead),
                     sizeof r - sizeof(RecordHead)) == 0;
}

void WriteText(Ring* ring, uint64_t number) {
  const auto size = static_cast<uint32_t>(sizeof(StringRecord) + 8 * (number % 40));
  auto* text = static_cast<StringRecord*>(ring->Reserve(size));
  if (text == nullptr) return;
  text->id = static_cast<uint32_t>(number);
  text->length = size - static_cast<uint32_t>(sizeof(StringRecord));
  std::memset(text + 1, 'a', text->length);
  Ring::Commit(text, RecordType::kString, size);
}

struct Buffers {
  Buffers() {
    for (uint32_t type = 0; type < kTypes; ++type) {
      space.emplace_back(new uint8_t[kBytes]);  // apart, so that a sanitizer sees an overrun
      outputs[type] = {space.back().get(), kBytes, 0};
    }
  }
  static constexpr uint64_t kBytes = 128 * 1024;
  std::vector<std::unique_ptr<uint8_t[]>> space;
  Consumer::Output outputs[kTypes];
};

int Threads(const std::string& folder, uint32_t producers, uint64_t records) {
  const std::string path = folder + "/threads.ring";
  std::unique_ptr<Ring> ring(Ring::Create(path, kMinCapacity));
  CHECK(ring != nullptr);
  std::unique_ptr<Consumer> watcher(Consumer::Open(path));
  CHECK(watcher != nullptr && watcher->ProducerAlive());
  std::unique_ptr<Consumer> consumer(Consumer::Over(ring->header()));
  std::vector<uint64_t> written(producers), last(producers), seen(producers);
  std::atomic<uint32_t> running{producers};
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < producers; ++p)
    threads.emplace_back([&, p] {
      for (uint64_t n = 1; n <= records; ++n) {
        if (ring->Write(Make(p, n), RecordType::kKernel)) ++written[p];
        else std::this_thread::yield();
        if (n % 16 == 0) WriteText(ring.get(), n);
      }
      --running;
    });
  Buffers buffers;
  bool more = true;
  while (more) {
    more = running != 0;  // before the drain, so that the last round sees everything
    while (true) {
      const int64_t drained = consumer->Drain(buffers.outputs, kTypes);
      CHECK(drained >= 0);
      if (drained == 0) break;
      const auto& kernels = buffers.outputs[static_cast<uint32_t>(RecordType::kKernel)];
      for (uint64_t at = 0; at < kernels.used; at += sizeof(KernelRecord)) {
        KernelRecord record;
        std::memcpy(&record, kernels.buffer + at, sizeof record);
        CHECK(Whole(record) && record.stream < producers);
        CHECK(record.start_ns > last[record.stream]);  // each producer's in its order
        last[record.stream] = record.start_ns;
        ++seen[record.stream];
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t lost = 0;
  for (uint32_t p = 0; p < producers; ++p) {
    CHECK(seen[p] == written[p]);
    lost += records - written[p];
  }
  const uint64_t dropped = ring->header()->dropped[static_cast<size_t>(Drop::kRingFull)];
  CHECK(dropped >= lost);  // texts are dropped too
  consumer.reset();
  ring.reset();
  CHECK(!watcher->ProducerAlive());
  std::printf("%llu written, %llu dropped and counted\n",
              static_cast<unsigned long long>(producers * records - lost),
              static_cast<unsigned long long>(dropped));
  return 0;
}

int Produce(const std::string& folder, uint32_t producers) {
  Ring* ring = Ring::Create(folder + "/produce.ring", kMinCapacity);
  CHECK(ring != nullptr);
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < producers; ++p)
    threads.emplace_back([ring, p] {
      for (uint64_t n = 1;; ++n) {
        ring->Write(Make(p, n), RecordType::kKernel);
        if (n % 16 == 0) WriteText(ring, n);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// Writes rubbish where a hostile owner of the file could: anywhere, also while it is read.
void Damage(int file, std::mt19937_64& random, off_t size) {
  for (uint64_t i = random() % 20; i-- > 0;) {
    uint64_t rubbish = random() % 3 == 0 ? random() : random() % 4096 * 8;
    // The header's indices, the first records, or anywhere.
    const uint64_t limits[] = {kHeaderBytes, kHeaderBytes + 512, static_cast<uint64_t>(size)};
    const uint64_t at = random() % limits[random() % 3];
    CHECK(pwrite(file, &rubbish, sizeof rubbish, static_cast<off_t>(at)) > 0);
  }
}

int Fuzz(const std::string& folder, uint64_t seed, uint64_t rounds) {
  std::mt19937_64 random(seed);
  uint64_t refused = 0, corrupt = 0, read = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const std::string path = folder + "/fuzz" + std::to_string(round) + ".ring";
    std::unique_ptr<Ring> ring(Ring::Create(path, kMinCapacity));
    CHECK(ring != nullptr);
    for (uint64_t n = 1; n < random() % 600; ++n) {
      ring->Write(Make(0, n), RecordType::kKernel);
      if (n % 3 == 0) WriteText(ring.get(), n);
    }
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat info {};
    CHECK(file >= 0 && fstat(file, &info) == 0);
    const bool before = random() % 2;
    if (before) Damage(file, random, info.st_size);
    std::unique_ptr<Consumer> consumer(Consumer::Open(path));
    if (!before) Damage(file, random, info.st_size);
    if (random() % 4 == 0) CHECK(ftruncate(file, static_cast<off_t>(random() % static_cast<uint64_t>(info.st_size))) == 0);
    refused += consumer == nullptr;
    Buffers buffers;
    for (int i = 0; consumer != nullptr && i < 50; ++i) {
      const int64_t drained = consumer->Drain(buffers.outputs, kTypes);
      corrupt += drained < 0;
      read += drained > 0 ? static_cast<uint64_t>(drained) : 0;
      if (drained < 0) break;
      if (drained == 0 && consumer->SkipTorn() <= 0) break;
    }
    consumer.reset();
    // The producer must survive its own file too, as long as nobody cuts it short.
    fstat(file, &info);
    if (info.st_size >= static_cast<off_t>(kHeaderBytes + kMinCapacity))
      for (uint64_t n = 1; n < 2000; ++n) ring->Write(Make(0, n), RecordType::kKernel);
    close(file);
    unlink(path.c_str());
  }
  std::printf("%llu refused, %llu corrupt, %llu records\n", static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(corrupt), static_cast<unsigned long long>(read));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 4);
  const std::string mode = argv[1], folder = argv[2];
  const uint64_t first = std::strtoull(argv[3], nullptr, 10);
  const uint64_t second = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  if (mode == "threads") return Threads(folder, static_cast<uint32_t>(first), second);
  if (mode == "produce") return Produce(folder, static_cast<uint32_t>(first));
  return Fuzz(folder, first, second);
}
