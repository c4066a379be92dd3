// Verdicts. Each names the one rule that must speak; clean, that none may.
// local_spill_by_flag: local-memory
// flags: -maxrregcount=24

extern "C" __global__ void local_spill_by_flag(double* out, const double* in, int n) {
  double a[16];
  int i = blockIdx.x * 256 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 16; ++k) a[k] = in[(size_t)k * n + i];
#pragma unroll
  for (int k = 0; k < 16; ++k) a[k] = fma(a[(k + 3) & 15], a[(k + 5) & 15], a[k]);
  double sum = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) sum += a[k] * a[15 - k];
  out[i] = sum;
}
