#include "activity.h"

#include <cstdlib>

#include "clock.h"
#include "launch_calls.h"
#include "step_lock.h"

namespace spanlite {
namespace {

Activity* g_activity = nullptr;
constexpr size_t kBufferAlign = 8;  // CUPTI's own alignment of records
// CUPTI 12.4: overheads have a correlation id. Some have data too, which the header leaves to us to
// free; it is left alone, as nothing has shown yet that this is safe at any moment.
constexpr uint32_t kOverhead3 = 22;
// From this CUPTI on waits have the call's result.
constexpr uint32_t kSyncResult = 130'000;
constexpr uint32_t kManyContexts = 0xFFFFFFFF;
// The windows as they were when this thread's buffer came.
thread_local WindowTimes t_windows;

uint16_t TimeFlags(uint64_t start_ns, uint64_t end_ns) {
  uint16_t flags = 0;
  if (start_ns == 0 || end_ns == 0) flags |= kZeroTimestamp;
  if (end_ns < start_ns) flags |= kInvertedTimes;
  return flags;
}

}  // namespace

Activity::Activity(const CuptiApi* cupti, Ring* ring, Strings* strings, OpenWindows* windows,
                   uint64_t buffer_bytes, uint32_t max_buffers)
    : cupti_(cupti),
      ring_(ring),
      strings_(strings),
      windows_(windows),
      buffer_bytes_(buffer_bytes / kBufferAlign * kBufferAlign),
      max_buffers_(max_buffers) {
  g_activity = this;
}

CUptiResult Activity::Register() {
  return cupti_->ActivityRegisterCallbacks(&BufferRequested, &BufferCompleted);
}

void CUPTIAPI Activity::BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = g_activity->TakeBuffer();
  *size = *buffer == nullptr ? 0 : g_activity->buffer_bytes_;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI Activity::BufferCompleted(CUcontext context, uint32_t stream, uint8_t* buffer,
                                        size_t, size_t valid_size) {
  if (buffer == nullptr) return;
  g_activity->Drain(context, stream, buffer, valid_size);
  g_activity->GiveBuffer(buffer);
}

uint8_t* Activity::TakeBuffer() {
  std::lock_guard<std::mutex> lock(pool_mutex_);
  if (!free_.empty()) {
    uint8_t* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  if (allocated_ == max_buffers_) {
    refused_.store(true, std::memory_order_relaxed);
    return nullptr;  // CUPTI drops and counts what it cannot store
  }
  auto* buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, buffer_bytes_));
  if (buffer != nullptr) ++allocated_;
  return buffer;
}

void Activity::GiveBuffer(uint8_t* buffer) {
  std::lock_guard<std::mutex> lock(pool_mutex_);
  free_.push_back(buffer);
}

void Activity::Drain(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid_size) {
  const uint64_t began_ns = SteadyNs();
  State& state = ring_->header()->state;
  t_windows = windows_->Snapshot();
  uint64_t records = 0, kernels = 0;
  CUpti_Activity* record = nullptr;
  while (valid_size != 0 &&
         cupti_->ActivityGetNextRecord(buffer, valid_size, &record) == CUPTI_SUCCESS) {
    Convert(record);
    ++records;
    kernels += record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  }
  size_t dropped = 0;
  if (cupti_->ActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped) {
    const bool ours = refused_.exchange(false, std::memory_order_relaxed);
    ring_->CountDrop(ours ? Drop::kBudget : Drop::kCuptiDropped, dropped);
  }
  records_.fetch_add(records, std::memory_order_relaxed);
  kernels_.fetch_add(kernels, std::memory_order_relaxed);
  state.records.fetch_add(records, std::memory_order_relaxed);
  state.buffers.fetch_add(1, std::memory_order_relaxed);
  state.parse_ns.fetch_add(SteadyNs() - began_ns, std::memory_order_relaxed);
}

uint32_t Activity::WindowOf(uint64_t start_ns) const { return t_windows.At(start_ns); }

void Activity::SeeContext(uint32_t context) {
  uint32_t seen = 0;
  if (context_.load(std::memory_order_relaxed) == context) return;
  if (!context_.compare_exchange_strong(seen, context) && seen != context) context_ = kManyContexts;
}

