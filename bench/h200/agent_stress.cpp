// Threads that launch as fast as they can, for windows to be opened and closed beside them: graphs of
// several streams, single launches, copies and sets, each thread with steps of its own. All work is
// integer arithmetic on the device, done once more on the host: after each round every bit is compared.
//   agent_stress SECONDS THREADS [churn | graphs | single | sets]
// `churn`: each round has threads of its own; `graphs`, `single`, `sets`: all threads launch graphs,
// single kernels, or graphs that set memory, alone. Prints one JSON object; the exit code is 1 where a bit
// differs. `build_agent_plain.sh` builds it: g++ is enough.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                                      \
  do {                                                                                   \
    const cudaError_t code = (call);                                                     \
    if (code != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));                 \
      std::_Exit(3);                                                                     \
    }                                                                                    \
  } while (0)

constexpr int kThreads = 128, kElements = 1024, kKernels = 6, kSteps = 40;
constexpr uint32_t kFactor = 1664525, kSummand = 1013904223;

// mix: x = x * factor + summand + index, so many times. fold: x += y.
const char* const kPtx = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry mix(.param .u64 x, .param .u64 times) {
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<6>;
  ld.param.u64 %d1, [x]; ld.param.u64 %d4, [times];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 128, %r2;
  mad.wide.u32 %d2, %r3, 4, %d1; cvta.to.global.u64 %d3, %d2;
  add.u32 %r5, %r3, 1013904223;
  ld.global.u32 %r4, [%d3];
again:
  mad.lo.u32 %r4, %r4, 1664525, %r5;
  sub.u64 %d4, %d4, 1; setp.ne.u64 %p1, %d4, 0;
  @%p1 bra again;
  st.global.u32 [%d3], %r4;
  ret;
}
.visible .entry fold(.param .u64 x, .param .u64 y) {
  .reg .b32 %r<8>; .reg .b64 %d<8>;
  ld.param.u64 %d1, [x]; ld.param.u64 %d4, [y];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 128, %r2;
  mad.wide.u32 %d2, %r3, 4, %d1; cvta.to.global.u64 %d3, %d2;
  mad.wide.u32 %d5, %r3, 4, %d4; cvta.to.global.u64 %d6, %d5;
  ld.global.u32 %r4, [%d3]; ld.global.u32 %r5, [%d6];
  add.u32 %r4, %r4, %r5;
  st.global.u32 [%d3], %r4;
  ret;
}
)";

cudaKernel_t g_mix, g_fold;
std::mutex g_building;  // as a program builds its graphs before it serves
std::atomic<uint64_t> g_rounds{0}, g_wrong{0}, g_steps{0};

// What a thread does: streams, and whether its steps are one graph.
struct Shape {
  int streams;
  bool graph;
  bool sets = false;  // memory that nobody reads is set in each step
};
constexpr Shape kShapes[] = {{4, true}, {2, false}, {8, true}, {4, true, true}};
constexpr size_t kKinds = 3;  // of those that threads have in turn

void Launch(cudaKernel_t kernel, uint64_t first, uint64_t second, cudaStream_t stream) {
  void* arguments[] = {&first, &second};
  CHECK(cudaLaunchKernel(kernel, dim3(kElements / kThreads), dim3(kThreads), arguments, 0, stream));
}

