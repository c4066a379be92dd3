// out = in transposed, through a tile in shared memory: TILE x TILE floats, PAD more a row.
extern "C" __global__ void __launch_bounds__(TILE * ROWS)
transpose(float* out, const float* in, int width, int height) {
  __shared__ float tile[TILE][TILE + PAD];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS) tile[threadIdx.y + j][threadIdx.x] = in[size_t(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS) out[size_t(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
