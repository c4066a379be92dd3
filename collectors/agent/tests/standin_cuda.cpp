// The stand-in driver. As the real one does, cuInit loads the injection library.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <cuda.h>

#include "clock.h"
#include "standin.h"

namespace {

constexpr uint64_t kLaunchDelayNs = 2'000;  // between a launch and its start on an idle stream

std::mutex g_mutex;
std::map<std::pair<uint32_t, uint32_t>, uint64_t> g_stream_ends;  // by context and stream
std::vector<uint32_t> g_graph_nodes;
std::atomic<uint64_t> g_last_end{0};
std::atomic<uint32_t> g_correlation{0};
std::atomic<const StandinHooks*> g_hooks{nullptr};
constexpr uint64_t kLatelyNs = 50'000'000;
std::map<uint32_t, uint64_t> g_callers;  // thread: its last call
std::timed_mutex g_stream_lock, g_device_lock;
std::atomic<bool> g_detaching{false}, g_initialised{false}, g_has_context{false};
thread_local uint32_t t_context = 0, t_device = 0;

uint32_t ThreadId() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

void Tell(const StandinWork& work) {
  if (const StandinHooks* hooks = g_hooks.load()) hooks->work(work);
}

// The work with its place and times.
StandinWork Run(StandinWork work, uint64_t duration_ns) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    uint64_t& end = g_stream_ends[{t_context, work.stream}];
    work.start_ns = std::max(spanlite::NowNs() + kLaunchDelayNs, end);
    work.end_ns = end = work.start_ns + duration_ns;
    if (end > g_last_end) g_last_end = end;
  }
  work.context = t_context;
  work.device = t_device;
  Tell(work);
  return work;
}

template <typename Body>
void Call(StandinCall::Kind kind, Body body) {
  if (g_detaching) {
    std::fprintf(stderr, "stand-in: unspecified launch failure: a call while CUPTI detaches\n");
    std::abort();
  }
  const StandinHooks* watching = g_hooks.load();
  if (watching != nullptr) watching->site(kind, true);
  StandinCall call{kind, ThreadId(), ++g_correlation, spanlite::NowNs(), 0, 0};
  call.result = body(call.correlation_id);
  call.end_ns = spanlite::NowNs();
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    g_callers[call.thread_id] = call.end_ns;
  }
  if (const StandinHooks* hooks = g_hooks.load()) hooks->call(call);
  if (watching != nullptr) watching->site(kind, false);
}

// Both locks, one after the other, where the process is to have that fault.
void TakeBoth(std::timed_mutex* first, std::timed_mutex* second) {
  static const bool circle = std::getenv("STANDIN_CIRCLE") != nullptr;
  if (!circle || g_hooks.load() == nullptr) return;
  std::lock_guard<std::timed_mutex> outer(*first);
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  std::unique_lock<std::timed_mutex> inner(*second, std::chrono::seconds(5));
  if (!inner.owns_lock()) {
    std::fprintf(stderr, "stand-in: two calls wait for each other\n");
    std::abort();
  }
}

void Single(StandinCall::Kind call, StandinWork::Kind kind, uint32_t stream, const char* name,
            uint64_t bytes, uint64_t duration_ns) {
  Call(call, [=](uint32_t correlation_id) {
    StandinWork work{};
    work.kind = kind;
    work.name = name;
    work.stream = stream;
    work.bytes = bytes;
    work.correlation_id = correlation_id;
    Run(work, duration_ns);
    return 0u;
  });
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* path = std::getenv("CUDA_INJECTION64_PATH");
    if (path == nullptr) return;
    void* library = dlopen(path, RTLD_NOW);
    if (library == nullptr) std::fprintf(stderr, "stand-in: %s\n", dlerror());
    auto* start = library ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection")) : nullptr;
    if (start != nullptr) start();
  });
  g_initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!g_initialised.load()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(t_context));
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  Call(StandinCall::kSynchronize, [](uint32_t) {
    uint64_t now;
    while ((now = spanlite::NowNs()) < g_last_end)
      std::this_thread::sleep_for(std::chrono::nanoseconds(g_last_end - now));
    return 0u;
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

void standin_watch(const StandinHooks* hooks) { g_hooks = hooks; }

uint32_t standin_context(uint32_t device) {
  t_device = device;
  // One primary context a device, as the runtime has it.
  t_context = device + 1;
  g_initialised = g_has_context = true;
  return t_context;
}

bool standin_has_context() { return g_has_context; }

void standin_launch(uint32_t stream, const char* name, uint64_t duration_ns) {
  Single(StandinCall::kLaunch, StandinWork::kKernel, stream, name, 0, duration_ns);
}

void standin_memcpy(uint32_t stream, uint64_t bytes, uint64_t duration_ns) {
  Single(StandinCall::kMemcpy, StandinWork::kMemcpy, stream, nullptr, bytes, duration_ns);
}

void standin_memset(uint32_t stream, uint64_t bytes, uint64_t duration_ns) {
  Single(StandinCall::kMemset, StandinWork::kMemset, stream, nullptr, bytes, duration_ns);
}

uint32_t standin_graph(uint32_t nodes) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_graph_nodes.push_back(nodes);
  return static_cast<uint32_t>(g_graph_nodes.size());
}

uint32_t standin_graphs() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return static_cast<uint32_t>(g_graph_nodes.size());
}

void standin_graph_launch(uint32_t graph, uint32_t stream, uint64_t node_ns) {
  uint32_t nodes;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    nodes = g_graph_nodes.at(graph - 1);
  }
  Call(StandinCall::kGraphLaunch, [=](uint32_t correlation_id) {
    TakeBoth(&g_stream_lock, &g_device_lock);
    StandinWork whole{};
    for (uint32_t node = 0; node < nodes; ++node) {
      StandinWork work{};
      work.name = "graph_kernel";
      work.stream = stream;
      work.correlation_id = correlation_id;
      work.graph_id = graph;
      work.graph_node_id = static_cast<uint64_t>(graph) << 32 | node;
      const StandinWork ran = Run(work, node_ns);
      if (node == 0) whole = ran;
      whole.end_ns = ran.end_ns;
    }
    whole.kind = StandinWork::kGraph;
    if (nodes != 0) Tell(whole);
    return 0u;
  });
}

bool standin_query() {
  bool done = false;
  Call(StandinCall::kQuery, [&done](uint32_t) {
    done = !standin_busy();
    return done ? 0u : static_cast<uint32_t>(CUDA_ERROR_NOT_READY);
  });
  return done;
}

void standin_wait_event() {
  Call(StandinCall::kWaitEvent, [](uint32_t) {
    TakeBoth(&g_device_lock, &g_stream_lock);
    return 0u;
  });
}

bool standin_others_call() {
  std::lock_guard<std::mutex> lock(g_mutex);
  const uint64_t lately = spanlite::NowNs() - kLatelyNs;
  for (const auto& [thread, last_ns] : g_callers) {
    const std::string task = "/proc/self/task/" + std::to_string(thread);
    if (thread != ThreadId() && last_ns > lately && access(task.c_str(), F_OK) == 0) return true;
  }
  return false;
}

void standin_detaching(bool now) { g_detaching = now; }

bool standin_busy() { return spanlite::NowNs() < g_last_end; }

}  // extern "C"
