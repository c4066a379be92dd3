#include "consumer.h"

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring.h"

namespace spanlite {
namespace {

constexpr uint32_t kMaxRecordBytes = 64 * 1024;
// Producers get room back in pieces of this size: seldom enough to cost nothing.
constexpr uint64_t kPublishBytes = 64 * 1024;

// A file that shrinks while mapped raises SIGBUS; inside a guard that becomes a return value.
thread_local sigjmp_buf* t_guard = nullptr;
struct sigaction g_previous;

void OnBusError(int signal, siginfo_t* info, void* context) {
  if (t_guard != nullptr) siglongjmp(*t_guard, 1);
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) return g_previous.sa_sigaction(signal, info, context);
  if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN)
    return g_previous.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // returning repeats the fault, which then ends the process
}

void InstallGuard() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = &OnBusError;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGBUS, &action, &g_previous);
  });
}

template <typename Body>
int64_t Guarded(Body body) {
  sigjmp_buf guard;
  if (sigsetjmp(guard, 0) != 0) {
    t_guard = nullptr;
    return Consumer::kCorrupt;
  }
  t_guard = &guard;
  const int64_t result = body();
  t_guard = nullptr;
  return result;
}

bool SoundRecord(const RecordHead& head) {
  if (head.size_bytes > kMaxRecordBytes) return false;
  if (head.type == static_cast<uint16_t>(RecordType::kString))
    return head.size_bytes >= sizeof(StringRecord);
  const uint32_t fixed = FixedRecordBytes(head.type);
  return fixed == 0 || fixed == head.size_bytes;
}

// The text's length, as the copy has it: another process can still change the original.
bool SoundString(const uint8_t* copy, uint32_t size_bytes) {
  StringRecord record;
  std::memcpy(&record, copy, sizeof record);
  return record.length <= size_bytes - sizeof(StringRecord);
}

}  // namespace

bool SoundHeader(const Header& header) {
  const uint64_t capacity = header.capacity_bytes;
  return header.magic == kRingMagic && header.layout_version == kLayoutVersion &&
         header.header_bytes == kHeaderBytes && (capacity & (capacity - 1)) == 0 &&
         capacity >= kMinCapacity && capacity <= kMaxCapacity;
}

uint32_t FixedRecordBytes(uint32_t type) {
  switch (static_cast<RecordType>(type)) {
    case RecordType::kClock: return sizeof(ClockRecord);
    case RecordType::kKernel: return sizeof(KernelRecord);
    case RecordType::kMemcpy:
    case RecordType::kMemset: return sizeof(MemoryRecord);
    case RecordType::kSync: return sizeof(SyncRecord);
    case RecordType::kApi: return sizeof(ApiRecord);
    case RecordType::kGraph: return sizeof(GraphRecord);
    case RecordType::kOverhead: return sizeof(OverheadRecord);
    case RecordType::kRange: return sizeof(RangeRecord);
    case RecordType::kWindow: return sizeof(WindowRecord);
    case RecordType::kStep: return sizeof(StepRecord);
    case RecordType::kExternal: return sizeof(ExternalRecord);
    default: return 0;
  }
}

Consumer::Consumer(Header* header, uint64_t mapped_bytes, int file)
    : header_(header),
      data_(reinterpret_cast<uint8_t*>(header) + kHeaderBytes),
      mask_(mapped_bytes - kHeaderBytes - 1),
      there_(mapped_bytes - kHeaderBytes),
      mapped_bytes_(mapped_bytes),
      file_(file) {}

Consumer::~Consumer() {
  if (file_ < 0) return;
  munmap(header_, mapped_bytes_);
  close(file_);
}

Consumer* Consumer::Open(const std::string& path) {
  InstallGuard();
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return nullptr;
  struct stat info {};
  Header copy;
  const bool sound = fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
                     pread(file, static_cast<void*>(&copy), sizeof copy, 0) == sizeof copy &&
                     SoundHeader(copy) && static_cast<uint64_t>(info.st_size) >= kHeaderBytes;
  const uint64_t total = kHeaderBytes + copy.capacity_bytes;
  void* at = sound ? mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (at == MAP_FAILED) {
    if (!sound) errno = EPROTO;
    close(file);
    return nullptr;
  }
  auto* consumer = new Consumer(static_cast<Header*>(at), total, file);
  Guarded([consumer] { return consumer->SetTail() ? 1 : kCorrupt; });
  return consumer;
}

Consumer* Consumer::Over(Header* header) {
  return new Consumer(header, kHeaderBytes + header->capacity_bytes, -1);
}

// How much of the ring is there, should the file have been cut short.
void Consumer::SeeSize() {
  struct stat info {};
  if (file_ < 0 || fstat(file_, &info) != 0) return;
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  there_ = std::min(mask_ + 1, size > kHeaderBytes ? size - kHeaderBytes : 0);
}

// Takes up where the last daemon stopped.
bool Consumer::SetTail() {
  tail_ = published_ = header_->tail.load(std::memory_order_acquire);
  corrupt_ = tail_ % kRecordAlign != 0;
  return !corrupt_;
}

