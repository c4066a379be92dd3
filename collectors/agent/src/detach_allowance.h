// GPU memory that detaching may take for good.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spanlite {

// Each cuptiFinalize leaves some memory of the GPU allocated until the process ends: 0.59 to 0.65 MiB
// with CUPTI 13.0.85 on an H200 (docs/agent.md), whatever was recorded. So detaches have an allowance
// that a day refills, a day's worth at the start. Not thread-safe; the session holds its lock.
class DetachAllowance {
 public:
  static constexpr double kDetachMib = 0.65;

  // 0: without a limit.
  explicit DetachAllowance(double mib_a_day)
      : most_(mib_a_day > 0 ? std::max(1.0, mib_a_day / kDetachMib) : 0), left_(most_) {}

  // Whether a window may open that ends in a detach.
  bool Left(uint64_t now_ns) { return most_ == 0 || Refilled(now_ns) >= 1; }
  // The same for one that a slow step, a throttle or a queue calls for: a day's worth more.
  bool MayOverdraw(uint64_t now_ns) { return most_ == 0 || Refilled(now_ns) >= 1 - most_; }
  // CUPTI was detached.
  void Take(uint64_t now_ns) { left_ = Refilled(now_ns) - 1; }
  // How far apart windows lie where nothing else is left.
  double SpacingNs() const { return most_ == 0 ? 0 : kDayNs / most_; }

 private:
  static constexpr double kDayNs = 86'400e9;

  double Refilled(uint64_t now_ns) {
    if (now_ns > at_ns_ && at_ns_ != 0)
      left_ = std::min(most_, left_ + static_cast<double>(now_ns - at_ns_) / kDayNs * most_);
    at_ns_ = std::max(at_ns_, now_ns);
    return left_;
  }

  const double most_;
  double left_;
  uint64_t at_ns_ = 0;
};

}  // namespace spanlite
