#include "budget.h"

#include <algorithm>

namespace spanlite {

Budget::Budget(uint32_t allowed_ppm, uint32_t window_steps, uint64_t min_spacing_ns)
    : allowed_ppm_(allowed_ppm),
      full_steps_(window_steps == 0 ? kUsualSteps : window_steps),
      most_steps_(window_steps == 0 ? kMostSteps : window_steps),
      min_spacing_ns_(min_spacing_ns),
      steps_(full_steps_) {}

void Budget::StepOutside(uint64_t duration_ns, bool attached) {
  const auto duration = static_cast<double>(duration_ns);
  (attached ? attached_ : detached_).Add(duration);
  total_ns_ += duration;
  since_window_ns_ += duration;
}

void Budget::StepInside(uint64_t duration_ns) {
  window_inside_ns_ += duration_ns;
  ++window_steps_;
  total_ns_ += static_cast<double>(duration_ns);
}

void Budget::WindowClosed(uint64_t now_ns, uint64_t fixed_ns, bool asked) {
  // Without steps outside there is nothing to compare with; then count the fixed part only.
  const double step_ns = Outside().known() ? Outside().mean() : 0;
  const double expected = step_ns * static_cast<double>(window_steps_);
  const double slower =
      expected == 0 ? 0 : std::max(0.0, static_cast<double>(window_inside_ns_) - expected);
  const double cost = static_cast<double>(fixed_ns) + slower;
  extra_ns_ += cost;
  total_ns_ += static_cast<double>(fixed_ns);
  // A window that came before its time leaves what was missing to the next.
  needed_ns_ = std::max(0.0, needed_ns_ - since_window_ns_);
  if (!asked) Space(cost, expected, slower, static_cast<double>(fixed_ns), step_ns);
  window_inside_ns_ = window_steps_ = 0;
  since_window_ns_ = 0;
  next_ns_ = now_ns + min_spacing_ns_;
}

// How far the next window lies from one of this cost, and how long it will be.
void Budget::Space(double cost, double expected, double slower, double fixed_ns, double step_ns) {
  const double wanted = allowed_ppm_ == 0 ? kMaxSpacingNs : kUnseen * cost * 1e6 / allowed_ppm_;
  const double worth = step_ns == 0 ? 0 : kWorthOpening * fixed_ns / step_ns;
  const auto most = static_cast<uint32_t>(
      std::clamp(worth, static_cast<double>(full_steps_), static_cast<double>(most_steps_)));
  const bool felt = slower > kFelt * expected;
  const double spread = felt ? SpreadNs(expected, slower / expected) : 0;
  if (wanted > kMaxSpacingNs || spread > kShortenAboveNs) {
    steps_ = std::max(1u, steps_ / 2);
  } else if (wanted < kMaxSpacingNs / 4 && spread < kShortenAboveNs / 2) {
    steps_ = std::min(most, steps_ * 2);
  }
  spacing_ns_ = std::min(std::max(wanted, spread), kMaxSpacingNs);
  needed_ns_ = std::min(needed_ns_ + spacing_ns_, kMaxSpacingNs);
}

void Budget::TimedWindowClosed(uint64_t now_ns, uint64_t duration_ns) {
  const double spread =
      std::min(SpreadNs(static_cast<double>(duration_ns), kFelt), kMaxTimedSpacingNs);
  WindowClosed(now_ns, 0);
  next_ns_ = now_ns + std::max(min_spacing_ns_, static_cast<uint64_t>(spread));
}

uint64_t Budget::CostPpm() const {
  return total_ns_ == 0 ? 0 : static_cast<uint64_t>(extra_ns_ / total_ns_ * 1e6);
}

uint64_t Budget::AttachedCostPpm() const {
  if (!attached_.known() || !detached_.known()) return 0;
  return static_cast<uint64_t>(std::max(0.0, attached_.mean() / detached_.mean() - 1) * 1e6);
}

}  // namespace spanlite
