// Verdicts. Each names the one rule that must speak; clean, that none may.
// vector_half_pairs: unvectorised
// vector_fixed_half2: clean
// vector_fixed_planes: clean

#include <cuda_fp16.h>

extern "C" __global__ void vector_half_pairs(float* out, const __half* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  out[i] = __half2float(in[2 * i]) + __half2float(in[2 * i + 1]);
}

extern "C" __global__ void vector_fixed_half2(float* out, const __half2* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float2 v = __half22float2(in[i]);
  out[i] = v.x + v.y;
}

extern "C" __global__ void vector_fixed_planes(float* out, const float* in, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  out[i] = in[i] + in[i + n] + in[i + 2 * n];
}