class Load {
 public:
  explicit Load(const Shape& shape) : shape_(shape), result_(kElements) {
    std::lock_guard<std::mutex> lock(g_building);
    CHECK(cudaSetDevice(0));
    streams_.resize(shape.streams);
    arrays_.resize(shape.streams);
    events_.resize(shape.streams);
    for (cudaStream_t& stream : streams_)
      CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_)
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (uint32_t*& array : arrays_) CHECK(cudaMalloc(&array, kElements * sizeof(uint32_t)));
    CHECK(cudaMalloc(&scratch_, kElements));
    if (!shape.graph) return;
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
    Enqueue();
    CHECK(cudaStreamEndCapture(streams_[0], &graph));
    CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }

  ~Load() {
    std::lock_guard<std::mutex> lock(g_building);
    if (graph_ != nullptr) CHECK(cudaGraphExecDestroy(graph_));
    for (uint32_t* array : arrays_) CHECK(cudaFree(array));
    CHECK(cudaFree(scratch_));
    for (cudaEvent_t event : events_) CHECK(cudaEventDestroy(event));
    for (cudaStream_t stream : streams_) CHECK(cudaStreamDestroy(stream));
  }

  // A round from a state of zeros; what its first array holds then.
  const std::vector<uint32_t>& Round() {
    for (int step = 0; step < kSteps; ++step) {
      char name[32];
      std::snprintf(name, sizeof name, "step:%d", step);
      nvtxRangePushA(name);
      if (step == 0)
        for (uint32_t* array : arrays_)
          CHECK(cudaMemsetAsync(array, 0, kElements * sizeof(uint32_t), streams_[0]));
      if (graph_ != nullptr) CHECK(cudaGraphLaunch(graph_, streams_[0]));
      else Enqueue();
      if (step == kSteps - 1)
        CHECK(cudaMemcpyAsync(result_.data(), arrays_[0], kElements * sizeof(uint32_t),
                              cudaMemcpyDeviceToHost, streams_[0]));
      CHECK(cudaStreamSynchronize(streams_[0]));
      nvtxRangePop();
    }
    g_steps += kSteps;
    return result_;
  }

 private:
  // All streams mix their arrays, the first one folds them together; a copy starts the next one.
  void Enqueue() {
    CHECK(cudaEventRecord(events_[0], streams_[0]));
    for (int at = 0; at < shape_.streams; ++at) {
      if (at != 0) CHECK(cudaStreamWaitEvent(streams_[at], events_[0], 0));
      for (int kernel = 1; kernel <= kKernels; ++kernel)
        Launch(g_mix, Address(at), kernel, streams_[at]);
      if (at == 0) continue;
      CHECK(cudaEventRecord(events_[at], streams_[at]));
      CHECK(cudaStreamWaitEvent(streams_[0], events_[at], 0));
      Launch(g_fold, Address(0), Address(at), streams_[0]);
    }
    if (shape_.sets) CHECK(cudaMemsetAsync(scratch_, 1, kElements, streams_[0]));
    CHECK(cudaMemcpyAsync(arrays_[1], arrays_[0], kElements * sizeof(uint32_t),
                          cudaMemcpyDeviceToDevice, streams_[0]));
  }

  uint64_t Address(int at) const { return reinterpret_cast<uint64_t>(arrays_[at]); }

  const Shape shape_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<uint32_t*> arrays_;
  std::vector<uint32_t> result_;
  void* scratch_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

// The same on the host.
std::vector<uint32_t> Expected(const Shape& shape) {
  std::vector<std::vector<uint32_t>> arrays(shape.streams, std::vector<uint32_t>(kElements));
  for (int step = 0; step < kSteps; ++step) {
    for (auto& array : arrays)
      for (int kernel = 1; kernel <= kKernels; ++kernel)
        for (int time = 0; time < kernel; ++time)
          for (uint32_t i = 0; i < kElements; ++i) array[i] = array[i] * kFactor + kSummand + i;
    for (size_t at = 1; at < arrays.size(); ++at)
      for (uint32_t i = 0; i < kElements; ++i) arrays[0][i] += arrays[at][i];
    arrays[1] = arrays[0];
  }
  return arrays[0];
}

void Judge(const std::vector<uint32_t>& found, const std::vector<uint32_t>& expected) {
  ++g_rounds;
  if (std::memcmp(found.data(), expected.data(), kElements * sizeof(uint32_t)) != 0) ++g_wrong;
}

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 3;
  const std::string word = argc > 3 ? argv[3] : "";
  const bool churn = word == "churn";
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto over = [end] { return std::chrono::steady_clock::now() >= end; };
  std::vector<std::vector<uint32_t>> expected;
  for (const Shape& shape : kShapes) expected.push_back(Expected(shape));
  cudaLibrary_t library = nullptr;
  CHECK(cudaLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(cudaLibraryGetKernel(&g_mix, library, "mix"));
  CHECK(cudaLibraryGetKernel(&g_fold, library, "fold"));
  do {
    std::vector<std::thread> running;
    for (int at = 0; at < threads; ++at) {
      const size_t kind = word == "graphs" ? 0 : word == "single" ? 1 : word == "sets" ? 3 : at % kKinds;
      running.emplace_back([kind, churn, &over, &expected] {
        Load load(kShapes[kind]);
        do Judge(load.Round(), expected[kind]);
        while (!churn && !over());
      });
    }
    for (std::thread& thread : running) thread.join();
  } while (!over());
  std::printf("{\"rounds\": %llu, \"wrong\": %llu, \"steps\": %llu}\n",
              static_cast<unsigned long long>(g_rounds), static_cast<unsigned long long>(g_wrong),
              static_cast<unsigned long long>(g_steps));
  return g_wrong == 0 ? 0 : 1;
}
