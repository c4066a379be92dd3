// Step 1: a channel's scale goes into the query as it is read; no array is indexed at run time.
#define TILE 32
#define DEPTH 128

extern "C" __global__ void __launch_bounds__(1024)
scores(float* out, const float* queries, const float* keys, const float* scales, int n, int group) {
  __shared__ float q[TILE][TILE], k[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int first_q = blockIdx.y * TILE, first_k = blockIdx.x * TILE;
  float total = 0.f;
  for (int start = 0; start < DEPTH; start += TILE) {
    __syncthreads();
    q[y][x] = queries[(size_t)(start + x) * n + first_q + y] * scales[(start + x) / group];
    k[y][x] = keys[(size_t)(start + x) * n + first_k + y];
    __syncthreads();
    for (int d = 0; d < TILE; ++d) total += q[y][d] * k[x][d];
  }
  out[(size_t)(first_q + y) * n + first_k + x] = total;
}
