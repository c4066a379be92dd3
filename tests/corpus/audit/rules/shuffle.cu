// Verdicts. Each names the one rule that must speak; clean, that none may.
// shuffle_cancels: shuffle-redundant
// shuffle_said_twice: shuffle-redundant
// shuffle_fixed_reduction: clean
// shuffle_fixed_broadcast_of_sum: clean

extern "C" __global__ void shuffle_cancels(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  v = __shfl_xor_sync(0xffffffffu, v, 1);
  v = __shfl_xor_sync(0xffffffffu, v, 1);
  out[i] = v;
}

extern "C" __global__ void shuffle_said_twice(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  float a = v * __shfl_down_sync(0xffffffffu, v, 4);
  float b = v + __shfl_down_sync(0xffffffffu, v, 4);
  out[i] = a - b;
}

extern "C" __global__ void shuffle_fixed_reduction(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  if ((threadIdx.x & 31) == 0) out[i >> 5] = v;
}

extern "C" __global__ void shuffle_fixed_broadcast_of_sum(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  out[i] = __shfl_sync(0xffffffffu, v, 0);
}