bool Consumer::Next(RecordHead* head) {
  const uint64_t waiting = header_->head.load(std::memory_order_acquire) - tail_;
  if (waiting == 0) return false;
  const uint64_t offset = tail_ & mask_;
  corrupt_ = offset + sizeof(uint64_t) > there_;
  if (corrupt_) return false;
  const uint64_t word = HeadWord(At(tail_))->load(std::memory_order_acquire);
  if (word == 0 && waiting <= mask_ + 1) return false;
  std::memcpy(head, &word, sizeof word);
  const uint64_t left = mask_ + 1 - offset;
  corrupt_ = waiting > mask_ + 1 || head->size_bytes < sizeof(RecordHead) ||
             head->size_bytes % kRecordAlign != 0 || head->size_bytes > left ||
             head->size_bytes > waiting || offset + head->size_bytes > there_;
  return !corrupt_;
}

void Consumer::Advance(uint32_t size_bytes) {
  std::memset(At(tail_), 0, size_bytes);
  tail_ += size_bytes;
  if (tail_ - published_ >= kPublishBytes) Publish();
}

void Consumer::Publish() {
  header_->tail.store(tail_, std::memory_order_release);
  published_ = tail_;
}

int64_t Consumer::Drain(Output* outputs, uint32_t types) {
  for (uint32_t type = 0; type < types; ++type) outputs[type].used = 0;
  if (corrupt_) return kCorrupt;
  SeeSize();
  const int64_t records = Guarded([this, outputs, types] { return DrainGuarded(outputs, types); });
  corrupt_ = corrupt_ || records == kCorrupt;
  return records;
}

int64_t Consumer::DrainGuarded(Output* outputs, uint32_t types) {
  int64_t records = 0;
  RecordHead head;
  while (Next(&head)) {
    const auto type = static_cast<RecordType>(head.type);
    if (type == RecordType::kReserved) break;
    if (type == RecordType::kPadding) {
      Advance(head.size_bytes);
      continue;
    }
    corrupt_ = !SoundRecord(head);
    if (corrupt_) break;
    if (head.type < types && outputs[head.type].buffer != nullptr) {
      Output& out = outputs[head.type];
      if (out.used + head.size_bytes > out.capacity) break;
      uint8_t* copy = out.buffer + out.used;
      std::memcpy(copy, At(tail_), head.size_bytes);
      std::memcpy(copy, &head, sizeof head);  // the head that was checked
      corrupt_ = type == RecordType::kString && !SoundString(copy, head.size_bytes);
      if (corrupt_) break;
      out.used += head.size_bytes;
    }
    Advance(head.size_bytes);
    ++records;
  }
  Publish();
  // What was read before the damage is good; the next call says kCorrupt.
  return corrupt_ && records == 0 ? kCorrupt : records;
}

int64_t Consumer::SkipTorn() {
  if (corrupt_) return kCorrupt;
  const int64_t skipped = Guarded([this] { return SkipTornGuarded(); });
  corrupt_ = corrupt_ || skipped == kCorrupt;
  return skipped;
}

int64_t Consumer::SkipTornGuarded() {
  const uint64_t head = header_->head.load(std::memory_order_acquire);
  RecordHead record;
  uint64_t skipped = 0;
  if (Next(&record)) {
    if (record.type != static_cast<uint16_t>(RecordType::kReserved)) return 0;
    skipped = record.size_bytes;
    Advance(record.size_bytes);
  } else if (corrupt_) {
    return kCorrupt;
  } else {
    // Never begun, so all zeros: the next word that is not is the head of a record.
    for (; tail_ + skipped < head; skipped += kRecordAlign)
      if (HeadWord(At(tail_ + skipped))->load(std::memory_order_acquire) != 0) break;
    tail_ += skipped;
  }
  if (skipped != 0) header_->dropped[static_cast<size_t>(Drop::kTorn)].fetch_add(1);
  Publish();
  return static_cast<int64_t>(skipped);
}

bool Consumer::ReadHeader(uint8_t* page) {
  return Guarded([this, page] {
           const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(header_);
           for (size_t i = 0; i < kHeaderBytes / sizeof(uint64_t); ++i) {
             const uint64_t word = words[i].load(std::memory_order_acquire);
             std::memcpy(page + i * sizeof word, &word, sizeof word);
           }
           return 0;
         }) == 0;
}

bool Consumer::WriteWord(uint32_t offset, uint32_t bytes, uint64_t value) {
  if ((bytes != 4 && bytes != 8) || offset % bytes != 0 || offset > kHeaderBytes - bytes) return false;
  uint8_t* place = reinterpret_cast<uint8_t*>(header_) + offset;
  return Guarded([place, bytes, value] {
           if (bytes == 4)
             reinterpret_cast<std::atomic<uint32_t>*>(place)->store(static_cast<uint32_t>(value));
           else
             reinterpret_cast<std::atomic<uint64_t>*>(place)->store(value);
           return 0;
         }) == 0;
}

bool Consumer::ProducerAlive() const {
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) return true;
  flock(file_, LOCK_UN);
  return false;
}

}  // namespace spanlite
