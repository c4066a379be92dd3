// The stand-in CUPTI: activity records of the stand-in device, delivered in buffers from a
// thread of its own. It does what the real one was seen to do, also where that is unkind:
// detaching with work in flight, or after an attach with work in flight, or after copies were
// recorded, or while another thread makes a call, ends the process; so does graph trace after a
// graph exists, and switching single calls' records while other threads make calls; work still
// running when its activity goes off leaves no record; with graph trace a graph's launch leaves one
// record, and its nodes none. It refuses HES, as on the H200. Faults on request:
//   STANDIN_REFUSE=register|kernels|subscribe|"graph trace"   another profiler, MPS
//   STANDIN_ZERO_EVERY, STANDIN_INVERT_EVERY, STANDIN_DROP_EVERY=N   every Nth kernel
//   STANDIN_ROOM=N                         no kernel after so many since the attach, without copies
//   STANDIN_HW_TRACE=1                     HES is there, before a context
//   STANDIN_REPLAY=FILE                    records to deliver at the first flush (replay.h)
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cupti.h>

#include "clock.h"
#include "replay.h"
#include "standin.h"

namespace {

// Completed records that make the thread deliver by itself.
constexpr size_t kFullBuffer = 4096;

union Record {
  CUpti_Activity base;
  CUpti_ActivityKernel10 kernel;
  CUpti_ActivityMemcpy6 memcpy_;
  CUpti_ActivityMemset4 memset_;
  CUpti_ActivityAPI api;
  CUpti_ActivitySynchronization2 sync;
  CUpti_ActivityOverhead3 overhead;
  CUpti_ActivityExternalCorrelation external;
  CUpti_ActivityCudaEvent2 event;
  CUpti_ActivityGraphTrace2 graph;
};

struct Pending {
  Record record;
  uint64_t end_ns;
};

// STANDIN_VERSION=18: a CUPTI of CUDA 12.1, whose overheads end before their correlation id, and
// which sends events along with waits.
uint32_t Version() {
  static const char* text = std::getenv("STANDIN_VERSION");
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : CUPTI_API_VERSION;
}

size_t SizeOf(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return Version() < 22 ? sizeof(CUpti_ActivityOverhead) : sizeof(CUpti_ActivityOverhead3);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return sizeof(CUpti_ActivityGraphTrace2);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    default: return sizeof(CUpti_ActivityAPI);
  }
}

uint64_t Number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

bool Refuses(const char* what) {
  const char* text = std::getenv("STANDIN_REFUSE");
  return text != nullptr && std::strcmp(text, what) == 0;
}

[[noreturn]] void Die(const char* why) {
  std::fprintf(stderr, "stand-in CUPTI: unspecified launch failure: %s\n", why);
  std::abort();
}

struct Cupti {
  std::mutex mutex;
  std::condition_variable wake, done;
  std::vector<Pending> pending;
  std::set<CUpti_ActivityKind> kinds;
  std::set<uint32_t> runtime_off;
  std::map<std::string, uint64_t> counts;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_CallbackFunc callback = nullptr;  // of the one subscriber
  void* callback_data = nullptr;
  std::set<CUpti_CallbackId> callback_ids;
  bool copied = false;
  bool attached = false, poisoned = false, replayed = false;
  bool loaded = false;  // functions are loaded at the first launch
  uint64_t kernels = 0, since_attach = 0, wanted = 0, served = 0;
  bool forced = false;
  bool shared = false;  // one buffer for all threads
  size_t dropped = 0;
  std::vector<std::string> replay_names;
  std::thread thread;
};

// Never deleted: its thread outlives main.
Cupti& C() {
  static Cupti* cupti = new Cupti;
  return *cupti;
}

void Add(const Record& record, uint64_t end_ns) {  // under the lock
  C().pending.push_back({record, end_ns});
  if (C().pending.size() % kFullBuffer == 0) C().wake.notify_all();
}

