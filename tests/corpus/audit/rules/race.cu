// Verdicts. Each names the one rule that must speak; clean, that none may.
// race_neighbour: shared-race
// race_barrier_on_one_path: shared-race
// race_reduction_without_barrier_in_loop: shared-race
// race_broadcast_slot: shared-race
// race_fixed_neighbour: clean
// race_fixed_own_slot: clean
// race_fixed_reduction: clean
// race_fixed_tiles: clean

extern "C" __global__ void race_neighbour(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  out[blockIdx.x * 256 + t] = s[(t + 1) & 255];
}

extern "C" __global__ void race_barrier_on_one_path(float* out, const float* in, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  if (n > 3) __syncthreads();
  out[blockIdx.x * 256 + t] = s[255 - t];
}

extern "C" __global__ void race_reduction_without_barrier_in_loop(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  for (int half = 128; half > 0; half >>= 1) {
    if (t < half) s[t] += s[t + half];
  }
  if (t == 0) out[blockIdx.x] = s[0];
}

extern "C" __global__ void race_broadcast_slot(float* out, const float* scale, const float* in) {
  __shared__ float factor;
  int t = threadIdx.x;
  if (t == 0) factor = scale[blockIdx.x];
  out[blockIdx.x * 256 + t] = in[blockIdx.x * 256 + t] * factor;
}

extern "C" __global__ void race_fixed_neighbour(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  out[blockIdx.x * 256 + t] = s[(t + 1) & 255];
}

extern "C" __global__ void race_fixed_own_slot(float* out, const float* in, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  float v = s[t];
  if (n > 3) v += 1.f;
  s[t] = v * v;
  out[blockIdx.x * 256 + t] = s[t];
}

extern "C" __global__ void race_fixed_reduction(float* out, const float* in) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  for (int half = 128; half > 0; half >>= 1) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}

extern "C" __global__ void race_fixed_tiles(float* out, const float* in, int tiles) {
  __shared__ float tile[256];
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < tiles; ++i) {
    tile[t] = in[i * 256 + t];
    __syncthreads();
    for (int k = 0; k < 8; ++k) sum += tile[(t + 32 * k) & 255];
    __syncthreads();
  }
  out[blockIdx.x * 256 + t] = sum;
}
