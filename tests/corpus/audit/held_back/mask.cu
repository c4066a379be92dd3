// Verdicts. Each names the one rule that must speak; clean, that none may.
// mask_in_loop_with_tail: shuffle-mask
// mask_of_outer_branch: shuffle-mask
// mask_vote_in_branch: shuffle-mask
// mask_fixed_half_warp: clean
// mask_fixed_ballot_before_branch: clean
// mask_fixed_aggregated_counter: clean
// mask_fixed_active_mask_tail: clean

extern "C" __global__ void mask_in_loop_with_tail(float* out, const float* in, int n) {
  float best = 0.f;
  for (int i = threadIdx.x; i < n; i += 256) {
    float v = in[i];
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 16));
    best = fmaxf(best, v);
  }
  out[threadIdx.x] = best;
}

extern "C" __global__ void mask_of_outer_branch(int* out, const int* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  int v = in[i];
  unsigned positive = __ballot_sync(0xffffffffu, v > 0);
  if (v > 0) {
    if (v > 10) v += __shfl_sync(positive, v, __ffs(positive) - 1);
  }
  out[i] = v;
}

extern "C" __global__ void mask_vote_in_branch(int* out, const int* in) {
  int t = threadIdx.x, i = blockIdx.x * 256 + t, any = 0;
  if ((t & 31) < 8) any = __any_sync(0xffffffffu, in[i] > 3);
  out[i] = any;
}

extern "C" __global__ void mask_fixed_half_warp(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  float v = in[i];
  if (lane < 16) v += __shfl_down_sync(0x0000ffffu, v, 8, 16);
  out[i] = v;
}

extern "C" __global__ void mask_fixed_ballot_before_branch(float* out, const float* in, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  unsigned mask = __ballot_sync(0xffffffffu, i < n);
  if (i < n) {
    float v = in[i];
    v = fmaxf(v, __shfl_xor_sync(mask, v, 1));
    out[i] = v;
  }
}

extern "C" __global__ void mask_fixed_aggregated_counter(int* out, unsigned* count, const int* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  int v = in[i];
  unsigned keep = __ballot_sync(0xffffffffu, v > 0);
  if (v > 0) {
    int leader = __ffs(keep) - 1;
    unsigned base = 0;
    if (lane == leader) base = atomicAdd(count, __popc(keep));
    base = __shfl_sync(keep, base, leader);
    out[base + __popc(keep & ((1u << lane) - 1))] = v;
  }
}

extern "C" __global__ void mask_fixed_active_mask_tail(float* out, const float* in, int n) {
  float best = 0.f;
  int rounds = (n + 255) / 256;
  for (int r = 0; r < rounds; ++r) {
    int i = r * 256 + threadIdx.x;
    float v = i < n ? in[i] : 0.f;
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 16));
    best = fmaxf(best, v);
  }
  out[threadIdx.x] = best;
}
