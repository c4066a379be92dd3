// Verdicts. Each names the one rule that must speak; clean, that none may.
// mask_names_absent_lanes: shuffle-mask
// mask_leaves_out_callers: shuffle-mask
// mask_fixed_whole_warps: clean

extern "C" __global__ void mask_names_absent_lanes(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  float v = in[i];
  if (lane < 16) v += __shfl_down_sync(0xffffffffu, v, 8);
  out[i] = v;
}

extern "C" __global__ void mask_leaves_out_callers(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  v += __shfl_down_sync(0x0000ffffu, v, 8);
  out[i] = v;
}

extern "C" __global__ void mask_fixed_whole_warps(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  if (threadIdx.x < 64) v += __shfl_down_sync(0xffffffffu, v, 8);
  out[i] = v;
}
