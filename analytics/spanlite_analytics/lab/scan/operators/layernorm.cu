// out = (in - mean) / deviation * gain + shift, each row by THREADS threads that keep it in registers.
#include <cuda_fp16.h>

struct alignas(2 * VECTOR) Halves {
  __half h[VECTOR];
};

constexpr int kWarps = THREADS / 32;

// The sum over the THREADS threads of a row.
__device__ float row_sum(float v, float* part) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if constexpr (kWarps > 1) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.f;
    for (int i = 0; i < kWarps; ++i) v += part[i];
  }
  return v;
}

constexpr int kTurns = WIDTH / (THREADS * VECTOR);

extern "C" __global__ void __launch_bounds__(THREADS * ROWS_A_BLOCK)
layernorm(__half* out, const __half* in, const float* gain, const float* shift, int rows, int width) {
  __shared__ float parts[ROWS_A_BLOCK][kWarps];
  // The last block's spare rows do the last row again: all threads meet at each barrier.
  int row = min(int(blockIdx.x * ROWS_A_BLOCK + threadIdx.y), rows - 1);
  const Halves* from = reinterpret_cast<const Halves*>(in + size_t(row) * width);
  Halves* to = reinterpret_cast<Halves*>(out + size_t(row) * width);
  float* part = parts[threadIdx.y];
  Halves x[kTurns];
  float sum = 0.f;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    x[t] = from[t * THREADS + threadIdx.x];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) sum += __half2float(x[t].h[v]);
  }
  float mean = row_sum(sum, part) / width, squares = 0.f;
#pragma unroll
  for (int t = 0; t < kTurns; ++t)
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      float d = __half2float(x[t].h[v]) - mean;
      squares += d * d;
    }
  float scale = rsqrtf(row_sum(squares, part) / width + 1e-5f);
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    Halves y;
    int at = (t * THREADS + threadIdx.x) * VECTOR;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v)
      y.h[v] = __float2half((__half2float(x[t].h[v]) - mean) * scale * gain[at + v] + shift[at + v]);
    to[t * THREADS + threadIdx.x] = y;
  }
}
