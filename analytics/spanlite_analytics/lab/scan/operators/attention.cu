// SPLIT neighbouring threads share a query: each has HEAD / SPLIT of its numbers.
#include <cuda_fp16.h>
#include <math_constants.h>

constexpr int kThreads = BLOCK_Q * SPLIT, kPart = HEAD / SPLIT;

extern __shared__ __align__(16) __half2 kv[];

extern "C" __global__ void __launch_bounds__(kThreads)
attention(__half* out, const __half* q, const __half* k, const __half* v, int length) {
  __half2* keys = kv;
  __half2* values = kv + BLOCK_KV * HEAD / 2;
  int part = threadIdx.x % SPLIT, query = blockIdx.x * BLOCK_Q + threadIdx.x / SPLIT;
  size_t head = size_t(blockIdx.y) * length * HEAD;
  size_t own = head + size_t(query) * HEAD + part * kPart;
  float x[kPart], sum[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    x[i] = __half2float(q[own + i]) * rsqrtf(float(HEAD));
    sum[i] = 0.f;
  }
  float most = -CUDART_INF_F, total = 0.f;
  for (int start = 0; start < length; start += BLOCK_KV) {
    __syncthreads();
    const int4* from_k = reinterpret_cast<const int4*>(k + head + size_t(start) * HEAD);
    const int4* from_v = reinterpret_cast<const int4*>(v + head + size_t(start) * HEAD);
    for (int i = threadIdx.x; i < BLOCK_KV * HEAD / 8; i += kThreads) {
      reinterpret_cast<int4*>(keys)[i] = from_k[i];
      reinterpret_cast<int4*>(values)[i] = from_v[i];
    }
    __syncthreads();
    for (int j = 0; j < BLOCK_KV; ++j) {
      const __half2* key = keys + (j * HEAD + part * kPart) / 2;
      float score = 0.f;
#pragma unroll
      for (int i = 0; i < kPart; i += 2) {
        float2 pair = __half22float2(key[i / 2]);
        score += x[i] * pair.x + x[i + 1] * pair.y;
      }
#pragma unroll
      for (int d = 1; d < SPLIT; d *= 2) score += __shfl_xor_sync(0xffffffffu, score, d);
      float now = fmaxf(most, score), old = __expf(most - now), weight = __expf(score - now);
      most = now;
      total = total * old + weight;
      const __half2* value = values + (j * HEAD + part * kPart) / 2;
#pragma unroll
      for (int i = 0; i < kPart; i += 2) {
        float2 pair = __half22float2(value[i / 2]);
        sum[i] = sum[i] * old + weight * pair.x;
        sum[i + 1] = sum[i + 1] * old + weight * pair.y;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPart; ++i) out[own + i] = __float2half(sum[i] / total);
}
