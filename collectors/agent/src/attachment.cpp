#include "attachment.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>

#include "clock.h"
#include "launch_calls.h"
#include "nvtx.h"
#include "step_lock.h"

namespace spanlite {
namespace {

// Calls that CUDA versions newer than our headers may have.
constexpr uint32_t kNewerCalls = 128;
// Whole steps that must have shown one single launching thread before CUPTI detaches.
constexpr uint64_t kProofSteps = 10;
// A buffer that all threads share comes back when all in it is complete; by then it has.
constexpr uint64_t kSharedLateNs = 1'000'000'000;

const CUpti_ActivityKind kCopyKinds[] = {
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
};

// A process whose threads do not come together in time won't the next time either, and each try
// keeps those that come waiting: after so many in vain the next ones are left out, 8 at first.
constexpr uint32_t kFailedHolds = 3;
constexpr uint32_t kSkippedHolds = 8, kMostSkippedHolds = 1024;

std::unordered_set<uint32_t> LivingThreads() {
  std::unordered_set<uint32_t> threads;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr)
    threads.insert(static_cast<uint32_t>(std::strtoul(entry->d_name, nullptr, 10)));
  if (folder != nullptr) closedir(folder);
  return threads;
}

// " 17 (engine) 18 (copies)": threads by number and name.
std::string Names(const std::vector<uint32_t>& threads) {
  std::string text;
  for (uint32_t thread : threads) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
    std::string name;
    std::getline(file, name);
    text += " " + std::to_string(thread) + " (" + name + ")";
  }
  return text;
}

}  // namespace

bool Attachment::Load(std::string* error) {
  if (activity_ != nullptr) return true;
  if (!cupti_.Load(config_.cupti_library, error)) return false;
  driver_.Load();
  activity_ = std::make_unique<Activity>(&cupti_, ring_, strings_, windows_, config_.buffer_bytes,
                                         config_.max_buffers);
  activity_->KeepWaits(config_.sync);
  ring_->header()->cupti_version = cupti_.version;
  return true;
}

Attachment::Enabled Attachment::Enable(Moment moment, uint32_t thread_id, bool all_calls, bool wait,
                                       std::string* error) {
  const bool continuous = ring_->header()->control.level.load(std::memory_order_relaxed) ==
                          static_cast<uint32_t>(Level::kContinuous);
  if (!Load(error)) return Enabled::kNo;
  held_.clear();
  const bool fresh = !attached();
  const bool same_threads = fresh && moment == Moment::kStepBoundary && SameThreads();
  if (fresh)
    if (const Enabled done = Attach(moment, thread_id, wait, error); done != Enabled::kYes) return done;
  if (!fresh) SeeWhetherTaken(moment, thread_id);
  KeepLaunchesApart(thread_id);
  records_before_ = activity_->Records();
  activity_->KeepAllCalls(all_calls);
  // CUPTI's own filter of calls: cheaper, but it must be set while nobody is inside a call, and
  // once set it must not be touched again before a detach, or calls lose their correlation.
  const bool to_stay = fresh && moment == Moment::kCudaInit && continuous;
  // A thread that has come since the last detach may be making calls without our knowing.
  const bool to_detach = same_threads && CanDetach() && OnlyLauncher(thread_id) &&
                         proof_steps_ >= kProofSteps;
  // Copies and sets are recorded where nothing is to be switched off again, or at the user's risk.
  const bool copies = config_.copies || to_stay;
  const bool on = EnableKinds(!all_calls && (to_stay || to_detach), copies, error);
  return on ? Enabled::kYes : Enabled::kNo;
}

// Where CUPTI will stay beside other launching threads; windows that end in a detach need no gate.
void Attachment::KeepLaunchesApart(uint32_t thread_id) {
  const bool stays = WantedDetach() == Detach::kNever || (held_.empty() && OthersLaunch(thread_id));
  if (!config_.gate || !stays) return;
  std::lock_guard<std::mutex> lock(calls_);
  if (gate_.Subscribe(cupti_) || said_no_gate_) return;
  said_no_gate_ = true;
  std::fprintf(stderr, "spanlite agent: no gate: another CUPTI client is told of calls.\n");
}