uint32_t Activity::OnlyContext() const {
  const uint32_t context = context_.load();
  return context == kManyContexts ? 0 : context;
}

void Activity::Convert(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return Kernel(record);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return Memcpy(record);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return MemcpyPeer(record);
    case CUPTI_ACTIVITY_KIND_MEMSET: return Memset(record);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return Sync(record);
    case CUPTI_ACTIVITY_KIND_DRIVER: return Api(record, 0);
    case CUPTI_ACTIVITY_KIND_RUNTIME: return Api(record, 1);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return Graph(record);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return Overhead(record);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return External(record);
    // CUPTI 12.1 to 12.4 sends them along with waits, unasked.
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return;
    default: ring_->CountDrop(Drop::kUnknownRecord);
  }
}

// Later CUPTI versions only append to these structures, so the fields read here are the
// same in CUDA 12 and 13.
void Activity::Kernel(const CUpti_Activity* activity) {
  const auto* in = reinterpret_cast<const CUpti_ActivityKernel10*>(activity);
  KernelRecord out{};
  out.start_ns = in->start;
  out.end_ns = in->end;
  out.graph_node_id = in->graphNodeId;
  out.device = in->deviceId;
  out.context = in->contextId;
  SeeContext(out.context);
  out.stream = in->streamId;
  out.correlation_id = in->correlationId;
  out.graph_id = in->graphId;
  out.name = strings_->Intern(in->name != nullptr ? in->name : "");
  out.grid_x = static_cast<uint32_t>(in->gridX);
  out.grid_y = static_cast<uint32_t>(in->gridY);
  out.grid_z = static_cast<uint32_t>(in->gridZ);
  out.block_x = static_cast<uint32_t>(in->blockX);
  out.block_y = static_cast<uint32_t>(in->blockY);
  out.block_z = static_cast<uint32_t>(in->blockZ);
  out.cluster_x = in->clusterX;
  out.cluster_y = in->clusterY;
  out.cluster_z = in->clusterZ;
  out.registers_per_thread = in->registersPerThread;
  out.static_shared_bytes = static_cast<uint32_t>(in->staticSharedMemory);
  out.dynamic_shared_bytes = static_cast<uint32_t>(in->dynamicSharedMemory);
  out.executed_shared_bytes = in->sharedMemoryExecuted;
  out.local_bytes_per_thread = in->localMemoryPerThread;
  out.launch_type = in->launchType;
  out.window = WindowOf(in->start);
  ring_->Write(out, RecordType::kKernel, TimeFlags(in->start, in->end));
}

// What copies and sets have in common. The structures differ, their fields do not.
template <typename In>
MemoryRecord Activity::Memory(const In& in, uint32_t kind, uint32_t peer_device) {
  MemoryRecord out{};
  out.start_ns = in.start;
  out.end_ns = in.end;
  out.bytes = in.bytes;
  out.graph_node_id = in.graphNodeId;
  out.device = in.deviceId;
  out.peer_device = peer_device;
  out.context = in.contextId;
  SeeContext(out.context);
  out.stream = in.streamId;
  out.correlation_id = in.correlationId;
  out.graph_id = in.graphId;
  out.copy_kind = kind;
  out.window = WindowOf(in.start);
  return out;
}

void Activity::Memcpy(const CUpti_Activity* activity) {
  const auto& in = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(activity);
  ring_->Write(Memory(in, in.copyKind, in.deviceId), RecordType::kMemcpy,
               TimeFlags(in.start, in.end));
}

void Activity::MemcpyPeer(const CUpti_Activity* activity) {
  const auto& in = *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(activity);
  ring_->Write(Memory(in, in.copyKind, in.dstDeviceId), RecordType::kMemcpy,
               TimeFlags(in.start, in.end));
}

void Activity::Memset(const CUpti_Activity* activity) {
  const auto& in = *reinterpret_cast<const CUpti_ActivityMemset4*>(activity);
  ring_->Write(Memory(in, in.value, in.deviceId), RecordType::kMemset, TimeFlags(in.start, in.end));
}

