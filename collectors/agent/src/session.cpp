#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "clock.h"

namespace spanlite {
namespace {

constexpr uint64_t kTickNs = 200'000'000;
constexpr uint64_t kClockEveryNs = 1'000'000'000;
// A process that names no steps still gets windows, by the clock.
constexpr uint64_t kNoStepsNs = 5'000'000'000;  // after cuInit
constexpr uint64_t kTimedWindowNs = 100'000'000;
// How long after its last step a window stays open for work that still runs.
constexpr uint64_t kMinGraceNs = 5'000'000;
constexpr uint64_t kMaxGraceNs = 200'000'000;
// A continuous window is reported, and begins anew, this often.
constexpr uint64_t kRotateNs = 10'000'000'000;
// CUPTI's last buffers come late.
constexpr uint64_t kFlushAfterNs = 1'000'000'000;

}  // namespace

Session::Session(const Config& config, Ring* ring, Strings* strings,
                 const std::string& why_ranges_only)
    : config_(config),
      ring_(ring),
      attachment_(config, ring, strings, &windows_,
                  [this](const std::vector<uint32_t>& threads) { return Hold(threads); }),
      budget_(config.budget_ppm, config.window_steps, config.window_every_ns),
      allowance_(config.detach_mib_a_day) {
  if (!why_ranges_only.empty()) NoKernels(why_ranges_only);
  worker_ = std::thread(&Session::Work, this);
}

void Session::SetDefaults(const Config& config, Header* header) {
  Control& control = header->control;
  control.level = static_cast<uint32_t>(config.level);
  control.budget_ppm = config.budget_ppm;
  control.capture_steps = config.window_steps == 0 ? Budget::kUsualSteps : config.window_steps;
  control.step_slo_ns = config.step_slo_ns;
  control.detach = static_cast<uint32_t>(config.detach);
  control.api_calls = config.api_calls ? 1 : 0;
  header->state.level = static_cast<uint32_t>(std::min(config.level, Level::kRanges));
}

void Session::Work() {
  WriteClock();
  uint64_t next_clock_ns = SteadyNs() + kClockEveryNs;
  std::unique_lock<std::mutex> lock(wake_mutex_);
  for (bool more = true; more && !stopping_; lock.lock()) {
    lock.unlock();
    more = ring_->MapMore();
  }
  while (!stopping_) {
    const auto tick = std::chrono::nanoseconds(hurry_ ? kMinGraceNs : kTickNs);
    wake_.wait_for(lock, tick);
    if (stopping_) return;
    hurry_ = false;
    lock.unlock();
    const uint64_t now_ns = SteadyNs();
    if (now_ns >= next_clock_ns) {
      WriteClock();
      next_clock_ns = now_ns + kClockEveryNs;
    }
    Tick(now_ns);
    lock.lock();
  }
}

// Flushes, closes what is to be closed, and opens windows by the clock where nobody names steps.
void Session::Tick(uint64_t now_ns) {
  bool flush, no_steps, soon = false;
  {
    std::lock_guard<StepLock> lock(mutex_);
    if (off_) return;
    flush = IsOpen() || now_ns < flush_until_ns_;
    no_steps = step_number_ == 0 && !IsOpen();
  }
  // Not under the lock, where steps, and cuInit, would wait for it.
  if (flush) attachment_.Flush();
  // An attach before cuInit could never be undone, and would take the place of the first window.
  if (no_steps && cuda_since_ns_ == 0 && driver_.Initialised()) cuda_since_ns_ = now_ns;
  const bool by_clock = cuda_since_ns_ != 0 && now_ns - cuda_since_ns_ > kNoStepsNs;
  {
    std::lock_guard<StepLock> lock(mutex_);
    if (!off_) TickLocked(now_ns, by_clock && step_number_ == 0, &soon);
  }
  std::lock_guard<std::mutex> lock(wake_mutex_);
  hurry_ = hurry_ || soon;
}

void Session::TickLocked(uint64_t now_ns, bool by_clock, bool* soon) {
  Plan plan;
  if (close_at_ns_ != 0) {
    if (now_ns >= close_at_ns_) Close();
    else *soon = true;
  } else if (IsOpen()) {
    if (step_number_ == 0 && (Full(now_ns) || Unwanted())) Close();
    else if (plan_.reason == WindowReason::kContinuous && now_ns - opened_ns_ > kRotateNs) Rotate();
  } else if (by_clock && WantsWindow(now_ns, &plan)) {
    if (plan.reason != WindowReason::kContinuous) plan.duration_ns = kTimedWindowNs;
    Open(plan, Moment::kAnyTime, 0);
  }
}

void Session::WriteClock() {
  ClockRecord record{};
  const uint64_t before = ReadClock(CLOCK_MONOTONIC_RAW);
  record.realtime_ns = NowNs();
  record.monotonic_ns = SteadyNs();
  const uint64_t after = ReadClock(CLOCK_MONOTONIC_RAW);
  record.monotonic_raw_ns = before + (after - before) / 2;
  record.uncertainty_ns = (after - before) / 2 + 1;
  bool open;
  {
    std::lock_guard<StepLock> lock(mutex_);
    open = IsOpen() && !off_;
  }
  if (open) record.cupti_ns = attachment_.CuptiTime();
  ring_->Write(record, RecordType::kClock);
}

Level Session::WantedLevel() const {
  return static_cast<Level>(ring_->header()->control.level.load(std::memory_order_relaxed));
}

void Session::CudaBegins() {
  std::lock_guard<StepLock> lock(mutex_);
  const Level level = WantedLevel();
  if (off_ || IsOpen() || attachment_.attached() || level < Level::kWindows) return;
  const bool learn = config_.learn_ns != 0 || config_.graph_trace || config_.hw_trace;
  if (level == Level::kContinuous) {
    Open({WindowReason::kContinuous, 0, 0}, Moment::kCudaInit, 0);
  } else if (learn) {
    Open({WindowReason::kLearn, config_.learn_steps, std::max<uint64_t>(1, config_.learn_ns)},
         Moment::kCudaInit, 0);
  }
}

void Session::StepBegins(uint32_t thread_id) {
  // No window is open, none is wanted, and nobody is to be held.
  if (WantedLevel() <= Level::kRanges && !attachment_.attached()) return;
  AtBoundary lock(&mutex_, thread_id);
  Plan plan;
  const uint64_t now_ns = CoarseSteadyNs();
  if (off_ || IsOpen() || !WantsWindow(now_ns, &plan)) return;
  if (Allowed(plan, thread_id)) Open(plan, Moment::kStepBoundary, thread_id);
  else budget_.WindowClosed(now_ns, 0);
}

void Session::StepEnds(uint32_t thread_id, uint32_t name, uint64_t start_ns, uint64_t end_ns) {
  AtBoundary lock(&mutex_, thread_id);
  StepRecord record{};
  record.start_ns = start_ns;
  record.end_ns = end_ns;
  record.number = step_number_++;
  record.thread_id = thread_id;
  record.name = name;
  ring_->header()->state.steps.store(step_number_, std::memory_order_relaxed);
  const bool last = !off_ && CountStep(&record);
  // Before its window's: who reads that knows all of its steps.
  ring_->Write(record, RecordType::kStep);
  if (last) End(thread_id);
}

// Counts the step inside or outside. Whether it is the last of its window.
bool Session::CountStep(StepRecord* record) {
  const uint64_t duration_ns =
      record->end_ns > record->start_ns ? record->end_ns - record->start_ns : 0;
  const Control& control = ring_->header()->control;
  const uint64_t slo_ns = control.step_slo_ns.load(std::memory_order_relaxed);
  const bool slow = slo_ns != 0 && duration_ns > slo_ns;
  last_duration_ns_ = duration_ns;
  if (!IsOpen() && record->start_ns < last_close_ns_) {
    record->window = last_window_;  // another thread's step closed it: this one was cut
    return false;
  }
  if (!IsOpen()) {
    if (slow) slo_broken_ = true;
    budget_.StepOutside(duration_ns, attachment_.attached());
    return false;
  }
  record->window = window_.window;
  record->covered = close_at_ns_ == 0 && record->start_ns >= window_.open_ns;
  if (!record->covered) {
    window_.partial = 1;
    return false;
  }
  // What is asked for all the time is no window's cost, and delays none after it; nor is what a
  // step over its SLO takes, for whose sake the window is there.
  if (plan_.reason != WindowReason::kLearn && plan_.reason != WindowReason::kContinuous && !slow)
    budget_.StepInside(duration_ns);
  ++window_.steps;
  ring_->header()->state.steps_covered.fetch_add(1, std::memory_order_relaxed);
  return Full(SteadyNs()) || Unwanted() || ToBeRenewed();
}

// The window's last whole step has ended.
void Session::End(uint32_t thread_id) {
  // Another thread's step may be under way at this moment; unless that can be held at its end,
  // nothing is detached.
  const Control& control = ring_->header()->control;
  const bool may_hold = control.detach.load(std::memory_order_relaxed) ==
                        static_cast<uint32_t>(Detach::kWhenHeld);
  if (window_thread_ == 0 || thread_id == window_thread_ || may_hold) Finish(thread_id);
  else FinishSoon();
}

bool Session::Full(uint64_t now_ns) const {
  return (plan_.steps != 0 && window_.steps >= plan_.steps) ||
         (plan_.duration_ns != 0 && now_ns - opened_ns_ >= plan_.duration_ns);
}

bool Session::Unwanted() const {
  const Level level = WantedLevel();
  return level < Level::kWindows ||
         (plan_.reason == WindowReason::kContinuous && level != Level::kContinuous);
}

// Continuous: the window ends in a detach, and the next step opens another.
bool Session::ToBeRenewed() {
  return plan_.reason == WindowReason::kContinuous && attachment_.WantsRenewal();
}

void Session::Open(const Plan& plan, Moment moment, uint32_t thread_id) {
  const uint64_t began_ns = SteadyNs();
  const Control& control = ring_->header()->control;
  std::string error;
  const bool all_calls = control.api_calls.load(std::memory_order_relaxed) != 0;
  // A window that somebody asked for is worth an attach that stays.
  const bool wait = ByItself(plan.reason) || plan.reason == WindowReason::kContinuous;
  switch (attachment_.Enable(moment, thread_id, all_calls, wait, &error)) {
    case Attachment::Enabled::kNo: return SwitchOff(error);
    case Attachment::Enabled::kLater: return budget_.WindowClosed(SteadyNs(), CostSince(began_ns));
    case Attachment::Enabled::kYes: break;
  }
  window_thread_ = thread_id;
  Start(plan);
  fixed_ns_ = moment == Moment::kStepBoundary ? CostSince(began_ns) : 0;
}

void Session::Start(const Plan& plan) {
  plan_ = plan;
  close_at_ns_ = 0;
  window_ = WindowRecord{};
  window_.window = next_window_++;
  window_.reason = static_cast<uint32_t>(plan.reason);
  window_.level = static_cast<uint32_t>(WantedLevel());
  window_.first_step = step_number_;
  State& state = ring_->header()->state;
  state.window_open.store(1, std::memory_order_relaxed);
  state.level.store(window_.level, std::memory_order_relaxed);
  opened_ns_ = SteadyNs();
  window_.open_ns = NowNs();
  windows_.Open(window_.window, window_.open_ns);
}

void Session::Finish(uint32_t thread_id) {
  const uint64_t began_ns = SteadyNs();
  if (!attachment_.MayDetach(thread_id, window_.steps) || !attachment_.Synchronize()) {
    fixed_ns_ += CostSince(began_ns);
    return FinishSoon();
  }
  Close();
  if (attachment_.DetachIfProven(thread_id)) allowance_.Take(SteadyNs());
  // Paid by the application: the next window's distance takes it into account.
  fixed_ns_ += CostSince(began_ns);
  Settle();
}

bool Session::Hold(const std::vector<uint32_t>& threads) {
  return mutex_.Hold(threads, config_.hold_ns);
}

uint64_t Session::CostSince(uint64_t began_ns) const {
  return (SteadyNs() - began_ns) * (1 + attachment_.held_threads());
}

void Session::Settle() {
  const bool continuous = plan_.reason == WindowReason::kContinuous;
  budget_.WindowClosed(SteadyNs(), continuous ? 0 : fixed_ns_,
                       continuous || plan_.reason == WindowReason::kDemand);
  State& state = ring_->header()->state;
  state.window_spacing_ms.store(static_cast<uint32_t>(budget_.SpacingNs() / 1'000'000),
                                std::memory_order_relaxed);
  state.window_steps.store(budget_.WindowSteps(), std::memory_order_relaxed);
  state.window_cost_ns.store(budget_.CostNs(), std::memory_order_release);
}

void Session::FinishSoon() {
  const uint64_t grace_ns = std::clamp(2 * last_duration_ns_, kMinGraceNs, kMaxGraceNs);
  close_at_ns_ = SteadyNs() + grace_ns;
  Settle();
  std::lock_guard<std::mutex> lock(wake_mutex_);
  hurry_ = true;
  wake_.notify_all();
}

void Session::Close() {
  attachment_.Judge(window_.steps);
  attachment_.Disable();
  if (window_.steps == 0) {
    window_.partial = 1;  // by the clock: nobody knows what it cut
    budget_.TimedWindowClosed(SteadyNs(), SteadyNs() - opened_ns_);
  }
  Report();
  last_window_ = window_.window;
  last_close_ns_ = window_.close_ns;
  window_ = WindowRecord{};
  close_at_ns_ = 0;
  flush_until_ns_ = SteadyNs() + kFlushAfterNs;
  State& state = ring_->header()->state;
  state.window_open.store(0, std::memory_order_relaxed);
  state.level.store(static_cast<uint32_t>(std::min(WantedLevel(), Level::kRanges)),
                    std::memory_order_relaxed);
}

void Session::Report() {
  window_.close_ns = NowNs();
  windows_.Close(window_.close_ns);
  window_.steps_since_last = step_number_ - steps_at_last_close_;
  steps_at_last_close_ = step_number_;
  window_.cost_ppm = budget_.CostPpm();
  ring_->Write(window_, RecordType::kWindow);
  State& state = ring_->header()->state;
  state.windows.fetch_add(1, std::memory_order_relaxed);
  state.cost_ppm.store(window_.cost_ppm, std::memory_order_relaxed);
  state.attached_cost_ppm.store(budget_.AttachedCostPpm(), std::memory_order_relaxed);
}

// Continuous: the record of one stretch goes out, recording goes on. The step that is under way
// lies in two stretches and so counts in neither.
void Session::Rotate() {
  Report();
  Start(plan_);
}

void Session::SwitchOff(const std::string& reason) {
  NoKernels(reason);
  std::fprintf(stderr, "spanlite agent: no kernel activity: %s. Ranges are still recorded.\n",
               reason.c_str());
}

void Session::NoKernels(const std::string& reason) {
  off_ = true;
  State& state = ring_->header()->state;
  std::strncpy(state.reason, reason.c_str(), sizeof state.reason - 1);
  state.disabled.store(1, std::memory_order_release);
}

void Session::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(wake_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
  std::lock_guard<StepLock> lock(mutex_);
  // The process ends: take what is there, finished or not.
  if (!off_ && (IsOpen() || SteadyNs() < flush_until_ns_)) attachment_.Flush(true);
  if (IsOpen() && !off_) {
    if (close_at_ns_ == 0) window_.partial = 1;
    Report();
    window_ = WindowRecord{};
  }
  off_ = true;
}

}  // namespace spanlite
