// Verdicts. Each names the one rule that must speak; clean, that none may.
// barrier_by_data: divergent-barrier
// barrier_in_strided_loop: divergent-barrier
// barrier_count_too_high: divergent-barrier
// barrier_fixed_padded_loop: clean
// barrier_fixed_any_thread: clean
// barrier_fixed_named_halves: clean
// barrier_fixed_producer_consumer: clean

extern "C" __global__ void barrier_by_data(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  while (v > 1.f) {
    v *= 0.5f;
    __syncthreads();
  }
  out[i] = v;
}

extern "C" __global__ void barrier_in_strided_loop(float* out, const float* in, int n) {
  __shared__ float s[256];
  for (int i = threadIdx.x; i < n; i += 256) {
    s[threadIdx.x] = in[i];
    __syncthreads();
    out[i] = s[threadIdx.x];
  }
}

extern "C" __global__ void barrier_count_too_high(float* out, const float* in) {
  int t = threadIdx.x;
  float v = in[blockIdx.x * 256 + t];
  if (t < 64) asm volatile("bar.sync 1, 128;" ::: "memory");
  out[blockIdx.x * 256 + t] = v;
}

extern "C" __global__ void barrier_fixed_padded_loop(float* out, const float* in, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  for (int base = 0; base < n; base += 256) {
    int i = base + t;
    s[t] = i < n ? in[i] : 0.f;
    __syncthreads();
    if (i < n) out[i] = s[t ^ 1];
    __syncthreads();
  }
}

extern "C" __global__ void barrier_fixed_any_thread(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  while (__syncthreads_or(v > 1.f)) {
    if (v > 1.f) v *= 0.5f;
  }
  out[i] = v;
}

extern "C" __global__ void barrier_fixed_named_halves(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  if (t < 128)
    asm volatile("bar.sync 1, 128;" ::: "memory");
  else
    asm volatile("bar.sync 2, 128;" ::: "memory");
  out[blockIdx.x * 256 + t] = s[t ^ 64];
}

extern "C" __global__ void barrier_fixed_producer_consumer(float* out, const float* in) {
  __shared__ float s[128];
  int t = threadIdx.x;
  if (t < 128) {
    s[t] = in[blockIdx.x * 128 + t];
    asm volatile("bar.arrive 1, 256;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    out[blockIdx.x * 128 + t - 128] = s[255 - t];
  }
}
