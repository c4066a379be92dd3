// Verdicts. Each names the one rule that must speak; clean, that none may.
// order_flag_without_fence: atomic-order, block 32
// order_ticket_relaxed: atomic-order
// order_fixed_lock: clean, block 32
// order_fixed_acquire_release: clean, block 32
// order_fixed_compare_and_swap_max: clean
// order_fixed_ticket: clean

extern "C" __global__ void order_flag_without_fence(volatile int* flag, float* data, float* out) {
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      data[0] = 42.f;
      *flag = 1;
    }
  } else if (threadIdx.x == 0) {
    while (*flag == 0) {}
    out[blockIdx.x] = data[0];
  }
}

extern "C" __global__ void order_ticket_relaxed(float* total, float* partial, unsigned* ticket, const float* in) {
  int t = threadIdx.x;
  partial[blockIdx.x * 256 + t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  __shared__ unsigned mine;
  if (t == 0)
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;" : "=r"(mine) : "l"(ticket) : "memory");
  __syncthreads();
  if (mine + 1 != gridDim.x) return;
  float sum = 0.f;
  for (unsigned i = t; i < gridDim.x * 256; i += 256) sum += partial[i];
  atomicAdd(total, sum);
}

extern "C" __global__ void order_fixed_lock(int* lock, float* sum, const float* in) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    sum[0] += in[blockIdx.x];
    __threadfence();
    atomicExch(lock, 0);
  }
}

extern "C" __global__ void order_fixed_acquire_release(int* flag, float* data, float* out) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    data[0] = 42.f;
    asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
  } else {
    int seen = 0;
    while (seen == 0)
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    out[blockIdx.x] = data[0];
  }
}

extern "C" __global__ void order_fixed_compare_and_swap_max(float* best, const float* in, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  int* at = reinterpret_cast<int*>(best);
  int seen = *at;
  while (__int_as_float(seen) < in[i]) {
    int before = atomicCAS(at, seen, __float_as_int(in[i]));
    if (before == seen) break;
    seen = before;
  }
}

extern "C" __global__ void order_fixed_ticket(float* total, float* partial, unsigned* ticket, const float* in) {
  __shared__ unsigned mine;
  int t = threadIdx.x;
  partial[blockIdx.x * 256 + t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  if (t == 0)
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(mine) : "l"(ticket) : "memory");
  __syncthreads();
  if (mine + 1 != gridDim.x) return;
  float sum = 0.f;
  for (unsigned i = t; i < gridDim.x * 256; i += 256) sum += partial[i];
  atomicAdd(total, sum);
}
