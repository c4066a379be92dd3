// Verdicts. Each names the one rule that must speak; clean, that none may.
// generic_pointer_kept_in_shared: generic-address
// generic_fixed_pointer_table: clean

extern "C" __global__ void generic_pointer_kept_in_shared(float* out, const float* in) {
  __shared__ float s[2][256];
  __shared__ float* volatile buffer[2];
  int t = threadIdx.x;
  if (t == 0) {
    buffer[0] = s[0];
    buffer[1] = s[1];
  }
  s[0][t] = in[blockIdx.x * 256 + t];
  __syncthreads();
  out[blockIdx.x * 256 + t] = buffer[0][255 - t];
}

extern "C" __global__ void generic_fixed_pointer_table(float* out, const float* const* rows) {
  const float* row = rows[blockIdx.x];
  out[blockIdx.x * 256 + threadIdx.x] = row[threadIdx.x];
}
