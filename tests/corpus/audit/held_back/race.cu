// Verdicts. Each names the one rule that must speak; clean, that none may.
// race_tile_reused_too_early: shared-race
// race_warp_synchronous_style: shared-race, block 32
// race_transpose_without_barrier: shared-race, block 32 8
// race_scan_in_place: shared-race, block 128
// race_skipped_by_continue: shared-race
// race_fixed_double_buffer: clean
// race_fixed_warp_private: clean
// race_fixed_scan: clean, block 128
// race_fixed_transpose: clean, block 32 8
// race_fixed_swizzled_transpose: clean, block 32 8
// race_fixed_uniform_continue: clean
// race_fixed_shared_histogram: clean
// race_fixed_two_stage_reduction: clean
// race_fixed_dynamic_shared: clean

extern "C" __global__ void race_tile_reused_too_early(float* out, const float* in, int tiles) {
  __shared__ float tile[256];
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < tiles; ++i) {
    tile[t] = in[i * 256 + t];
    __syncthreads();
    for (int k = 0; k < 8; ++k) sum += tile[(t + 32 * k) & 255];
  }
  out[blockIdx.x * 256 + t] = sum;
}

extern "C" __global__ void race_warp_synchronous_style(float* out, const float* in) {
  __shared__ volatile float s[64];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 32 + t];
  s[t + 32] = 0.f;
  s[t] = s[t] + s[t + 16];
  s[t] = s[t] + s[t + 8];
  s[t] = s[t] + s[t + 4];
  if (t == 0) out[blockIdx.x] = s[0];
}

extern "C" __global__ void race_transpose_without_barrier(float* out, const float* in, int width) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * width + x];
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    out[(size_t)(y + j) * width + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void race_scan_in_place(int* out, const int* in) {
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 128 + t];
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    int before = t >= d ? s[t - d] : 0;
    s[t] += before;
    __syncthreads();
  }
  out[blockIdx.x * 128 + t] = s[t];
}

extern "C" __global__ void race_skipped_by_continue(float* out, const float* in, const int* skip, int tiles) {
  __shared__ float tile[256];
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < tiles; ++i) {
    tile[t] = in[i * 256 + t];
    if (skip[i]) continue;
    __syncthreads();
    sum += tile[t ^ 64];
    __syncthreads();
  }
  out[blockIdx.x * 256 + t] = sum + tile[t ^ 1];
}

extern "C" __global__ void race_fixed_double_buffer(float* out, const float* in, int tiles) {
  __shared__ float tile[2][256];
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < tiles; ++i) {
    tile[i & 1][t] = in[i * 256 + t];
    __syncthreads();
    sum += tile[i & 1][255 - t];
  }
  out[blockIdx.x * 256 + t] = sum;
}

extern "C" __global__ void race_fixed_warp_private(float* out, const float* in) {
  __shared__ float s[8][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  s[warp][lane] = in[blockIdx.x * 256 + threadIdx.x];
  __syncwarp();
  float v = s[warp][31 - lane];
  __syncwarp();
  s[warp][lane] = v * 2.f;
  __syncwarp();
  out[blockIdx.x * 256 + threadIdx.x] = v + s[warp][lane ^ 1];
}

extern "C" __global__ void race_fixed_scan(int* out, const int* in) {
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 128 + t];
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    int before = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += before;
    __syncthreads();
  }
  out[blockIdx.x * 128 + t] = s[t];
}

extern "C" __global__ void race_fixed_transpose(float* out, const float* in, int width) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    out[(size_t)(y + j) * width + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void race_fixed_swizzled_transpose(float* out, const float* in, int width) {
  __shared__ float tile[32 * 32];
  int tx = threadIdx.x, ty = threadIdx.y;
  for (int j = ty; j < 32; j += 8)
    tile[j * 32 + (tx ^ j)] = in[(size_t)(blockIdx.y * 32 + j) * width + blockIdx.x * 32 + tx];
  __syncthreads();
  for (int j = ty; j < 32; j += 8)
    out[(size_t)(blockIdx.x * 32 + j) * width + blockIdx.y * 32 + tx] = tile[tx * 32 + (j ^ tx)];
}

extern "C" __global__ void race_fixed_uniform_continue(float* out, const float* in, const int* skip, int tiles) {
  __shared__ float tile[256];
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < tiles; ++i) {
    if (skip[i]) continue;
    tile[t] = in[i * 256 + t];
    __syncthreads();
    sum += tile[t ^ 64];
    __syncthreads();
  }
  out[blockIdx.x * 256 + t] = sum;
}

extern "C" __global__ void race_fixed_shared_histogram(unsigned* bins, const unsigned char* in, int n) {
  __shared__ unsigned local[256];
  local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
    atomicAdd(&local[in[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

extern "C" __global__ void race_fixed_two_stage_reduction(float* out, const float* in, int n) {
  __shared__ float part[8];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float v = 0.f;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += in[i];
  for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  if (lane == 0) part[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < 8 ? part[lane] : 0.f;
    for (int d = 4; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (lane == 0) out[blockIdx.x] = v;
  }
}

extern __shared__ float dynamic_memory[];
extern "C" __global__ void race_fixed_dynamic_shared(float* out, const float* in, int n) {
  float* left = dynamic_memory;
  float* right = dynamic_memory + blockDim.x;
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  left[t] = i < n ? in[i] : 0.f;
  right[t] = left[t] * 2.f;
  __syncthreads();
  if (i < n) out[i] = right[blockDim.x - 1 - t] + left[blockDim.x - 1 - t];
}