void Activity::Sync(const CUpti_Activity* activity) {
  const auto* in = reinterpret_cast<const CUpti_ActivitySynchronization2*>(activity);
  // A query that found its work still running waited for nothing.
  if (cupti_->version >= kSyncResult && in->returnValue != 0) return;
  SyncRecord out{};
  out.start_ns = in->start;
  out.end_ns = in->end;
  out.kind = in->type;
  out.context = in->contextId;
  out.stream = in->streamId;
  out.event = in->cudaEventId;
  out.correlation_id = in->correlationId;
  out.window = WindowOf(in->start);
  ring_->Write(out, RecordType::kSync, TimeFlags(in->start, in->end));
}

void Activity::Api(const CUpti_Activity* activity, uint32_t domain) {
  const auto* in = reinterpret_cast<const CUpti_ActivityAPI*>(activity);
  const CallUse use = domain == 0 ? DriverUse(in->cbid) : RuntimeUse(in->cbid);
  const bool launches = use == CallUse::kLaunch || use == CallUse::kCapture;
  if (launches &&
      in->threadId != last_launch_thread_.exchange(in->threadId, std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(threads_mutex_);
    launch_threads_ever_ += launch_threads_.insert(in->threadId).second;
    ring_->header()->state.launch_threads.store(launch_threads_ever_, std::memory_order_relaxed);
  }
  if (!Kept(use, waits_, in->returnValue) && !all_calls_.load(std::memory_order_relaxed)) return;
  ApiRecord out{};
  out.start_ns = in->start;
  out.end_ns = in->end;
  out.thread_id = in->threadId;
  out.correlation_id = in->correlationId;
  out.call = in->cbid;
  out.domain = domain;
  out.result = in->returnValue;
  out.window = WindowOf(in->start);
  ring_->Write(out, RecordType::kApi, TimeFlags(in->start, in->end));
}

void Activity::Graph(const CUpti_Activity* activity) {
  const auto* in = reinterpret_cast<const CUpti_ActivityGraphTrace2*>(activity);
  GraphRecord out{};
  out.start_ns = in->start;
  out.end_ns = in->end;
  out.device = in->deviceId;
  out.context = in->contextId;
  SeeContext(out.context);
  out.stream = in->streamId;
  out.correlation_id = in->correlationId;
  out.graph_id = in->graphId;
  out.window = WindowOf(in->start);
  ring_->Write(out, RecordType::kGraph, TimeFlags(in->start, in->end));
}

void Activity::Overhead(const CUpti_Activity* activity) {
  const auto* in = reinterpret_cast<const CUpti_ActivityOverhead3*>(activity);
  OverheadRecord out{};
  out.start_ns = in->start;
  out.end_ns = in->end;
  out.kind = in->overheadKind;
  // CUPTI's own threads and whole devices have overheads too.
  if (in->objectKind == CUPTI_ACTIVITY_OBJECT_THREAD) out.thread_id = in->objectId.pt.threadId;
  if (cupti_->version >= kOverhead3) out.correlation_id = in->correlationId;
  out.window = WindowOf(in->start);
  ring_->Write(out, RecordType::kOverhead, TimeFlags(in->start, in->end));
}

void Activity::External(const CUpti_Activity* activity) {
  const auto* in = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(activity);
  ExternalRecord out{};
  out.external_id = in->externalId;
  out.correlation_id = in->correlationId;
  out.kind = in->externalKind;
  ring_->Write(out, RecordType::kExternal);
}

std::vector<uint32_t> Activity::ForgetEnded() {
  std::lock_guard<std::mutex> lock(threads_mutex_);
  std::vector<uint32_t> ended;
  for (uint32_t thread : launch_threads_)
    if (!ThreadLives(thread)) ended.push_back(thread);
  for (uint32_t thread : ended) launch_threads_.erase(thread);
  last_launch_thread_ = 0;  // its number may be a new thread's
  return ended;
}

std::vector<uint32_t> Activity::LaunchThreads() {
  std::lock_guard<std::mutex> lock(threads_mutex_);
  return {launch_threads_.begin(), launch_threads_.end()};
}

}  // namespace spanlite