// A window that brought nothing: another client (torch.profiler) took CUPTI's buffers. They are
// taken back only where nothing is in flight.
void Attachment::SeeWhetherTaken(Moment moment, uint32_t thread_id) {
  if (!waiting_ || activity_->Records() != records_before_) return;
  if (shared_ && SteadyNs() - judged_ns_ < kSharedLateNs) return;
  if (!said_taken_)
    std::fprintf(stderr, "spanlite agent: a window brought no record: another CUPTI client "
                         "(torch.profiler?) has the buffers.\n");
  said_taken_ = true;
  // Where no launch has been seen yet, another thread may be at one.
  const std::vector<uint32_t> known = activity_->LaunchThreads();
  const bool seen = std::find(known.begin(), known.end(), thread_id) != known.end();
  if (moment != Moment::kStepBoundary || !seen || !OnlyLauncher(thread_id) || !Synchronize()) return;
  std::lock_guard<std::mutex> lock(calls_);
  activity_->Register();
}

Attachment::Enabled Attachment::Attach(Moment moment, uint32_t thread_id, bool wait,
                                       std::string* error) {
  // A wait for the device would break a capture on another thread, so only where none is known
  // to launch or all that do are held, and only for the sake of a later detach.
  const bool at_step = moment == Moment::kStepBoundary;
  // Could they be held once, a thread that rests now or is slow will come to a step's edge again.
  const bool met_before = detached_ever_ && WantedDetach() == Detach::kWhenHeld;
  const bool alone = at_step && HoldOthers(thread_id, met_before);
  if (at_step && !alone && met_before && wait) return Enabled::kLater;
  const bool idle = moment == Moment::kCudaInit || (alone && Synchronize());
  loose_at_attach_ = at_step && idle ? LivingThreads() : std::unordered_set<uint32_t>{};
  for (uint32_t held : held_) loose_at_attach_.erase(held);
  loose_at_attach_.erase(thread_id);
  const uint64_t began_ns = SteadyNs();
  std::lock_guard<std::mutex> lock(calls_);
  shared_ = false;
  graph_trace_ = moment == Moment::kCudaInit && config_.graph_trace;
  if (WantedDetach() == Detach::kNever || (at_step && !idle)) ShareBuffers();
  if (activity_->Register() != CUPTI_SUCCESS) {
    *error = "cuptiActivityRegisterCallbacks failed: is another profiler attached?";
    return Enabled::kNo;
  }
  // The same thread ids as NVTX ranges and /proc have.
  if (cupti_.SetThreadIdType != nullptr) cupti_.SetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  if (moment == Moment::kCudaInit) BeforeFirstContext();
  attached_idle_ = idle;
  waiting_ = false;
  renewed_at_ = activity_->Kernels();
  attached_.store(true, std::memory_order_release);
  // Whatever CUPTI does at exit it does after this, and the agent's own thread is at rest by then.
  static std::once_flag once;
  std::call_once(once, [] { std::atexit(&StopAgent); });
  State& state = ring_->header()->state;
  state.attached.store(1, std::memory_order_relaxed);
  state.attach_ns.store(SteadyNs() - began_ns, std::memory_order_relaxed);
  return Enabled::kYes;
}

// Where CUPTI stays beside threads that launch, and has a buffer for each thread, which is its default,
// a thread that ends a call has been seen to write into one that was gone. A shared one comes back
// only when all in it is complete, so its launches are known too late for a detach.
void Attachment::ShareBuffers() {
  if (!config_.shared_buffers || cupti_.ActivitySetAttribute == nullptr) return;
  uint8_t per_thread = 0;
  size_t bytes = sizeof per_thread;
  shared_ = cupti_.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, &bytes,
                                        &per_thread) == CUPTI_SUCCESS;
}

// What CUPTI takes only before a context, and with it any graph, exists.
void Attachment::BeforeFirstContext() {
  State& state = ring_->header()->state;
  if (config_.hw_trace) {
    const bool on = cupti_.ActivityEnableHWTrace != nullptr &&
                    cupti_.ActivityEnableHWTrace(1) == CUPTI_SUCCESS;
    state.hw_trace.store(static_cast<uint32_t>(on ? HwTrace::kOn : HwTrace::kRefused));
  }
  if (graph_trace_) {
    const bool on = cupti_.ActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) == CUPTI_SUCCESS;
    state.graph_trace.store(on ? 1 : 0);
  }
}

