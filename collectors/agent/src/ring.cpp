#include "ring.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace spanlite {
namespace {

constexpr uint64_t kMinCapacity = 64 * 1024;
constexpr uint64_t kMaxCapacity = 1ull << 32;

uint64_t RoundUp(uint64_t capacity) {
  uint64_t size = kMinCapacity;
  while (size < capacity && size < kMaxCapacity) size <<= 1;
  return size;
}

std::atomic<uint64_t>* HeadWord(void* record) {
  return reinterpret_cast<std::atomic<uint64_t>*>(record);
}

uint64_t PackHead(RecordType type, uint32_t size_bytes, uint16_t flags) {
  RecordHead head{size_bytes, static_cast<uint16_t>(type), flags};
  uint64_t word;
  std::memcpy(&word, &head, sizeof word);
  return word;
}

}  // namespace

Ring::Ring(std::string path, Header* header, uint64_t mapped_bytes)
    : path_(std::move(path)),
      header_(header),
      data_(reinterpret_cast<uint8_t*>(header) + kHeaderBytes),
      mask_(header->capacity_bytes - 1),
      mapped_bytes_(mapped_bytes) {}

Ring::~Ring() { munmap(header_, mapped_bytes_); }

Ring* Ring::Create(const std::string& path, uint64_t capacity_bytes) {
  const uint64_t capacity = RoundUp(capacity_bytes);
  const uint64_t total = kHeaderBytes + capacity;
  // Made under another name and renamed, so that the daemon never sees half a header.
  const std::string draft = path + ".new";
  int file = open(draft.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  // Allocate now: a full /dev/shm would otherwise kill the process with SIGBUS later.
  int failed = posix_fallocate(file, 0, static_cast<off_t>(total));
  void* at = failed ? MAP_FAILED
                    : mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) {
    unlink(draft.c_str());
    errno = failed ? failed : errno;
    return nullptr;
  }
  auto* header = static_cast<Header*>(at);
  header->layout_version = kLayoutVersion;
  header->header_bytes = kHeaderBytes;
  header->capacity_bytes = capacity;
  header->process_id = static_cast<uint32_t>(getpid());
  header->magic = kRingMagic;
  if (rename(draft.c_str(), path.c_str()) != 0) {
    munmap(at, total);
    unlink(draft.c_str());
    return nullptr;
  }
  return new Ring(path, header, total);
}

Ring* Ring::Open(const std::string& path) {
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat info {};
  const bool sized = fstat(file, &info) == 0 && info.st_size > static_cast<off_t>(kHeaderBytes);
  const uint64_t total = static_cast<uint64_t>(info.st_size);
  void* at = sized ? mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (at == MAP_FAILED) return nullptr;
  auto* header = static_cast<Header*>(at);
  const uint64_t capacity = header->capacity_bytes;
  const bool sound = header->magic == kRingMagic && header->layout_version == kLayoutVersion &&
                     header->header_bytes == kHeaderBytes && (capacity & (capacity - 1)) == 0 &&
                     capacity >= kMinCapacity && total >= kHeaderBytes + capacity;
  if (!sound) {
    munmap(at, total);
    errno = EPROTO;
    return nullptr;
  }
  return new Ring(path, header, total);
}

void* Ring::Reserve(uint32_t size_bytes) {
  const uint64_t capacity = mask_ + 1;
  uint64_t head = header_->head.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t offset = head & mask_;
    // A record never wraps: what is left of the lap becomes padding.
    const uint64_t padding = offset + size_bytes > capacity ? capacity - offset : 0;
    const uint64_t next = head + padding + size_bytes;
    if (next - header_->tail.load(std::memory_order_acquire) > capacity) {
      CountDrop(Drop::kRingFull);
      return nullptr;
    }
    if (header_->head.compare_exchange_weak(head, next, std::memory_order_relaxed)) {
      if (padding != 0) {
        Commit(data_ + offset, RecordType::kPadding, static_cast<uint32_t>(padding));
        return data_;
      }
      return data_ + offset;
    }
  }
}

void Ring::Commit(void* record, RecordType type, uint32_t size_bytes, uint16_t flags) {
  HeadWord(record)->store(PackHead(type, size_bytes, flags), std::memory_order_release);
}

void Ring::CopyBody(void* room, const void* record, uint32_t size_bytes) {
  std::memcpy(static_cast<uint8_t*>(room) + sizeof(RecordHead),
              static_cast<const uint8_t*>(record) + sizeof(RecordHead),
              size_bytes - sizeof(RecordHead));
}

const RecordHead* Ring::Peek() {
  while (true) {
    const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
    if (tail == header_->head.load(std::memory_order_acquire)) return nullptr;
    uint8_t* at = data_ + (tail & mask_);
    if (HeadWord(at)->load(std::memory_order_acquire) == 0) return nullptr;
    auto* head = reinterpret_cast<const RecordHead*>(at);
    if (head->type != static_cast<uint16_t>(RecordType::kPadding)) return head;
    Consume();
  }
}

void Ring::Consume() {
  const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  uint8_t* at = data_ + (tail & mask_);
  const uint32_t size = reinterpret_cast<RecordHead*>(at)->size_bytes;
  std::memset(at, 0, size);
  header_->tail.store(tail + size, std::memory_order_release);
}

}  // namespace spanlite
