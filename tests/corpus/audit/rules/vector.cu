// Verdicts. Each names the one rule that must speak; clean, that none may.
// vector_four_scalars: unvectorised
// vector_fixed_float4: clean

extern "C" __global__ void vector_four_scalars(float* out, const float* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  const float* p = in + 4 * (size_t)i;
  out[i] = p[0] * p[1] + p[2] * p[3];
}

extern "C" __global__ void vector_fixed_float4(float* out, const float4* in) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = in[i];
  out[i] = v.x * v.y + v.z * v.w;
}
