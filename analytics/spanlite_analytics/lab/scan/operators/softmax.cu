// out = exp(in - max) / sum of exp, each row by one block that keeps it in registers.
#include <math_constants.h>

struct alignas(4 * VECTOR) Floats {
  float f[VECTOR];
};

constexpr int kWarps = THREADS / 32;
constexpr int kTurns = WIDTH / (THREADS * VECTOR);

template <typename Op>
__device__ float row_reduce(float v, float* part, Op op) {
  for (int d = 16; d > 0; d /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
  if constexpr (kWarps > 1) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < kWarps; ++i) v = op(v, part[i]);
  }
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax(float* out, const float* in, int width) {
  __shared__ float part[kWarps];
  const Floats* from = reinterpret_cast<const Floats*>(in + size_t(blockIdx.x) * width);
  Floats* to = reinterpret_cast<Floats*>(out + size_t(blockIdx.x) * width);
  Floats x[kTurns];
  float most = -CUDART_INF_F, sum = 0.f;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    x[t] = from[t * THREADS + threadIdx.x];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) most = fmaxf(most, x[t].f[v]);
  }
  most = row_reduce(most, part, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int t = 0; t < kTurns; ++t)
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) sum += x[t].f[v] = __expf(x[t].f[v] - most);
  float scale = 1.f / row_reduce(sum, part, [](float a, float b) { return a + b; });
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) x[t].f[v] *= scale;
    to[t * THREADS + threadIdx.x] = x[t];
  }
}
