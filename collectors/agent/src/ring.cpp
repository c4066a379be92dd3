#include "ring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

namespace spanlite {
namespace {

uint64_t RoundUp(uint64_t capacity) {
  uint64_t size = kMinCapacity;
  while (size < capacity && size < kMaxCapacity) size <<= 1;
  return size;
}

uint64_t PackHead(RecordType type, uint32_t size_bytes, uint16_t flags) {
  RecordHead head{size_bytes, static_cast<uint16_t>(type), flags};
  uint64_t word;
  std::memcpy(&word, &head, sizeof word);
  return word;
}

// A file of `total` bytes, locked and mapped; nullptr with errno set on trouble.
void* MakeFile(const std::string& path, uint64_t total, int* file) {
  *file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (*file < 0) return nullptr;
  // Allocate now: a full /dev/shm would otherwise kill the process with SIGBUS later.
  const int failed = posix_fallocate(*file, 0, static_cast<off_t>(total));
  if (failed != 0) {
    errno = failed;
    return nullptr;
  }
  if (flock(*file, LOCK_SH | LOCK_NB) != 0) return nullptr;
  void* at = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

Ring::Ring(Header* header, uint64_t mapped_bytes, int file)
    : header_(header),
      data_(reinterpret_cast<uint8_t*>(header) + kHeaderBytes),
      mask_(header->capacity_bytes - 1),
      mapped_bytes_(mapped_bytes),
      file_(file) {}

Ring::~Ring() {
  munmap(header_, mapped_bytes_);
  ReleaseLock();
}

void Ring::ReleaseLock() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

bool Ring::MapMore() {
#ifdef MADV_POPULATE_WRITE
  constexpr uint64_t kPieceBytes = 1 << 20;
  const uint64_t left = mapped_bytes_ - mapped_ahead_;
  if (left == 0) return false;
  const uint64_t piece = std::min(kPieceBytes, left);
  if (madvise(reinterpret_cast<uint8_t*>(header_) + mapped_ahead_, piece, MADV_POPULATE_WRITE) != 0)
    return false;  // a kernel before 5.14
  mapped_ahead_ += piece;
  return true;
#else
  return false;
#endif
}

Ring* Ring::Create(const std::string& path, uint64_t capacity_bytes,
                   const std::function<void(Header*)>& describe) {
  const uint64_t capacity = RoundUp(capacity_bytes);
  const uint64_t total = kHeaderBytes + capacity;
  // Made under another name and renamed, so that the daemon never sees half a header.
  const std::string draft = path + ".new";
  int file = -1;
  void* at = MakeFile(draft, total, &file);
  if (at != nullptr) {
    auto* header = static_cast<Header*>(at);
    header->layout_version = kLayoutVersion;
    header->header_bytes = kHeaderBytes;
    header->capacity_bytes = capacity;
    header->process_id = static_cast<uint32_t>(getpid());
    if (describe) describe(header);
    header->magic = kRingMagic;
    if (rename(draft.c_str(), path.c_str()) == 0) return new Ring(header, total, file);
    munmap(at, total);
  }
  const int reason = errno;
  if (file >= 0) {
    close(file);
    unlink(draft.c_str());
  }
  errno = reason;
  return nullptr;
}

void* Ring::Reserve(uint32_t size_bytes) {
  const uint64_t capacity = mask_ + 1;
  uint64_t head = header_->head.load(std::memory_order_relaxed);
  while (true) {
    // Aligned whatever the file says, so that even a word at the very end stays inside.
    const uint64_t offset = head & mask_ & ~static_cast<uint64_t>(kRecordAlign - 1);
    // A record never wraps: what is left of the lap becomes padding.
    const uint64_t padding = offset + size_bytes > capacity ? capacity - offset : 0;
    const uint64_t next = head + padding + size_bytes;
    if (next - header_->tail.load(std::memory_order_acquire) > capacity) {
      CountDrop(Drop::kRingFull);
      return nullptr;
    }
    if (!header_->head.compare_exchange_weak(head, next, std::memory_order_relaxed)) continue;
    if (padding != 0)
      Commit(data_ + offset, RecordType::kPadding, static_cast<uint32_t>(padding));
    uint8_t* record = padding != 0 ? data_ : data_ + offset;
    // Its size before its body: if the process dies in between, the daemon can step over it.
    HeadWord(record)->store(PackHead(RecordType::kReserved, size_bytes, 0),
                            std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return record;
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

}  // namespace spanlite
