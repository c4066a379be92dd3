#include "leftovers.h"

#include <algorithm>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace spanlite {
namespace {

// A living process holds a lock on its ring, in whatever PID namespace it is.
bool IsDead(const std::string& path, int64_t* changed_s) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  struct stat info {};
  const bool dead = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                    flock(file, LOCK_EX | LOCK_NB) == 0;
  *changed_s = info.st_ctime;
  close(file);  // and with it the lock
  return dead;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

void RemoveOldRings(const std::string& folder, size_t keep) {
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return;
  std::vector<std::pair<int64_t, std::string>> dead;
  while (const dirent* entry = readdir(directory)) {
    const std::string path = folder + "/" + entry->d_name;
    int64_t changed_s = 0;
    if (EndsWith(path, ".ring") && IsDead(path, &changed_s)) dead.emplace_back(changed_s, path);
  }
  closedir(directory);
  if (dead.size() <= keep) return;
  std::sort(dead.begin(), dead.end());
  dead.resize(dead.size() - keep);
  for (const auto& [changed_s, path] : dead) unlink(path.c_str());
}

}  // namespace spanlite