Record KernelRecord(const StandinWork& work) {
  Record record{};
  auto& out = record.kernel;
  out.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  out.start = work.start_ns;
  out.end = work.end_ns;
  out.deviceId = work.device;
  out.contextId = work.context;
  out.streamId = work.stream;
  out.correlationId = work.correlation_id;
  out.graphId = work.graph_id;
  out.graphNodeId = work.graph_node_id;
  out.name = work.name;
  out.gridX = out.gridY = out.gridZ = 1;
  out.blockX = 128;
  out.blockY = out.blockZ = 1;
  out.registersPerThread = 32;
  return record;
}

Record GraphRecord(const StandinWork& work) {
  Record record{};
  auto& out = record.graph;
  out.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
  out.start = work.start_ns;
  out.end = work.end_ns;
  out.deviceId = out.endDeviceId = work.device;
  out.contextId = out.endContextId = work.context;
  out.streamId = work.stream;
  out.correlationId = work.correlation_id;
  out.graphId = work.graph_id;
  return record;
}

void SeeWork(const StandinWork& work) {
  Cupti& c = C();
  static const uint64_t zero = Number("STANDIN_ZERO_EVERY"), invert = Number("STANDIN_INVERT_EVERY"),
                        drop = Number("STANDIN_DROP_EVERY"), room = Number("STANDIN_ROOM");
  std::lock_guard<std::mutex> lock(c.mutex);
  const bool graphs = c.kinds.count(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) != 0;
  Record record{};
  if (work.kind == StandinWork::kGraph) {
    if (!graphs) return;
    record = GraphRecord(work);
  } else if (work.kind == StandinWork::kKernel) {
    if (c.kinds.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 0) return;
    if (graphs && work.graph_id != 0) return;
    if (room && c.kinds.count(CUPTI_ACTIVITY_KIND_MEMCPY) == 0 && c.since_attach++ >= room) return;
    record = KernelRecord(work);
    const uint64_t number = ++c.kernels;
    if (zero && number % zero == 0) record.kernel.start = record.kernel.end = 0;
    if (invert && number % invert == 0) {
      record.kernel.start = work.end_ns;
      record.kernel.end = work.start_ns;
    }
    if (drop && number % drop == 0) {
      ++c.dropped;
      return;
    }
  } else if (work.kind == StandinWork::kMemcpy) {
    if (c.kinds.count(CUPTI_ACTIVITY_KIND_MEMCPY) == 0) return;
    c.copied = true;
    auto& out = record.memcpy_;
    out.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    out.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    out.start = work.start_ns;
    out.end = work.end_ns;
    out.bytes = work.bytes;
    out.deviceId = work.device;
    out.contextId = work.context;
    out.streamId = work.stream;
    out.correlationId = work.correlation_id;
  } else {
    if (c.kinds.count(CUPTI_ACTIVITY_KIND_MEMSET) == 0) return;
    auto& out = record.memset_;
    out.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    out.start = work.start_ns;
    out.end = work.end_ns;
    out.bytes = work.bytes;
    out.deviceId = work.device;
    out.contextId = work.context;
    out.streamId = work.stream;
    out.correlationId = work.correlation_id;
  }
  Add(record, work.end_ns);
}

uint32_t CallId(StandinCall::Kind kind) {
  switch (kind) {
    case StandinCall::kLaunch: return CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
    case StandinCall::kGraphLaunch: return CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000;
    case StandinCall::kMemcpy: return CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020;
    case StandinCall::kMemset: return CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020;
    case StandinCall::kQuery: return CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020;
    case StandinCall::kWaitEvent: return CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020;
    default: return CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020;
  }
}

thread_local std::vector<uint64_t> t_external;

