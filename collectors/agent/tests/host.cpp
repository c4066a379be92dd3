// A server in miniature: threads that decode step after step on the stand-in device, with NVTX
// ranges, through the real NVTX headers. Prints what it launched as one JSON object.
//   host steps=20 kernels=8 threads=1 devices=1 step_us=200 graph=0 sync=1 ...
// Settings are KEY=NUMBER words; see Settings.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <map>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cupti.h>
#include <nvtx3/nvToolsExt.h>

#include "clock.h"
#include "standin.h"

namespace {

struct Settings {
  uint64_t steps = 20;       // a thread
  uint64_t kernels = 8;      // a step
  uint64_t threads = 1, devices = 1, streams = 1;
  uint64_t step_us = 200;    // device time of a step
  uint64_t graph = 0;        // 1: one graph launch a step instead of kernels
  uint64_t sync = 1;         // wait for the device at the end of each step
  uint64_t query = 0;        // 1: ask until the device is done, then wait for it
  uint64_t wait = 0;         // 1: a stream waits for an event in each step
  uint64_t named = 1;        // 0: no step ranges
  uint64_t slow_step = 0;    // this step takes 20 ms more
  uint64_t fork_at = 0;      // before this step a child is forked that runs on by itself
  uint64_t take_over_at = 0; // at this step another CUPTI client takes the buffers
  uint64_t exit = 0;         // 1: _exit without any clean-up, 2: dlclose the agent, then go on
  uint64_t unique = 0;       // a range of a new name, at least so long, in each step
  uint64_t blast = 0;        // launch this many kernels before the steps, as fast as CUPTI delivers
  uint64_t warm_up = 0;      // launches outside any range before the first step
  uint64_t side = 0;         // 1: a second thread launches now and then, without ranges
  uint64_t external = 0;     // 1: each step has an id of its own for other libraries' records
  uint64_t start_end = 0;    // 1: a range that two steps share, with nvtxRangeStart and End
  uint64_t side_until = 0;   // it ends at this step; 0: at the end
  uint64_t mixed = 0;        // 1: ranges of all kinds of names and domains first, and as a thread ends
};

Settings g_settings;
std::atomic<uint64_t> g_launched{0}, g_calls{0}, g_step{0};
std::vector<uint64_t> g_sizes_kib;  // of this process, at equal distances of a blast

void Parse(int argc, char** argv) {
  const std::map<std::string, uint64_t*> known = {
      {"steps", &g_settings.steps},     {"kernels", &g_settings.kernels},
      {"threads", &g_settings.threads}, {"devices", &g_settings.devices},
      {"streams", &g_settings.streams}, {"step_us", &g_settings.step_us},
      {"graph", &g_settings.graph},     {"sync", &g_settings.sync},
      {"named", &g_settings.named},     {"slow_step", &g_settings.slow_step},
      {"fork_at", &g_settings.fork_at}, {"take_over_at", &g_settings.take_over_at},
      {"exit", &g_settings.exit},       {"unique", &g_settings.unique},
      {"blast", &g_settings.blast},     {"warm_up", &g_settings.warm_up},
      {"side", &g_settings.side},       {"side_until", &g_settings.side_until},
      {"query", &g_settings.query},     {"wait", &g_settings.wait},
      {"external", &g_settings.external}, {"start_end", &g_settings.start_end},
      {"mixed", &g_settings.mixed},
  };
  for (int i = 1; i < argc; ++i) {
    const char* equals = std::strchr(argv[i], '=');
    const auto found = known.find(std::string(argv[i], equals ? equals - argv[i] : 0));
    if (found == known.end()) {
      std::fprintf(stderr, "host: unknown setting %s\n", argv[i]);
      std::exit(2);
    }
    *found->second = std::strtoull(equals + 1, nullptr, 10);
  }
}

template <typename Function>
Function FromCupti(const char* name) {
  static void* library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

uint64_t Count(const char* what) {
  auto* count = FromCupti<uint64_t (*)(const char*)>("standin_cupti_count");
  return count ? count(what) : 0;
}

// As torch.profiler does it: its own callbacks replace whoever was there.
alignas(8) uint8_t g_other_buffer[1 << 20];
void CUPTIAPI OtherRequested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = g_other_buffer;
  *size = sizeof g_other_buffer;
  *most = 0;
}
void CUPTIAPI OtherCompleted(CUcontext, uint32_t, uint8_t*, size_t, size_t) {}

void TakeOver() {
  auto* take = FromCupti<decltype(&cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks");
  if (take != nullptr) take(&OtherRequested, &OtherCompleted);
}

void External(uint64_t step, bool begin) {
  if (!g_settings.external) return;
  const auto kind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
  uint64_t last = 0;
  using Push = decltype(&cuptiActivityPushExternalCorrelationId);
  using Pop = decltype(&cuptiActivityPopExternalCorrelationId);
  static const auto push = FromCupti<Push>("cuptiActivityPushExternalCorrelationId");
  static const auto pop = FromCupti<Pop>("cuptiActivityPopExternalCorrelationId");
  if (begin && push != nullptr) push(kind, 1000 + step);
  if (!begin && pop != nullptr) pop(kind, &last);
}

void Launch(uint64_t step, uint32_t graph) {
  const uint64_t kernel_ns = g_settings.step_us * 1000 / (g_settings.kernels ? g_settings.kernels : 1);
  if (graph != 0) {
    standin_graph_launch(graph, 7, kernel_ns);
    g_launched += g_settings.kernels;
    ++g_calls;
    return;
  }
  for (uint64_t k = 0; k < g_settings.kernels; ++k) {
    nvtxRangePushA(k % 2 ? "attention" : "QKV");
    standin_launch(static_cast<uint32_t>(7 + k % g_settings.streams), "decode_kernel", kernel_ns);
    nvtxRangePop();
    ++g_launched;
    ++g_calls;
  }
  if (step % 4 == 0) standin_memcpy(7, 4096, 1000);
  if (step % 4 == 1) standin_memset(7, 512, 1000);
}

void Decode(uint64_t thread, uint64_t first, uint64_t last) {
  standin_context(static_cast<uint32_t>(thread % g_settings.devices));
  const uint32_t graph =
      g_settings.graph ? standin_graph(static_cast<uint32_t>(g_settings.kernels)) : 0;
  nvtxRangeId_t shared = 0;
  for (uint64_t step = first; step < last; ++step) {
    g_step = step;
    if (g_settings.take_over_at != 0 && step == g_settings.take_over_at) TakeOver();
    std::string name = "step:" + std::to_string(step);
    if (name.size() < g_settings.unique) name.resize(g_settings.unique, '.');
    if (g_settings.named) nvtxRangePushA(g_settings.unique ? name.c_str() : "step:decode");
    External(step, true);
    if (g_settings.start_end && step % 2 == 0) shared = nvtxRangeStartA("two steps");
    Launch(step, graph);
    if (g_settings.wait) standin_wait_event();
    External(step, false);
    if (g_settings.start_end && step % 2 == 1) nvtxRangeEnd(shared);
    while (g_settings.query && !standin_query()) usleep(20);
    if (g_settings.sync) cuCtxSynchronize();
    if (g_settings.slow_step != 0 && step == g_settings.slow_step) usleep(20'000);
    if (g_settings.named) nvtxRangePop();
    if (!g_settings.sync) usleep(static_cast<useconds_t>(g_settings.step_us * 11 / 10));
  }
}

// Launches work the steps know nothing of, with no range around it.
void Side(const std::atomic<bool>& stop) {
  standin_context(0);
  while (!stop && (g_settings.side_until == 0 || g_step < g_settings.side_until)) {
    standin_launch(99, "side_kernel", 300'000);
    usleep(500);
  }
}

struct AtThreadEnd {
  ~AtThreadEnd() {
    nvtxRangePushA("late");
    nvtxRangePop();
  }
};

// Ranges of two domains that do not nest, names that lie where others lay before, kept and wide ones.
void Mixed() {
  thread_local AtThreadEnd late;  // ends after what NVTX' handler keeps of this thread
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("other");
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = nvtxDomainRegisterStringA(domain, "kept");
  char place[32];
  for (int i = 0; i < 40; ++i) {
    std::snprintf(place, sizeof place, "name %d", i);
    nvtxRangePushA(place);
    nvtxDomainRangePushEx(domain, &attributes);
    nvtxRangePushW(L"gr\u00fc\u00dfe");
    nvtxRangePop();
    nvtxRangePop();
    nvtxDomainRangePop(domain);
  }
  for (int i = 0; i < 40; ++i) nvtxRangePushA("deep");
  for (int i = 0; i < 41; ++i) nvtxRangePop();
}

// Resident memory that is no file's, and so without the ring.
uint64_t SizeKib() {
  uint64_t all = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> all >> resident >> shared;
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

// Waits for CUPTI's delivery again and again: else its heap of records, and with it the size, would
// tell which of the threads the machine has favoured.
void Blast() {
  constexpr uint64_t kInOneGo = 4096, kLooks = 60;
  const uint64_t apart = g_settings.blast / kLooks + 1;
  for (uint64_t i = 1; i <= g_settings.blast; ++i) {
    standin_launch(7, "blast_kernel", 0);
    while (i % kInOneGo == 0 && Count("pending") >= kInOneGo) usleep(50);
    if (i % apart == 0) g_sizes_kib.push_back(SizeKib());
  }
}

void RunThreads(uint64_t first, uint64_t last) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  std::thread side;
  if (g_settings.side) side = std::thread([&stop] { Side(stop); });
  for (uint64_t t = 1; t < g_settings.threads; ++t) threads.emplace_back(Decode, t, first, last);
  Decode(0, first, last);
  for (std::thread& thread : threads) thread.join();
  stop = true;
  if (side.joinable()) side.join();
}

void Report(const char* who) {
  std::printf("{\"who\": \"%s\", \"pid\": %d, \"launched\": %llu, \"calls\": %llu", who, getpid(),
              static_cast<unsigned long long>(g_launched), static_cast<unsigned long long>(g_calls));
  for (const char* what : {"register", "enable", "disable", "finalize", "flush", "lost_at_edge", "subscribe",
                           "shared"})
    std::printf(", \"%s\": %llu", what, static_cast<unsigned long long>(Count(what)));
  std::printf(", \"sizes_kib\": [");
  for (size_t i = 0; i < g_sizes_kib.size(); ++i)
    std::printf("%s%llu", i ? ", " : "", static_cast<unsigned long long>(g_sizes_kib[i]));
  std::printf("]}\n");
  std::fflush(stdout);
}

void Close() {
  // NVTX and CUDA hold a handle each; a host that closes them too must find nothing unmapped.
  const char* path = std::getenv("CUDA_INJECTION64_PATH");
  void* agent = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  for (int i = 0; agent != nullptr && i < 4; ++i) dlclose(agent);
}

}  // namespace

int main(int argc, char** argv) {
  Parse(argc, argv);
  cuInit(0);
  standin_context(0);
  nvtxMarkA("start");  // NVTX sets itself up at its first call, which must not be two threads'
  if (g_settings.mixed) std::thread(Mixed).join();
  for (uint64_t i = 0; i < g_settings.warm_up; ++i) standin_launch(7, "warm_up_kernel", 1000);
  Blast();
  if (g_settings.fork_at != 0) {
    RunThreads(0, g_settings.fork_at);
    const pid_t child = fork();
    RunThreads(g_settings.fork_at, g_settings.steps);
    Report(child == 0 ? "child" : "parent");
    if (child == 0) std::exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 3;
  }
  RunThreads(0, g_settings.steps);
  Report("host");
  if (g_settings.exit == 1) _exit(0);
  if (g_settings.exit == 2) {
    Close();
    RunThreads(0, g_settings.steps);
  }
  return 0;
}
