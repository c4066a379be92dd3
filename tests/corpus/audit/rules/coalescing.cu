// Verdicts. Each names the one rule that must speak; clean, that none may.
// coalescing_column_walk: uncoalesced
// coalescing_every_other: uncoalesced
// coalescing_fixed_row_walk: clean
// coalescing_fixed_gather: clean

extern "C" __global__ void coalescing_column_walk(float* out, const float* in, int n) {
  int row = blockIdx.x * 256 + threadIdx.x;
  float sum = 0.f;
  for (int k = 0; k < n; ++k) sum += in[(size_t)row * n + k];
  out[row] = sum;
}

extern "C" __global__ void coalescing_every_other(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  out[i] = in[2 * i];
}

extern "C" __global__ void coalescing_fixed_row_walk(float* out, const float* in, int n) {
  int column = blockIdx.x * 256 + threadIdx.x;
  float sum = 0.f;
  for (int k = 0; k < n; ++k) sum += in[(size_t)k * n + column];
  out[column] = sum;
}

extern "C" __global__ void coalescing_fixed_gather(float* out, const float* in, const int* index, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[index[i]];
}
