// Verdicts. Each names the one rule that must speak; clean, that none may.
// scope_system_histogram: scope-wide
// scope_device_fence_for_shared: scope-wide
// scope_block_fence_between_blocks: scope-narrow
// scope_fixed_block_counter: clean
// scope_fixed_shared_counter: clean

extern "C" __global__ void scope_system_histogram(unsigned* bins, const unsigned char* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd_system(&bins[in[i]], 1u);
}

extern "C" __global__ void scope_device_fence_for_shared(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __threadfence();
  __syncthreads();
  out[blockIdx.x * 256 + t] = s[255 - t];
}

extern "C" __global__ void scope_block_fence_between_blocks(float* total, float* partial, unsigned* arrived, const float* in) {
  if (threadIdx.x != 0) return;
  partial[blockIdx.x] = in[blockIdx.x];
  __threadfence_block();
  if (atomicAdd(arrived, 1u) != gridDim.x - 1) return;
  __threadfence_block();
  float sum = 0.f;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
  *total = sum;
}

extern "C" __global__ void scope_fixed_block_counter(unsigned* count, const float* in, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n && in[i] > 0.f) atomicAdd_block(count + blockIdx.x, 1u);
}

extern "C" __global__ void scope_fixed_shared_counter(unsigned* count, const float* in, int n) {
  __shared__ unsigned here;
  int i = blockIdx.x * 256 + threadIdx.x;
  if (threadIdx.x == 0) here = 0;
  __syncthreads();
  if (i < n && in[i] > 0.f) atomicAdd_block(&here, 1u);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(count, here);
}
