// Which window the session wants next, and whether it may open.
#include <algorithm>
#include <cstdio>

#include "session.h"

namespace spanlite {
namespace {

// Why somebody asked for a window.
WindowReason ReasonOf(uint32_t word) {
  const auto reason = static_cast<WindowReason>(word);
  const bool told = reason == WindowReason::kThrottle || reason == WindowReason::kQueue ||
                    reason == WindowReason::kSlo;  // of a request, which the daemon sees end
  return told ? reason : WindowReason::kDemand;
}

}  // namespace

bool Session::WantsWindow(uint64_t now_ns, Plan* plan) {
  const Control& control = ring_->header()->control;
  const Level level = WantedLevel();
  budget_.SetAllowed(control.budget_ppm.load(std::memory_order_relaxed));
  *plan = {WindowReason::kContinuous, 0, 0};
  if (level == Level::kContinuous) return true;
  if (level != Level::kWindows) return false;
  const uint32_t request = control.capture_request.load(std::memory_order_acquire);
  if (request != last_request_) {
    last_request_ = request;
    *plan = {ReasonOf(control.capture_reason.load(std::memory_order_relaxed)),
             std::max(1u, control.capture_steps.load(std::memory_order_relaxed)), 0};
    return !ByItself(plan->reason) || allowance_.MayOverdraw(now_ns);
  }
  *plan = {slo_broken_ ? WindowReason::kSlo : WindowReason::kSchedule, budget_.WindowSteps(), 0};
  const bool wanted = DueByItself(now_ns);
  slo_broken_ = false;
  return wanted;
}

// As far as the budget of time and the memory that detaches take allow it.
bool Session::DueByItself(uint64_t now_ns) {
  if (slo_broken_ && budget_.MayOverdraw() && allowance_.MayOverdraw(now_ns)) return true;
  if (!budget_.Due(now_ns)) return false;
  if (allowance_.Left(now_ns)) return true;
  if (!said_rare_)
    std::fprintf(stderr, "spanlite agent: each detach takes %.2f MiB of GPU memory for good, so from "
                         "now on a window opens each %.0f s. SPANLITE_AGENT_DETACH_MIB_PER_DAY "
                         "allows more, or without a limit with 0.\n",
                 DetachAllowance::kDetachMib, allowance_.SpacingNs() / 1e9);
  said_rare_ = true;
  return false;
}

// Beside threads that launch CUPTI would stay attached, which costs more than the budget. So, unless
// asked for, no window opens by itself where it cannot be closed by a detach.
bool Session::Allowed(const Plan& plan, uint32_t thread_id) {
  if (!ByItself(plan.reason) || attachment_.WantedDetach() != Detach::kWhenProven ||
      !attachment_.OthersLaunch(thread_id))
    return true;
  if (!said_many_)
    std::fprintf(stderr, "spanlite agent: several threads launch, so windows open on demand only. "
                         "SPANLITE_AGENT_DETACH=held opens them while the others are held.\n");
  said_many_ = true;
  return false;
}

}  // namespace spanlite
