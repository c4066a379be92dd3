#include "attachment.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <unistd.h>

#include "clock.h"

namespace spanlite {
namespace {

// Calls that CUDA versions newer than our headers may have.
constexpr uint32_t kNewerCalls = 128;
// Windows that must have shown the same single launching thread before CUPTI detaches.
constexpr uint32_t kProofWindows = 2;

// The calls whose records are needed to know which thread and range launched what.
const uint32_t kRuntimeLaunches[] = {
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
const uint32_t kDriverLaunches[] = {
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

template <size_t N>
bool Holds(const uint32_t (&ids)[N], uint32_t id) {
  return std::find(std::begin(ids), std::end(ids), id) != std::end(ids);
}

bool ThreadLives(uint32_t thread_id) {
  return access(("/proc/self/task/" + std::to_string(thread_id)).c_str(), F_OK) == 0;
}

}  // namespace

bool Attachment::Load(std::string* error) {
  if (activity_ != nullptr) return true;
  if (!cupti_.Load(config_.cupti_library, error)) return false;
  driver_.Load();
  activity_ = std::make_unique<Activity>(&cupti_, ring_, strings_, windows_, config_.buffer_bytes,
                                         config_.max_buffers);
  ring_->header()->cupti_version = cupti_.version;
  return true;
}

bool Attachment::Enable(Moment moment, bool all_calls, std::string* error) {
  if (!Load(error)) return false;
  if (!attached() && !Attach(moment, error)) return false;
  if (judged_ && !fruitful_) {
    // The last window brought nothing: another client (torch.profiler) took CUPTI's buffers.
    activity_->Register();
    if (!said_taken_)
      std::fprintf(stderr, "spanlite agent: another CUPTI client took the buffers over; "
                           "taking them back for the next windows.\n");
    said_taken_ = true;
  }
  records_before_ = activity_->Records();
  return EnableKinds(all_calls, error);
}

bool Attachment::Attach(Moment moment, std::string* error) {
  const bool idle =
      moment == Moment::kCudaInit || (moment == Moment::kStepBoundary && Synchronize());
  const uint64_t began_ns = SteadyNs();
  std::lock_guard<std::mutex> lock(calls_);
  if (activity_->Register() != CUPTI_SUCCESS) {
    *error = "cuptiActivityRegisterCallbacks failed: is another profiler attached?";
    return false;
  }
  // The same thread ids as NVTX ranges and /proc have.
  if (cupti_.SetThreadIdType != nullptr) cupti_.SetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  if (moment == Moment::kCudaInit) BeforeFirstContext();
  attached_idle_ = idle;
  judged_ = false;
  attached_.store(true, std::memory_order_release);
  State& state = ring_->header()->state;
  state.attached.store(1, std::memory_order_relaxed);
  state.attach_ns.store(SteadyNs() - began_ns, std::memory_order_relaxed);
  return true;
}

// What CUPTI takes only before a context, and with it any graph, exists.
void Attachment::BeforeFirstContext() {
  State& state = ring_->header()->state;
  if (config_.hw_trace) {
    const bool on = cupti_.ActivityEnableHWTrace != nullptr &&
                    cupti_.ActivityEnableHWTrace(1) == CUPTI_SUCCESS;
    state.hw_trace.store(static_cast<uint32_t>(on ? HwTrace::kOn : HwTrace::kRefused));
  }
  if (config_.graph_trace) {
    graph_trace_ = cupti_.ActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) == CUPTI_SUCCESS;
    state.graph_trace.store(graph_trace_ ? 1 : 0);
  }
}

bool Attachment::EnableKinds(bool all_calls, std::string* error) {
  enabled_.clear();
  for (CUpti_ActivityKind kind : kKinds)
    if (cupti_.ActivityEnable(kind) == CUPTI_SUCCESS) enabled_.push_back(kind);
  if (enabled_.empty() || enabled_.front() != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    Disable();
    *error = "kernel activity cannot be enabled (MPS, or another profiler holds the device)";
    return false;
  }
  if (!all_calls) KeepLaunchesOnly();
  return true;
}

void Attachment::KeepLaunchesOnly() {
  if (cupti_.ActivityEnableRuntimeApi == nullptr || cupti_.ActivityEnableDriverApi == nullptr) return;
  // The kinds are on; all calls but the launches go off again, which is the order that works
  // at any time. Numbers that this CUPTI does not know are refused, which does no harm.
  for (uint32_t id = 1; id < CUPTI_RUNTIME_TRACE_CBID_SIZE + kNewerCalls; ++id)
    if (!Holds(kRuntimeLaunches, id)) cupti_.ActivityEnableRuntimeApi(id, 0);
  for (uint32_t id = 1; id < CUPTI_DRIVER_TRACE_CBID_SIZE + kNewerCalls; ++id)
    if (!Holds(kDriverLaunches, id)) cupti_.ActivityEnableDriverApi(id, 0);
}

void Attachment::Disable() {
  for (CUpti_ActivityKind kind : enabled_) cupti_.ActivityDisable(kind);
  enabled_.clear();
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

bool Attachment::OnlyLauncher(uint32_t thread_id) {
  // A thread that has ended cannot launch any more.
  for (uint32_t launcher : activity_->LaunchThreads())
    if (launcher != thread_id && ThreadLives(launcher)) return false;
  return true;
}

bool Attachment::MayDetach(uint32_t thread_id) {
  const auto wish =
      static_cast<Detach>(ring_->header()->control.detach.load(std::memory_order_relaxed));
  return wish == Detach::kWhenProven && attached() && attached_idle_ && !graph_trace_ &&
         cupti_.Finalize != nullptr && fruitful_windows_ + 1 >= kProofWindows &&
         OnlyLauncher(thread_id);
}

void Attachment::Judge() {
  Flush();
  fruitful_ = activity_->Records() != records_before_;
  if (fruitful_) ++fruitful_windows_;
  judged_ = true;
}

bool Attachment::DetachIfProven(uint32_t thread_id) {
  // A window without a record proves nothing: another client may have the buffers.
  if (!fruitful_ || !MayDetach(thread_id) || activity_->OnlyContext() == 0) return false;
  Flush(true);
  std::lock_guard<std::mutex> lock(calls_);
  if (cupti_.Finalize() != CUPTI_SUCCESS) return false;
  attached_.store(false, std::memory_order_release);
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
