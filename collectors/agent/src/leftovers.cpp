#include "leftovers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "consumer.h"

namespace spanlite {
namespace {

constexpr size_t kPieceBytes = 64 * 1024;

// A daemon that reads a ring has it locked.
bool IsRead(int file) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Any user may put anything into the folder: a pipe must not make us wait, nor a link lead us away.
int OpenToRead(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

// A living process holds a lock on its ring, in whatever PID namespace it is.
bool IsDead(const std::string& path) {
  const int file = OpenToRead(path);
  if (file < 0) return false;
  struct stat info {};
  const bool dead = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                    flock(file, LOCK_EX | LOCK_NB) == 0 && !IsRead(file);
  close(file);  // and with it the lock
  return dead;
}

// When a ring was made, as its name PID-NS.ring says. Not its file's times: who reads it changes those.
uint64_t MadeNs(const char* name) {
  const char* dash = std::strrchr(name, '-');
  return dash == nullptr ? 0 : std::strtoull(dash + 1, nullptr, 10);
}

// Records from `tail` to `head` in the file: texts apart, up to what makes no sense.
uint64_t UnreadRecords(int file, const Header& header) {
  const uint64_t tail = header.tail, last = header.head;
  if (last - tail > header.capacity_bytes || tail % kRecordAlign != 0) return 0;
  std::vector<uint8_t> piece(kPieceBytes);
  uint64_t records = 0, begin = 0, end = 0;  // what of the file `piece` holds
  for (uint64_t at = tail; at < last;) {
    const uint64_t place = kHeaderBytes + (at & (header.capacity_bytes - 1));
    if (place < begin || place + sizeof(RecordHead) > end) {
      const ssize_t got = pread(file, piece.data(), piece.size(), static_cast<off_t>(place));
      if (got < static_cast<ssize_t>(sizeof(RecordHead))) break;
      begin = place;
      end = place + static_cast<uint64_t>(got);
    }
    RecordHead head;
    std::memcpy(&head, piece.data() + (place - begin), sizeof head);
    if (head.size_bytes < sizeof head || head.size_bytes % kRecordAlign != 0) break;
    const auto type = static_cast<RecordType>(head.type);
    records += type != RecordType::kPadding && type != RecordType::kString;
    at += head.size_bytes;
  }
  return records;
}

// What is lost with a ring. By reads and not by a mapping, which a file that is cut short would turn
// into a signal.
Losses LossesOf(const std::string& path) {
  Losses losses{}, told{};
  const int file = OpenToRead(path);
  if (file < 0) return losses;
  Header header;
  if (pread(file, static_cast<void*>(&header), sizeof header, 0) == sizeof header &&
      SoundHeader(header) && pread(file, told.data(), sizeof told, kToldOffset) == sizeof told) {
    for (size_t reason = 0; reason < losses.size(); ++reason) {
      const uint64_t counted = header.dropped[reason];
      if (counted > kMostDrops) continue;  // damaged
      losses[reason] = counted - std::min(told[reason], counted);
    }
    losses[static_cast<size_t>(Drop::kRingDeleted)] += UnreadRecords(file, header);
  }
  close(file);
  return losses;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Losses RemoveOldRings(const std::string& folder, size_t keep) {
  Losses losses{};
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return losses;
  std::vector<std::pair<uint64_t, std::string>> dead;
  while (const dirent* entry = readdir(directory)) {
    const std::string path = folder + "/" + entry->d_name;
    if (EndsWith(path, ".ring") && IsDead(path)) dead.emplace_back(MadeNs(entry->d_name), path);
  }
  closedir(directory);
  if (dead.size() <= keep) return losses;
  std::sort(dead.begin(), dead.end());
  dead.resize(dead.size() - keep);
  for (const auto& [made_ns, path] : dead) {
    const Losses lost = LossesOf(path);
    if (unlink(path.c_str()) != 0) continue;  // another agent was first, and tells
    for (size_t reason = 0; reason < losses.size(); ++reason) losses[reason] += lost[reason];
  }
  return losses;
}

}  // namespace spanlite