// Calls go on before the device's work and off after it: a kernel recorded while calls are not
// carries the correlation id of some earlier call.
bool Attachment::EnableKinds(bool only_launches, bool copies, std::string* error) {
  std::lock_guard<std::mutex> lock(calls_);
  enabled_.clear();
  for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER})
    if (cupti_.ActivityEnable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  if (only_launches) KeepLaunchesOnly();
  const std::pair<bool, CUpti_ActivityKind> more[] = {
      {config_.sync, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION},
      {config_.overhead, CUPTI_ACTIVITY_KIND_OVERHEAD},
      {config_.external, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION},
  };
  for (const auto& [wanted, kind] : more)
    if (wanted && cupti_.ActivityEnable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  copied_ever_ = copied_ever_ || copies;
  for (CUpti_ActivityKind kind : kCopyKinds)
    if (copies && cupti_.ActivityEnable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  const auto kernels = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  if (cupti_.ActivityEnable(kernels) != CUPTI_SUCCESS) {
    DisableKinds();
    *error = "kernel activity cannot be enabled (MPS, or another profiler holds the device)";
    return false;
  }
  enabled_.push_back(kernels);
  return true;
}

void Attachment::KeepLaunchesOnly() {
  if (cupti_.ActivityEnableRuntimeApi == nullptr || cupti_.ActivityEnableDriverApi == nullptr) return;
  // The kinds are on; all calls but launches and waits go off again, which is the order that works.
  // Numbers that this CUPTI does not know are refused, which does no harm.
  for (uint32_t id = 1; id < CUPTI_RUNTIME_TRACE_CBID_SIZE + kNewerCalls; ++id)
    if (!Recorded(RuntimeUse(id), config_.sync)) cupti_.ActivityEnableRuntimeApi(id, 0);
  for (uint32_t id = 1; id < CUPTI_DRIVER_TRACE_CBID_SIZE + kNewerCalls; ++id)
    if (!Recorded(DriverUse(id), config_.sync)) cupti_.ActivityEnableDriverApi(id, 0);
}

void Attachment::Disable() {
  std::lock_guard<std::mutex> lock(calls_);
  DisableKinds();
}

void Attachment::DisableKinds() {
  for (; !enabled_.empty(); enabled_.pop_back()) cupti_.ActivityDisable(enabled_.back());
}

bool Attachment::Synchronize() {
  CUcontext context = nullptr;
  if (driver_.CtxGetCurrent == nullptr || driver_.CtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr)
    return false;
  // A capture would be broken by a synchronise.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.StreamIsCapturing == nullptr ||
      driver_.StreamIsCapturing(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE)
    return false;
  return driver_.CtxSynchronize() == CUDA_SUCCESS;
}

std::vector<uint32_t> Attachment::OtherLaunchers(uint32_t thread_id) {
  // A thread that has ended cannot launch any more, and programs may have one for each request; but
  // it may have been at it when CUPTI was attached.
  for (uint32_t ended : activity_->ForgetEnded())
    if (loose_at_attach_.count(ended) != 0) attached_idle_ = false;
  std::vector<uint32_t> others = activity_->LaunchThreads();
  others.erase(std::remove(others.begin(), others.end(), thread_id), others.end());
  return others;
}

// Graph trace could not be had again, so with it CUPTI stays, and is from the start as where it must.
Detach Attachment::WantedDetach() const {
  if (graph_trace_) return Detach::kNever;
  return static_cast<Detach>(ring_->header()->control.detach.load(std::memory_order_relaxed));
}

// Whether no other thread launches before the session's lock is free again.
bool Attachment::HoldOthers(uint32_t thread_id, bool met_before) {
  if (WantedDetach() == Detach::kNever) return false;
  std::vector<uint32_t> others = OtherLaunchers(thread_id);
  if (others.empty()) return true;
  // With several contexts the device's work of one may wait for what a held thread has yet to
  // launch in another (collectives), and a wait for it would never end.
  if (activity_->OnlyContext() == 0) SayWhyNot("work runs in more than one context");
  if (WantedDetach() != Detach::kWhenHeld || activity_->OnlyContext() == 0) return false;
  if (!met_before && skipped_holds_ != 0) {
    --skipped_holds_;
    return false;
  }
  if (!hold_(others)) {
    if (met_before || ++failed_holds_ < kFailedHolds) return false;
    if (failed_holds_ == kFailedHolds && !said_loose_)
      std::fprintf(stderr, "spanlite agent: threads that launch do not come to a step's edge "
                           "together (one of%s): CUPTI stays attached; tried again more rarely.\n",
                   Names(others).c_str());
    said_loose_ = true;
    const uint32_t doublings = std::min(failed_holds_ - kFailedHolds, 7u);
    skipped_holds_ = std::min(kSkippedHolds << doublings, kMostSkippedHolds);
    return false;
  }
  failed_holds_ = 0;
  held_ = std::move(others);
  return true;
}

// Whether every other thread known to launch is held.
bool Attachment::AllHeld(uint32_t thread_id) {
  const std::vector<uint32_t> others = OtherLaunchers(thread_id);
  return std::all_of(others.begin(), others.end(), [this](uint32_t other) {
    return std::find(held_.begin(), held_.end(), other) != held_.end();
  });
}

// Whether the attach had no work in flight, as far as is known by now: a thread that was there,
// not held, and has since been seen launching may have been at it then.
bool Attachment::IdleAtAttach() {
  if (!attached_idle_) return false;
  const std::vector<uint32_t> launchers = activity_->LaunchThreads();
  attached_idle_ = std::none_of(launchers.begin(), launchers.end(), [this](uint32_t launcher) {
    return loose_at_attach_.count(launcher) != 0;
  });
  return attached_idle_;
}

bool Attachment::SameThreads() const {
  const std::unordered_set<uint32_t> now = LivingThreads();
  return std::all_of(now.begin(), now.end(), [this](uint32_t thread) {
    return alive_at_detach_.count(thread) != 0;
  });
}

bool Attachment::CanDetach() {
  return WantedDetach() != Detach::kNever && attached() && !shared_ && !copied_ever_ &&
         !finalize_failed_ && cupti_.Finalize != nullptr && IdleAtAttach();
}

// A graph's launch takes a place for each of its nodes in CUPTI's buffers on the device, of copies too.
// Where those are not recorded their places are never free again, nor are the buffers; there are 250,
// of 100,000 places each, and then no kernel is recorded any more (seen with CUPTI 13.0.85).
bool Attachment::WantsRenewal() {
  if (!attached() || copied_ever_ || config_.renew_kernels == 0 ||
      activity_->Kernels() - renewed_at_ < config_.renew_kernels)
    return false;
  renewed_at_ = activity_->Kernels();
  return CanDetach();
}

bool Attachment::MayDetach(uint32_t thread_id, uint64_t whole_steps) {
  held_.clear();
  // Its latest calls may show a thread that launches, or captures, which a wait would break.
  if (WantedDetach() != Detach::kNever) Flush();
  if (attached() && !IdleAtAttach()) SayWhyNot("it attached while work may have been in flight");
  return CanDetach() && proof_steps_ + whole_steps >= kProofSteps && HoldOthers(thread_id);
}

// Once, and only to who asked for a detach that others' launches do not prevent.
void Attachment::SayWhyNot(const char* reason) {
  if (said_why_not_ || WantedDetach() != Detach::kWhenHeld) return;
  said_why_not_ = true;
  std::fprintf(stderr, "spanlite agent: CUPTI stays attached: %s.\n", reason);
}

void Attachment::Judge(uint64_t whole_steps) {
  Flush();
  fruitful_ = activity_->Records() != records_before_;
  if (fruitful_) proof_steps_ += whole_steps;
  waiting_ = true;
  judged_ns_ = SteadyNs();
}

bool Attachment::DetachIfProven(uint32_t thread_id) {
  // A window without a record proves nothing: another client may have the buffers.
  // And its last records may show a launching thread that was not known before.
  if (activity_->OnlyContext() == 0) SayWhyNot("work runs in more than one context");
  if (!fruitful_ || proof_steps_ < kProofSteps || activity_->OnlyContext() == 0 || !CanDetach() ||
      !AllHeld(thread_id))
    return false;
  Flush(true);
  std::lock_guard<std::mutex> lock(calls_);
  if (const CUptiResult result = cupti_.Finalize(); result != CUPTI_SUCCESS) {
    std::fprintf(stderr, "spanlite agent: cuptiFinalize failed (%d); CUPTI stays attached.\n", result);
    finalize_failed_ = true;
    return false;
  }
  gate_.Forget();
  attached_.store(false, std::memory_order_release);
  detached_ever_ = true;
  alive_at_detach_ = LivingThreads();
  State& state = ring_->header()->state;
  state.attached.store(0, std::memory_order_relaxed);
  state.detaches.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Attachment::Flush(bool forced) {
  std::lock_guard<std::mutex> lock(calls_);
  if (attached()) cupti_.ActivityFlushAll(forced ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
}

uint64_t Attachment::CuptiTime() {
  std::lock_guard<std::mutex> lock(calls_);
  uint64_t time_ns = 0;
  if (attached()) cupti_.GetTimestamp(&time_ns);
  return time_ns;
}

}  // namespace spanlite
