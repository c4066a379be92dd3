#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "clock.h"

namespace spanlite {
namespace {

constexpr auto kTick = std::chrono::milliseconds(200);
constexpr uint64_t kClockEveryNs = 1'000'000'000;
// A process without step ranges still gets windows, by the clock.
constexpr uint64_t kNoStepsNs = 5'000'000'000;
constexpr uint64_t kTimedWindowNs = 100'000'000;
// More than any CUPTI version has: an unknown number is refused, which is harmless.
constexpr uint32_t kMaxCbid = 1024;

// The calls whose records are needed to know which thread and range launched what.
const CUpti_runtime_api_trace_cbid kRuntimeLaunches[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_ptsz_v7000,
};
const CUpti_driver_api_trace_cbid kDriverLaunches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
};

const CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,            CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
};

}  // namespace

Session::Session(const Config& config, Ring* ring, Strings* strings)
    : config_(config),
      ring_(ring),
      strings_(strings),
      budget_(config.budget_ppm, config.window_steps, config.window_every_ns) {
  Control& control = ring_->header()->control;
  control.level = static_cast<uint32_t>(config.level);
  control.budget_ppm = config.budget_ppm;
  control.capture_steps = config.window_steps;
  control.step_slo_ns = config.step_slo_ns;
  control.detach = static_cast<uint32_t>(config.detach);
  control.api_calls = config.api_calls ? 1 : 0;
  worker_ = std::thread(&Session::Work, this);
}

