// A plain CUDA program for the agent: kernels in a graph and out of it, copies, waits, NVTX steps, one
// step that is slow. Prints what it launched as one JSON object.
//   agent_plain STEPS SLOW_STEP
// Ids of another library (external correlation) are pushed through the process's own libcupti, where
// the agent has loaded one. `build_agent_plain.sh` builds it with the runtime of CUDA 12 or 13.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                                      \
  do {                                                                                   \
    const cudaError_t code = (call);                                                     \
    if (code != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));                 \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)

constexpr int kThreads = 256, kElements = 1 << 16, kNodes = 8, kKernels = 3;
constexpr uint64_t kSlowCycles = 40'000'000;  // some 20 ms

// The kernels, as the driver takes them, so that g++ alone builds this for any CUDA: `scale` halves,
// `node` adds one, `spin` waits so many cycles.
const char* const kPtx = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 x) {
  .reg .f32 %f<3>; .reg .b32 %r<4>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [x];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 256, %r2;
  mad.wide.u32 %d2, %r3, 4, %d1; cvta.to.global.u64 %d3, %d2;
  ld.global.f32 %f1, [%d3]; mul.f32 %f2, %f1, 0f3F000000; st.global.f32 [%d3], %f2;
  ret;
}
.visible .entry node(.param .u64 x) {
  .reg .f32 %f<3>; .reg .b32 %r<4>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [x];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 256, %r2;
  mad.wide.u32 %d2, %r3, 4, %d1; cvta.to.global.u64 %d3, %d2;
  ld.global.f32 %f1, [%d3]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%d3], %f2;
  ret;
}
.visible .entry spin(.param .u64 cycles) {
  .reg .pred %p<2>; .reg .b64 %d<5>;
  ld.param.u64 %d1, [cycles]; mov.u64 %d2, %clock64;
again:
  mov.u64 %d3, %clock64; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1;
  @%p1 bra again;
  ret;
}
)";

cudaKernel_t Kernel(cudaLibrary_t library, const char* name) {
  cudaKernel_t kernel = nullptr;
  CHECK(cudaLibraryGetKernel(&kernel, library, name));
  return kernel;
}

void Launch(cudaKernel_t kernel, int blocks, int threads, uint64_t argument, cudaStream_t stream) {
  void* arguments[] = {&argument};
  CHECK(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, 0, stream));
}

using Push = int (*)(int kind, uint64_t id);
using Pop = int (*)(int kind, uint64_t* last);
constexpr int kCustom0 = 3;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0

void* Cupti() {
  for (const char* name : {"libcupti.so.12", "libcupti.so.13"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  return nullptr;
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 50;
  const int slow_step = argc > 2 ? std::atoi(argv[2]) : -1;
  cudaLibrary_t library = nullptr;
  CHECK(cudaLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  const cudaKernel_t scale = Kernel(library, "scale"), node = Kernel(library, "node"),
                     spin = Kernel(library, "spin");
  float* x = nullptr;
  float* host = nullptr;
  CHECK(cudaMalloc(&x, kElements * sizeof(float)));
  CHECK(cudaMallocHost(&host, kElements * sizeof(float)));
  const auto address = reinterpret_cast<uint64_t>(x);
  cudaStream_t stream, second;
  cudaEvent_t event;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamCreate(&second));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaMemsetAsync(x, 0, kElements * sizeof(float), stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kNodes; ++i) Launch(node, kElements / kThreads, kThreads, address, stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  const auto push = reinterpret_cast<Push>(
      Cupti() ? dlsym(Cupti(), "cuptiActivityPushExternalCorrelationId") : nullptr);
  const auto pop = reinterpret_cast<Pop>(
      Cupti() ? dlsym(Cupti(), "cuptiActivityPopExternalCorrelationId") : nullptr);
  for (int step = 0; step < steps; ++step) {
    char name[32];
    std::snprintf(name, sizeof name, "step:%d", step);
    nvtxRangePushA(name);
    nvtxRangePushA("attention");
    if (push != nullptr) push(kCustom0, 1000 + step);
    for (int i = 0; i < kKernels; ++i)
      Launch(scale, kElements / kThreads, kThreads, address, stream);
    uint64_t last = 0;
    if (pop != nullptr) pop(kCustom0, &last);
    nvtxRangePop();
    CHECK(cudaGraphLaunch(executable, stream));
    if (step == slow_step) Launch(spin, 1, 1, kSlowCycles, stream);
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(second, event, 0));
    CHECK(cudaMemcpyAsync(host, x, 4096, cudaMemcpyDeviceToHost, second));
    CHECK(cudaStreamSynchronize(second));
    nvtxRangePop();
  }
  CHECK(cudaDeviceSynchronize());
  int runtime = 0, driver = 0;
  CHECK(cudaRuntimeGetVersion(&runtime));
  CHECK(cudaDriverGetVersion(&driver));
  std::printf("{\"steps\": %d, \"kernels\": %d, \"copies\": %d, \"external\": %d, \"first\": %g, "
              "\"runtime\": %d, \"driver\": %d}\n",
              steps, steps * (kNodes + kKernels) + (slow_step >= 0 && slow_step < steps), steps,
              push != nullptr ? steps * kKernels : 0, static_cast<double>(host[0]), runtime, driver);
  return 0;
}
