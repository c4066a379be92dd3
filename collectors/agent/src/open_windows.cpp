#include "open_windows.h"

#include <limits>

namespace spanlite {

void WindowTimes::Open(uint32_t window, uint64_t open_ns) {
  latest_ = (latest_ + 1) % kKept;
  times_[latest_] = {open_ns, std::numeric_limits<uint64_t>::max(), window};
}

void WindowTimes::Close(uint64_t close_ns) { times_[latest_].close_ns = close_ns; }

uint32_t WindowTimes::At(uint64_t time_ns) const {
  if (time_ns == 0) return times_[latest_].window;
  for (size_t back = 0; back < kKept; ++back) {
    const Times& times = times_[(latest_ + kKept - back) % kKept];
    if (times.window != 0 && times.open_ns <= time_ns && time_ns <= times.close_ns)
      return times.window;
  }
  return 0;
}

void OpenWindows::Open(uint32_t window, uint64_t open_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  times_.Open(window, open_ns);
}

void OpenWindows::Close(uint64_t close_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  times_.Close(close_ns);
}

WindowTimes OpenWindows::Snapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  return times_;
}

}  // namespace spanlite
