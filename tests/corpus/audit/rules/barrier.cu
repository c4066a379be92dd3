// Verdicts. Each names the one rule that must speak; clean, that none may.
// barrier_for_some_threads: divergent-barrier
// barrier_in_both_arms: divergent-barrier
// barrier_fixed_uniform_branch: clean
// barrier_fixed_work_before_it: clean

extern "C" __global__ void barrier_for_some_threads(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  float v = s[t];
  if (t < 100) {
    __syncthreads();
    v = s[t] * 2.f;
  }
  out[blockIdx.x * 256 + t] = v;
}

extern "C" __global__ void barrier_in_both_arms(float* out, float* log, const float* in) {
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  if (t & 1) {
    log[i] = in[i];
    __syncthreads();
    out[i] = 1.f;
  } else {
    __syncthreads();
    out[i] = log[i];
  }
}

extern "C" __global__ void barrier_fixed_uniform_branch(float* out, const float* in, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float v = in[blockIdx.x * 256 + t];
  if (blockIdx.x < n) {
    s[t] = v;
    __syncthreads();
    v = s[255 - t];
  }
  out[blockIdx.x * 256 + t] = v;
}

extern "C" __global__ void barrier_fixed_work_before_it(float* out, const float* in) {
  __shared__ float s[100];
  int t = threadIdx.x;
  if (t < 100) s[t] = in[t];
  __syncthreads();
  out[blockIdx.x * 256 + t] = s[t % 100];
}
