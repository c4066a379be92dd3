// Verdicts. Each names the one rule that must speak; clean, that none may.
// coalescing_field_of_struct: uncoalesced
// coalescing_transposed_store: uncoalesced, block 32 8
// coalescing_fixed_halo: clean
// coalescing_fixed_one_per_block: clean
// coalescing_fixed_reversed: clean

struct Particle { float x, y, z, mass, vx, vy, vz, charge; };
extern "C" __global__ void coalescing_field_of_struct(float* out, const Particle* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i].mass;
}

extern "C" __global__ void coalescing_transposed_store(float* out, const float* in, int width, int height) {
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  if (x < width && y < height) out[(size_t)x * height + y] = in[(size_t)y * width + x];
}

extern "C" __global__ void coalescing_fixed_halo(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > 0 && i < n - 1) out[i] = 0.25f * in[i - 1] + 0.5f * in[i] + 0.25f * in[i + 1];
}

extern "C" __global__ void coalescing_fixed_one_per_block(float* out, const float* in, const float* bias, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  out[i] = in[i] * bias[blockIdx.x] + bias[n];
}

extern "C" __global__ void coalescing_fixed_reversed(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[n - 1 - i] = in[i];
}
