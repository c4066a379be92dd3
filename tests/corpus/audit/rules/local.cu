// Verdicts. Each names the one rule that must speak; clean, that none may.
// local_spill: local-memory, block 1024
// local_fixed_unrolled_array: clean

extern "C" __global__ void __launch_bounds__(1024, 2) local_spill(float* out, const float* in, int n) {
  float a[48];
#pragma unroll
  for (int k = 0; k < 48; ++k) a[k] = in[k * n + threadIdx.x];
  for (int r = 0; r < n; ++r) {
#pragma unroll
    for (int k = 0; k < 48; ++k) a[k] = a[k] * a[(k + 7) % 48] + 1.f;
  }
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < 48; ++k) sum += a[k] * k;
  out[threadIdx.x] = sum;
}

extern "C" __global__ void local_fixed_unrolled_array(float* out, const float* in) {
  float a[8];
  int i = blockIdx.x * 256 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 8; ++k) a[k] = in[k * 65536 + i];
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += a[k] * a[7 - k];
  out[i] = sum;
}
