// Verdicts. Each names the one rule that must speak; clean, that none may.
// generic_either_memory: generic-address
// generic_fixed_inlined: clean

extern "C" __global__ void generic_either_memory(float* out, const float* in, int cached) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  const float* from = cached ? s : in;
  float sum = 0.f;
  for (int k = 0; k < 16; ++k) sum += from[(t + 16 * k) & 255];
  out[blockIdx.x * 256 + t] = sum;
}

__device__ __forceinline__ float total_inlined(const float* values, int count) {
  float sum = 0.f;
  for (int k = 0; k < count; ++k) sum += values[k];
  return sum;
}
extern "C" __global__ void generic_fixed_inlined(float* out, const float* in, int n) {
  __shared__ float s[256];
  s[threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 256 + threadIdx.x] = total_inlined(s, n & 255);
}
