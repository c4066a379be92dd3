// How much of step time the windows may cost, and so how far apart they lie.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spanlite {

// Mean over some hundred steps, the newest weighing most.
class RunningMean {
 public:
  void Add(double value) {
    ++count_;
    const double share = count_ < kSpan ? 1.0 / static_cast<double>(count_) : 1.0 / kSpan;
    mean_ += (value - mean_) * share;
  }
  double mean() const { return mean_; }
  // Enough steps to compare with.
  bool known() const { return count_ >= kSpan / 2; }

 private:
  static constexpr uint64_t kSpan = 100;
  uint64_t count_ = 0;
  double mean_ = 0;
};

// Not thread-safe; the session holds its lock. All times in ns.
class Budget {
 public:
  static constexpr uint32_t kUsualSteps = 10;

  // `window_steps` 0: as many as are worth it.
  Budget(uint32_t allowed_ppm, uint32_t window_steps, uint64_t min_spacing_ns);

  void SetAllowed(uint32_t allowed_ppm) { allowed_ppm_ = allowed_ppm; }
  // A step that no window touched; `attached`: CUPTI was there, idle.
  void StepOutside(uint64_t duration_ns, bool attached);
  // A whole step inside a window.
  void StepInside(uint64_t duration_ns);
  // A window closed; `fixed_ns` is what opening and closing took on the application's thread.
  // `asked`: by a person, so that it delays no other.
  void WindowClosed(uint64_t now_ns, uint64_t fixed_ns, bool asked = false);

  // One that held no step, so that nobody knows what it cost: the next one comes once it was so small
  // a part of the time as windows may be of the steps.
  void TimedWindowClosed(uint64_t now_ns, uint64_t duration_ns);

  // By the clock at least the spacing asked for; by step time as much as the windows so far must be
  // spread over. Time in which the server idles earns no window.
  bool Due(uint64_t now_ns) const { return now_ns >= next_ns_ && since_window_ns_ >= needed_ns_; }
  // Whether a window may open before it is due, as something happened: until such windows have
  // cost a second more than the budget had.
  bool MayOverdraw() const { return extra_ns_ - total_ns_ * allowed_ppm_ / 1e6 < kOverdraftNs; }
  // How many steps the next window may hold. Where steps are short as many as last twice as long
  // as opening and closing takes, so that most of the cost is records; fewer where even one window
  // in ten minutes would cost too much.
  uint32_t WindowSteps() const { return steps_; }
  // Measured: extra time of windows, over all step time, in parts per million.
  uint64_t CostPpm() const;
  // That extra time, and the step time that the last window which was not asked for is spread over.
  uint64_t CostNs() const { return static_cast<uint64_t>(extra_ns_); }
  uint64_t SpacingNs() const { return static_cast<uint64_t>(spacing_ns_); }
  // Steps with CUPTI attached and idle, against steps without it; 0 until both are known.
  uint64_t AttachedCostPpm() const;

 private:
  // A window rarer than this (in step time) says too little about a server.
  static constexpr double kMaxSpacingNs = 600e9;
  // A window costs more than we see: caches and clocks take some steps to settle after it.
  static constexpr double kUnseen = 1.5;
  static constexpr double kOverdraftNs = 1e9;
  static constexpr double kWorthOpening = 2;
  static constexpr uint32_t kMostSteps = 100;
  // Where windows slow their steps by more than this, few steps may lie in them: else p99 would be
  // that of steps in windows. As a part of the budget's share of the time: half of it where they are
  // up to a tenth slower (at 1 % one step in 200), a tenth where they take half as long again (one
  // in 1,000). For that windows become shorter where they would be rarer than each half minute of
  // step time.
  static constexpr double kFelt = 0.02;
  static constexpr double kMostOfBudget = 0.5;
  static constexpr double kSlowerTimesShare = 0.05;
  static constexpr double kShortenAboveNs = 30e9;
  static constexpr double kMaxTimedSpacingNs = 60e9;

  // A stretch of which these steps are a small enough part; `slower`: by what part of their time.
  double SpreadNs(double expected_ns, double slower) const {
    const double share = std::min(kMostOfBudget, kSlowerTimesShare / slower);
    return expected_ns * 1e6 / (share * std::max(allowed_ppm_, 1u));
  }
  void Space(double cost, double expected, double slower, double fixed_ns, double step_ns);
  const RunningMean& Outside() const { return attached_.known() ? attached_ : detached_; }

  uint32_t allowed_ppm_;
  const uint32_t full_steps_, most_steps_;
  const uint64_t min_spacing_ns_;
  uint32_t steps_;
  uint64_t next_ns_ = 0;
  RunningMean attached_, detached_;
  uint64_t window_inside_ns_ = 0;
  uint64_t window_steps_ = 0;
  double since_window_ns_ = 0;  // step time since the last window
  double needed_ns_ = 0;        // how much of it the next window needs
  double spacing_ns_ = 0;       // and what the last one added to that
  double extra_ns_ = 0;
  double total_ns_ = 0;
};

}  // namespace spanlite