// A wait has a record of its own, the first launch an overhead, a call with an id of another
// library one of both ids.
void SeeMore(const StandinCall& call) {  // under the lock
  Cupti& c = C();
  Record record{};
  const bool query = call.kind == StandinCall::kQuery;
  const bool waits = query || call.kind == StandinCall::kSynchronize;
  if (waits && c.kinds.count(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)) {
    record.sync.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
    record.sync.type = query ? CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE
                             : CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
    record.sync.returnValue = call.result;
    record.sync.start = call.start_ns;
    record.sync.end = call.end_ns;
    record.sync.correlationId = call.correlation_id;
    record.sync.streamId = static_cast<uint32_t>(CUPTI_SYNCHRONIZATION_INVALID_VALUE);
    record.sync.contextId = 1;
    Add(record, call.end_ns);
    if (Version() < 28) {
      record = {};
      record.event.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
      Add(record, call.end_ns);
    }
  }
  if (!c.loaded && c.kinds.count(CUPTI_ACTIVITY_KIND_OVERHEAD)) {
    c.loaded = true;
    record = {};
    record.overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
    record.overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING;
    record.overhead.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
    record.overhead.objectId.pt.threadId = call.thread_id;
    record.overhead.start = call.start_ns;
    record.overhead.end = call.end_ns;
    record.overhead.correlationId = call.correlation_id;
    Add(record, call.end_ns);
  }
  if (!t_external.empty() && c.kinds.count(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    record = {};
    record.external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    record.external.externalId = t_external.back();
    record.external.correlationId = call.correlation_id;
    Add(record, call.end_ns);
  }
}

void SeeCall(const StandinCall& call) {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  SeeMore(call);
  const uint32_t id = CallId(call.kind);
  if (c.kinds.count(CUPTI_ACTIVITY_KIND_RUNTIME) == 0 || c.runtime_off.count(id) != 0) return;
  Record record{};
  record.api.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  record.api.cbid = id;
  record.api.start = call.start_ns;
  record.api.end = call.end_ns;
  record.api.threadId = call.thread_id;
  record.api.correlationId = call.correlation_id;
  record.api.returnValue = call.result;
  Add(record, call.end_ns);
}

// Tells the subscriber, without the lock: it may keep the call waiting.
void SeeSite(StandinCall::Kind kind, bool begin) {
  Cupti& c = C();
  CUpti_CallbackId id = 0;
  if (kind == StandinCall::kGraphLaunch) id = CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch;
  if (kind == StandinCall::kWaitEvent) id = CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent;
  std::unique_lock<std::mutex> lock(c.mutex);
  if (c.callback == nullptr || c.callback_ids.count(id) == 0) return;
  const auto callback = c.callback;
  void* data = c.callback_data;
  lock.unlock();
  CUpti_CallbackData said{};
  said.callbackSite = begin ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  callback(data, CUPTI_CB_DOMAIN_DRIVER_API, id, &said);
}

const StandinHooks g_hooks = {&SeeWork, &SeeCall, &SeeSite};

Record FromReplay(const ReplayRow& row, const std::vector<std::string>& names) {
  Record record{};
  const auto kind = static_cast<CUpti_ActivityKind>(row.kind);
  record.base.kind = kind;
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    auto& out = record.kernel;
    out.start = row.start_ns;
    out.end = row.end_ns;
    out.graphNodeId = row.graph_node_id;
    out.deviceId = row.device;
    out.contextId = row.context;
    out.streamId = row.stream;
    out.correlationId = row.correlation_id;
    out.graphId = row.graph_id;
    out.gridX = static_cast<int32_t>(row.grid[0]);
    out.gridY = static_cast<int32_t>(row.grid[1]);
    out.gridZ = static_cast<int32_t>(row.grid[2]);
    out.blockX = static_cast<int32_t>(row.block[0]);
    out.blockY = static_cast<int32_t>(row.block[1]);
    out.blockZ = static_cast<int32_t>(row.block[2]);
    out.clusterX = row.cluster[0];
    out.clusterY = row.cluster[1];
    out.clusterZ = row.cluster[2];
    out.registersPerThread = static_cast<uint16_t>(row.registers);
    out.staticSharedMemory = static_cast<int32_t>(row.static_shared);
    out.dynamicSharedMemory = static_cast<int32_t>(row.dynamic_shared);
    out.sharedMemoryExecuted = row.executed_shared;
    out.localMemoryPerThread = row.local_per_thread;
    out.launchType = static_cast<uint8_t>(row.launch_type);
    out.name = names.at(row.name).c_str();
  } else if (kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    auto& out = record.memcpy_;
    out.start = row.start_ns;
    out.end = row.end_ns;
    out.bytes = row.bytes;
    out.graphNodeId = row.graph_node_id;
    out.deviceId = row.device;
    out.contextId = row.context;
    out.streamId = row.stream;
    out.correlationId = row.correlation_id;
    out.graphId = row.graph_id;
    out.copyKind = static_cast<uint8_t>(row.copy_kind);
  } else {
    auto& out = record.api;
    out.start = row.start_ns;
    out.end = row.end_ns;
    out.threadId = row.thread_id;
    out.correlationId = row.correlation_id;
    out.cbid = row.call;
  }
  return record;
}

