// Verdicts. Each names the one rule that must speak; clean, that none may.
// local_array_with_run_time_index: local-memory
// local_fixed_many_registers: clean

extern "C" __global__ void local_array_with_run_time_index(int* out, const int* in, int n) {
  int bins[16] = {};
  int i = blockIdx.x * 256 + threadIdx.x;
  for (int k = 0; k < n; ++k) bins[in[k * 65536 + i] & 15] += 1;
  int best = 0;
#pragma unroll
  for (int b = 0; b < 16; ++b) best = max(best, bins[b]);
  out[i] = best;
}

extern "C" __global__ void __launch_bounds__(256) local_fixed_many_registers(float* out, const float* in, int n) {
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
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
