// Which window a record belongs to. CUPTI delivers buffers late, often after the window has
// closed, so records are placed by their time and not by when they come.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

namespace spanlite {

// The last windows' times. A copy of it answers without a lock.
class WindowTimes {
 public:
  void Open(uint32_t window, uint64_t open_ns);
  void Close(uint64_t close_ns);
  // The window that holds `time_ns`; 0: none of the last ones. A record without a time (0)
  // goes to the latest window: CUPTI gives some, and they are flagged.
  uint32_t At(uint64_t time_ns) const;

 private:
  // Buffers come within a second or so, and later where other threads keep one from being complete;
  // windows are rarer than that, but for captures on demand.
  static constexpr size_t kKept = 128;

  struct Times {
    uint64_t open_ns, close_ns;
    uint32_t window;
  };
  std::array<Times, kKept> times_{};
  size_t latest_ = 0;
};

// The same, shared between the session and CUPTI's thread.
class OpenWindows {
 public:
  void Open(uint32_t window, uint64_t open_ns);
  void Close(uint64_t close_ns);
  WindowTimes Snapshot();

 private:
  std::mutex mutex_;
  WindowTimes times_;
};

}  // namespace spanlite
