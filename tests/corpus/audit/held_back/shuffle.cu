// Verdicts. Each names the one rule that must speak; clean, that none may.
// shuffle_of_uniform_value: shuffle-redundant
// shuffle_rotates_back: shuffle-redundant
// shuffle_after_butterfly: shuffle-redundant
// shuffle_fixed_scan: clean
// shuffle_fixed_bitonic: clean
// shuffle_fixed_double: clean

extern "C" __global__ void shuffle_of_uniform_value(float* out, const float* in, const float* scale) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float factor = __shfl_sync(0xffffffffu, scale[blockIdx.x], 0);
  out[i] = in[i] * factor;
}

extern "C" __global__ void shuffle_rotates_back(int* out, const int* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  int v = __shfl_sync(0xffffffffu, in[i], (lane + 4) & 31);
  v = __shfl_sync(0xffffffffu, v, (lane + 28) & 31);
  out[i] = v;
}

extern "C" __global__ void shuffle_after_butterfly(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = in[i];
  for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  v = __shfl_sync(0xffffffffu, v, 0);
  out[i] = v;
}

extern "C" __global__ void shuffle_fixed_scan(int* out, const int* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  int v = in[i];
  for (int d = 1; d < 32; d *= 2) {
    int before = __shfl_up_sync(0xffffffffu, v, d);
    if (lane >= d) v += before;
  }
  out[i] = v;
}

extern "C" __global__ void shuffle_fixed_bitonic(int* out, const int* in) {
  int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x & 31;
  int v = in[i];
  for (int k = 2; k <= 32; k *= 2)
    for (int j = k / 2; j > 0; j /= 2) {
      int other = __shfl_xor_sync(0xffffffffu, v, j);
      bool small = ((lane & j) == 0) == ((lane & k) == 0);
      v = small ? min(v, other) : max(v, other);
    }
  out[i] = v;
}

extern "C" __global__ void shuffle_fixed_double(double* out, const double* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  double v = in[i];
  for (int m = 1; m < 32; m *= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  out[i] = v;
}
