// How much of step time the windows may cost, and so how far apart they lie.
#pragma once

#include <cstdint>

namespace spanlite {

// Not thread-safe; the session holds its lock. All times in ns.
class Budget {
 public:
  Budget(uint32_t allowed_ppm, uint32_t window_steps, uint64_t min_spacing_ns);

  void SetAllowed(uint32_t allowed_ppm) { allowed_ppm_ = allowed_ppm; }
  // A step that no window touched.
  void StepOutside(uint64_t duration_ns);
  // A whole step inside a window.
  void StepInside(uint64_t duration_ns);
  // A window closed; `fixed_ns` is what opening and closing took on the application's thread.
  void WindowClosed(uint64_t now_ns, uint64_t fixed_ns);

  bool Due(uint64_t now_ns) const { return now_ns >= next_ns_; }
  // How many steps the next window may hold: fewer where even one window in ten minutes
  // would cost too much.
  uint32_t WindowSteps() const { return steps_; }
  // Measured: extra time spent, over all step time, in parts per million.
  uint64_t CostPpm() const;

 private:
  // A window rarer than this says too little about a server.
  static constexpr uint64_t kMaxSpacingNs = 600'000'000'000;

  uint32_t allowed_ppm_;
  const uint32_t full_steps_;
  const uint64_t min_spacing_ns_;
  uint32_t steps_;
  uint64_t next_ns_ = 0;
  double outside_mean_ns_ = 0;  // exponential mean over some 100 steps
  uint64_t window_inside_ns_ = 0;
  uint64_t window_steps_ = 0;
  double extra_ns_ = 0;
  double total_ns_ = 0;
};

}  // namespace spanlite
