// Verdicts. Each names the one rule that must speak; clean, that none may.
// tiles_sum: clean
// tiles_with_one_mask: shuffle-mask

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

extern "C" __global__ void tiles_sum(float* out, const float* in, int n) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  float v = 0.f;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += in[i];
  for (int d = 8; d > 0; d /= 2) v += tile.shfl_down(v, d);
  if (tile.thread_rank() == 0) atomicAdd(out, v);
}

extern "C" __global__ void tiles_with_one_mask(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  for (int d = 8; d > 0; d /= 2) v += __shfl_down_sync(0x0000ffffu, v, d, 16);
  if (threadIdx.x % 16 == 0) out[i / 16] = v;
}