// The file's records go into the queue as they are, ended long ago.
void LoadReplay() {
  Cupti& c = C();
  const char* path = std::getenv("STANDIN_REPLAY");
  if (path == nullptr || c.replayed) return;
  c.replayed = true;
  std::FILE* file = std::fopen(path, "rb");
  ReplayHeader header{};
  if (file == nullptr || std::fread(&header, sizeof header, 1, file) != 1) Die("no replay file");
  for (uint32_t i = 0; i < header.names; ++i) {
    uint32_t length = 0;
    if (std::fread(&length, sizeof length, 1, file) != 1) Die("short replay file");
    std::string name(length, '\0');
    if (length != 0 && std::fread(name.data(), length, 1, file) != 1) Die("short replay file");
    c.replay_names.push_back(name);
  }
  ReplayRow row;
  while (std::fread(&row, sizeof row, 1, file) == 1)
    c.pending.push_back({FromReplay(row, c.replay_names), 0});
  std::fclose(file);
}

// Without the lock, as it calls the client: whoever had registered when the records were taken.
void Pack(std::vector<Pending> ready, CUpti_BuffersCallbackRequestFunc request,
          CUpti_BuffersCallbackCompleteFunc complete) {
  Cupti& c = C();
  // Takes buffers that it never gives back, as a thread does that is slow to fill one.
  static uint64_t held = 0;
  for (; request != nullptr && held < Number("STANDIN_HOLD"); ++held) {
    uint8_t* kept = nullptr;
    size_t size = 0, most = 0;
    request(&kept, &size, &most);
  }
  for (size_t at = 0; at < ready.size();) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0, used = 0;
    if (request != nullptr) request(&buffer, &size, &most);
    if (buffer == nullptr || size == 0) {
      std::lock_guard<std::mutex> lock(c.mutex);
      c.dropped += ready.size() - at;
      return;
    }
    for (; at < ready.size(); ++at) {
      const size_t bytes = SizeOf(ready[at].record.base.kind);
      if (used + bytes > size) break;
      std::memcpy(buffer + used, &ready[at].record, bytes);
      used += bytes;
    }
    complete(nullptr, 0, buffer, size, used);
  }
}

void Deliver() {
  Cupti& c = C();
  std::unique_lock<std::mutex> lock(c.mutex);
  while (true) {
    c.wake.wait(lock, [&] { return c.served != c.wanted || c.pending.size() >= kFullBuffer; });
    const uint64_t goal = c.wanted;
    const uint64_t now = c.forced ? UINT64_MAX : spanlite::NowNs();
    const bool asked = c.served != c.wanted;
    std::vector<Pending> ready;
    // A buffer that all threads share comes back full, or when all in it is complete.
    const auto runs = [now](const Pending& p) { return p.end_ns > now; };
    const bool waits = c.shared && c.pending.size() < kFullBuffer &&
                       std::any_of(c.pending.begin(), c.pending.end(), runs);
    auto rest = std::stable_partition(c.pending.begin(), c.pending.end(),
                                      [&](const Pending& p) { return waits || runs(p); });
    ready.assign(rest, c.pending.end());
    c.pending.erase(rest, c.pending.end());
    const auto request = c.request;
    const auto complete = c.complete;
    lock.unlock();
    Pack(std::move(ready), request, complete);
    if (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
    c.served = goal;
    c.forced = false;
    c.done.notify_all();
  }
}

}  // namespace

