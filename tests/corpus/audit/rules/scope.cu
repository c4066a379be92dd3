// Verdicts. Each names the one rule that must speak; clean, that none may.
// scope_system_fence: scope-wide
// scope_block_counter: scope-narrow
// scope_fixed_histogram: clean

extern "C" __global__ void scope_system_fence(float* total, float* partial, unsigned* arrived, const float* in) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    __threadfence_system();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __threadfence_system();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += __ldcg(partial + i);
    *total = sum;
  }
}

extern "C" __global__ void scope_block_counter(unsigned* count, const float* in, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n && in[i] > 0.f) atomicAdd_block(count, 1u);
}

extern "C" __global__ void scope_fixed_histogram(unsigned* bins, const unsigned char* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[in[i]], 1u);
}
