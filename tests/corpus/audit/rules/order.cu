// Verdicts. Each names the one rule that must speak; clean, that none may.
// order_last_block_without_fence: atomic-order
// order_lock_without_fence: atomic-order, block 32
// order_spin_on_plain_load: endless-loop, block 32
// order_fixed_last_block: clean
// order_fixed_work_queue: clean, block 32

extern "C" __global__ void order_last_block_without_fence(float* total, float* partial, unsigned* arrived, const float* in) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *total = sum;
  }
}

extern "C" __global__ void order_lock_without_fence(int* lock, float* sum, const float* in) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    sum[0] += in[blockIdx.x];
    atomicExch(lock, 0);
  }
}

extern "C" __global__ void order_spin_on_plain_load(const int* flag, float* out, const float* in) {
  if (threadIdx.x == 0)
    while (*flag == 0) {}
  out[threadIdx.x] = in[threadIdx.x];
}

extern "C" __global__ void order_fixed_last_block(float* total, float* partial, unsigned* arrived, const float* in) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *total = sum;
  }
}

extern "C" __global__ void order_fixed_work_queue(unsigned* next, float* out, const float* in, unsigned n) {
  for (;;) {
    unsigned item = 0;
    if (threadIdx.x == 0) item = atomicAdd(next, 1u);
    item = __shfl_sync(0xffffffffu, item, 0);
    if (item >= n) break;
    out[item * 32 + threadIdx.x] = in[item * 32 + threadIdx.x] * 2.f;
  }
}