extern "C" {

uint64_t standin_cupti_count(const char* what) {
  std::lock_guard<std::mutex> lock(C().mutex);
  if (std::strcmp(what, "pending") == 0) return C().pending.size();
  return C().counts[what];
}

CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = Version();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  *timestamp = spanlite::NowNs();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  t_external.push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  if (t_external.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  *last = t_external.back();
  t_external.pop_back();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  if (Refuses("register")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  ++c.counts["register"];
  c.request = request;
  c.complete = complete;
  if (!c.attached) {
    c.attached = true;
    c.poisoned = c.poisoned || standin_busy();
    standin_watch(&g_hooks);
    if (!c.thread.joinable()) c.thread = std::thread(&Deliver);
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t* bytes, void* value) {
  if (attribute != CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER || *bytes != 1 || Refuses("shared"))
    return CUPTI_ERROR_INVALID_PARAMETER;
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (c.attached) Die("buffers shared in the middle of a session");
  c.shared = *static_cast<const uint8_t*>(value) == 0;
  c.counts["shared"] += c.shared;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                           void* data) {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (c.callback != nullptr || Refuses("subscribe"))
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  ++c.counts["subscribe"];
  c.callback = callback;
  c.callback_data = data;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&c);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                CUpti_CallbackId id) {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (enable) c.callback_ids.insert(id);
  else c.callback_ids.erase(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (Refuses("kernels") && kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
    return CUPTI_ERROR_NOT_COMPATIBLE;
  if (Refuses("graph trace") && kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE)
    return CUPTI_ERROR_NOT_COMPATIBLE;
  if (kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE && standin_graphs() != 0)
    Die("graph trace after a graph was instantiated");
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) ++c.counts["enable"];
  c.kinds.insert(kind);
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME) c.runtime_off.clear();
  LoadReplay();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  c.kinds.erase(kind);
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return CUPTI_SUCCESS;
  ++c.counts["disable"];
  const uint64_t now = spanlite::NowNs();
  const auto lost = [now](const Pending& p) {
    return p.end_ns > now && p.record.base.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  };
  const size_t before = c.pending.size();
  c.pending.erase(std::remove_if(c.pending.begin(), c.pending.end(), lost), c.pending.end());
  c.counts["lost_at_edge"] += before - c.pending.size();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t enable) {
  if (standin_others_call()) Die("single calls switched while other threads make calls");
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (id >= CUPTI_RUNTIME_TRACE_CBID_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable) c.runtime_off.erase(id);
  else c.runtime_off.insert(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityEnableHWTrace(uint8_t enable) {
  const bool early = enable && !standin_has_context();
  return early && Number("STANDIN_HW_TRACE") ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_SUPPORTED;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  Cupti& c = C();
  std::unique_lock<std::mutex> lock(c.mutex);
  ++c.counts["flush"];
  if (!c.thread.joinable()) return CUPTI_SUCCESS;
  c.forced = c.forced || flag != 0;
  const uint64_t ticket = ++c.wanted;
  c.wake.notify_all();
  c.done.wait(lock, [&] { return c.served >= ticket; });
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record == nullptr
                      ? buffer
                      : reinterpret_cast<uint8_t*>(*record) + SizeOf((*record)->kind);
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  std::lock_guard<std::mutex> lock(C().mutex);
  *dropped = C().dropped;
  C().dropped = 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize() {
  Cupti& c = C();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (standin_busy()) Die("detached with work in flight");
  if (c.poisoned) Die("detached after an attach with work in flight");
  if (c.copied) Die("detached after copies were recorded");
  ++c.counts["finalize"];
  standin_detaching(true);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // as long as the real one
  standin_detaching(false);
  standin_watch(nullptr);
  c.attached = false;
  c.since_attach = 0;
  c.kinds.clear();
  c.callback = nullptr;
  c.callback_ids.clear();
  c.pending.clear();
  return CUPTI_SUCCESS;
}

}  // extern "C"