Session::~Session() {
  {
    std::lock_guard<std::mutex> lock(wake_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void Session::Work() {
  WriteClock();
  uint64_t next_clock_ns = SteadyNs() + kClockEveryNs;
  std::unique_lock<std::mutex> lock(wake_mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, kTick);
    if (stopping_) return;
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

// Flushes, and opens windows by the clock where nobody names steps.
void Session::Tick(uint64_t now_ns) {
  bool attached, open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (off_) return;
    attached = attached_;
    open = window_.window != 0;
    const bool no_steps = now_ns - last_step_ns_ > kNoStepsNs;
    WindowReason reason;
    uint32_t steps;
    if (open) {
      const bool by_clock = window_thread_ == 0 || no_steps;
      const bool over = window_target_steps_ != 0 && SteadyNs() - window_fixed_ns_ > kTimedWindowNs;
      const bool unwanted = WantedLevel() < Level::kWindows;
      if (by_clock && (over || unwanted)) Close(Edge::kTimer);
    } else if (no_steps && driver_.Load() && WantsWindow(now_ns, &reason, &steps)) {
      Open(reason, steps, Edge::kTimer);
    }
  }
  // Not under the lock: CUPTI calls our buffer callback from here.
  if (attached && open) cupti_.ActivityFlushAll(0);
}

void Session::WriteClock() {
  ClockRecord record{};
  const uint64_t before = ReadClock(CLOCK_MONOTONIC_RAW);
  record.realtime_ns = NowNs();
  record.monotonic_ns = SteadyNs();
  const uint64_t after = ReadClock(CLOCK_MONOTONIC_RAW);
  record.monotonic_raw_ns = before + (after - before) / 2;
  record.uncertainty_ns = (after - before) / 2 + 1;
  if (open_window_.load(std::memory_order_relaxed) != 0) cupti_.GetTimestamp(&record.cupti_ns);
  ring_->Write(record, RecordType::kClock);
}

Level Session::WantedLevel() const {
  return static_cast<Level>(ring_->header()->control.level.load(std::memory_order_relaxed));
}

bool Session::WantsWindow(uint64_t now_ns, WindowReason* reason, uint32_t* steps) {
  const Control& control = ring_->header()->control;
  const Level level = WantedLevel();
  budget_.SetAllowed(control.budget_ppm.load(std::memory_order_relaxed));
  if (level == Level::kContinuous) {
    *reason = WindowReason::kContinuous;
    *steps = 0;  // until told otherwise
    return true;
  }
  if (level != Level::kWindows) return false;
  const uint32_t request = control.capture_request.load(std::memory_order_acquire);
  if (request != last_request_) {
    last_request_ = request;
    *reason = WindowReason::kDemand;
    *steps = std::max(1u, control.capture_steps.load(std::memory_order_relaxed));
    return true;
  }
  *steps = budget_.WindowSteps();
  if (slo_broken_) {
    slo_broken_ = false;
    *reason = WindowReason::kSlo;
    return true;
  }
  *reason = WindowReason::kSchedule;
  return budget_.Due(now_ns);
}

void Session::StepBegins(uint32_t thread_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_step_ns_ = SteadyNs();
  if (off_ || window_.window != 0) return;
  WindowReason reason;
  uint32_t steps;
  if (!WantsWindow(last_step_ns_, &reason, &steps)) return;
  window_thread_ = thread_id;
  Open(reason, steps, Edge::kStep);
}

void Session::StepEnds(uint32_t thread_id, uint32_t name, uint64_t start_ns, uint64_t end_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_step_ns_ = SteadyNs();
  const uint64_t duration_ns = end_ns > start_ns ? end_ns - start_ns : 0;
  const bool open = window_.window != 0;
  StepRecord record{};
  record.start_ns = start_ns;
  record.end_ns = end_ns;
  record.number = step_number_++;
  record.thread_id = thread_id;
  record.name = name;
  record.window = window_.window;
  record.covered = open && start_ns >= window_.open_ns;
  ring_->Write(record, RecordType::kStep);
  State& state = ring_->header()->state;
  state.steps.store(step_number_, std::memory_order_relaxed);
  const uint64_t slo_ns = ring_->header()->control.step_slo_ns.load(std::memory_order_relaxed);
  if (slo_ns != 0 && duration_ns > slo_ns && !open) slo_broken_ = true;
  if (off_) return;
  if (!record.covered) {
    if (open) window_.partial = 1;
    else budget_.StepOutside(duration_ns);
    return;
  }
  budget_.StepInside(duration_ns);
  ++window_.steps;
  state.steps_covered.fetch_add(1, std::memory_order_relaxed);
  const bool full = window_target_steps_ != 0 && window_.steps >= window_target_steps_;
  const bool unwanted = WantedLevel() < Level::kWindows ||
                        (window_target_steps_ == 0 && WantedLevel() != Level::kContinuous);
  if (thread_id == window_thread_ && (full || unwanted)) Close(Edge::kStep);
}

void Session::Open(WindowReason reason, uint32_t steps, Edge edge) {
  const uint64_t began_ns = SteadyNs();
  if (!loaded_) {
    std::string error;
    if (!cupti_.Load(config_.cupti_library, &error)) return SwitchOff(error);
    driver_.Load();
    activity_ = std::make_unique<Activity>(&cupti_, ring_, strings_, config_.buffer_bytes,
                                           config_.max_buffers);
    ring_->header()->cupti_version = cupti_.version;
    loaded_ = true;
  }
  if (!attached_ && !Attach()) return;
  activity_->SetWindow(next_window_);
  if (!EnableActivities()) return;
  window_ = WindowRecord{};
  window_.window = next_window_++;
  window_.reason = static_cast<uint32_t>(reason);
  window_.level = static_cast<uint32_t>(WantedLevel());
  window_.first_step = step_number_;
  window_target_steps_ = steps;
  if (edge == Edge::kTimer) window_thread_ = 0;
  open_window_.store(window_.window, std::memory_order_relaxed);
  State& state = ring_->header()->state;
  state.window_open.store(1, std::memory_order_relaxed);
  state.level.store(window_.level, std::memory_order_relaxed);
  window_fixed_ns_ = edge == Edge::kStep ? SteadyNs() - began_ns : SteadyNs();
  window_.open_ns = NowNs();
}

void Session::Close(Edge edge) {
  const uint64_t began_ns = SteadyNs();
  // Work of the last step may still run; its records exist only while activities are on.
  if (edge == Edge::kStep) Synchronize();
  window_.close_ns = NowNs();
  if (edge == Edge::kTimer) window_.partial = 1;
  cupti_.ActivityFlushAll(0);
  DisableActivities();
  const uint64_t fixed_ns = SteadyNs() - began_ns + (edge == Edge::kStep ? window_fixed_ns_ : 0);
  budget_.WindowClosed(SteadyNs(), fixed_ns);
  window_.steps_since_last = step_number_ - steps_at_last_close_;
  steps_at_last_close_ = step_number_;
  window_.cost_ppm = budget_.CostPpm();
  ring_->Write(window_, RecordType::kWindow);
  State& state = ring_->header()->state;
  state.windows.fetch_add(1, std::memory_order_relaxed);
  state.cost_ppm.store(window_.cost_ppm, std::memory_order_relaxed);
  state.window_open.store(0, std::memory_order_relaxed);
  window_ = WindowRecord{};
  open_window_.store(0, std::memory_order_relaxed);
  activity_->SetWindow(0);
  if (edge == Edge::kStep) DetachIfProven();
}

bool Session::Attach() {
  const uint64_t began_ns = SteadyNs();
  if (activity_->Register() != CUPTI_SUCCESS) {
    SwitchOff("cuptiActivityRegisterCallbacks failed: is another profiler attached?");
    return false;
  }
  // The same thread ids as NVTX ranges and /proc have.
  if (cupti_.SetThreadIdType != nullptr) cupti_.SetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  attached_ = true;
  State& state = ring_->header()->state;
  state.attached.store(1, std::memory_order_relaxed);
  state.attach_ns.store(SteadyNs() - began_ns, std::memory_order_relaxed);
  return true;
}

bool Session::EnableActivities() {
  // Another client (torch.profiler) may have taken the callbacks over since last time.
  activity_->Register();
  enabled_.clear();
  for (CUpti_ActivityKind kind : kKinds)
    if (cupti_.ActivityEnable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  const bool kernels =
      std::find(enabled_.begin(), enabled_.end(), CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) !=
      enabled_.end();
  if (!kernels) {
    DisableActivities();
    SwitchOff("kernel activity cannot be enabled (MPS, or another profiler holds the device)");
    return false;
  }
  const bool all_calls = ring_->header()->control.api_calls.load(std::memory_order_relaxed) != 0;
  if (!all_calls) FilterApiCalls();
  return true;
}

void Session::FilterApiCalls() {
  if (cupti_.ActivityEnableRuntimeApi == nullptr || cupti_.ActivityEnableDriverApi == nullptr) return;
  // The kinds are on; all calls but the launches go off again, which is the order that works
  // at any time. Numbers that this CUPTI does not know are refused.
  for (uint32_t id = 1; id < kMaxCbid; ++id) {
    const bool launch = std::any_of(std::begin(kRuntimeLaunches), std::end(kRuntimeLaunches),
                                    [id](auto keep) { return static_cast<uint32_t>(keep) == id; });
    if (!launch) cupti_.ActivityEnableRuntimeApi(static_cast<CUpti_CallbackId>(id), 0);
    const bool driver = std::any_of(std::begin(kDriverLaunches), std::end(kDriverLaunches),
                                    [id](auto keep) { return static_cast<uint32_t>(keep) == id; });
    if (!driver) cupti_.ActivityEnableDriverApi(static_cast<CUpti_CallbackId>(id), 0);
  }
}

void Session::DisableActivities() {
  for (CUpti_ActivityKind kind : enabled_) cupti_.ActivityDisable(kind);
  enabled_.clear();
}

void Session::Synchronize() {
  CUcontext context = nullptr;
  if (driver_.CtxGetCurrent == nullptr || driver_.CtxGetCurrent(&context) != CUDA_SUCCESS) return;
  // A capture on this thread would be broken by a synchronise; the step ends mid-capture then.
  if (context == nullptr) return;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.StreamIsCapturing != nullptr &&
      driver_.StreamIsCapturing(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS)
    return;
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) driver_.CtxSynchronize();
}

void Session::DetachIfProven() {
  const auto wish = static_cast<Detach>(
      ring_->header()->control.detach.load(std::memory_order_relaxed));
  if (wish != Detach::kWhenProven || cupti_.Finalize == nullptr) return;
  // Proof: this thread has just synchronised, and no other thread has ever launched.
  if (activity_->LaunchThreads() != 1 || driver_.CtxSynchronize == nullptr) return;
  cupti_.ActivityFlushAll(1);
  if (cupti_.Finalize() != CUPTI_SUCCESS) return;
  attached_ = false;
  ring_->header()->state.attached.store(0, std::memory_order_relaxed);
}

void Session::SwitchOff(const std::string& reason) {
  off_ = true;
  State& state = ring_->header()->state;
  std::strncpy(state.reason, reason.c_str(), sizeof state.reason - 1);
  state.disabled.store(1, std::memory_order_release);
  std::fprintf(stderr, "spanlite agent: no kernel activity: %s. Ranges are still recorded.\n",
               reason.c_str());
}

void Session::Shutdown() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (window_.window != 0 && !off_) {
    window_.partial = 1;
    window_.close_ns = NowNs();
    cupti_.ActivityFlushAll(1);  // the process ends: take what is there, finished or not
    ring_->Write(window_, RecordType::kWindow);
    window_ = WindowRecord{};
  }
  off_ = true;
}

void Session::AbandonAfterFork() {
  // Joining a thread that does not exist here would hang.
  worker_.detach();
  off_ = true;
}

}  // namespace spanlite
