// Attention scores against a cache of keys that lies by channels, each group of channels with a scale:
// scores[q][k] = sum over groups g of scales[g] * sum over d in g of queries[d][q] * keys[d][k].
#define TILE 32
#define DEPTH 128
#define MOST_GROUPS 16

extern "C" __global__ void __launch_bounds__(1024)
scores(float* out, const float* queries, const float* keys, const float* scales, int n, int group) {
  __shared__ float q[TILE][TILE], k[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int first_q = blockIdx.y * TILE, first_k = blockIdx.x * TILE;
  float parts[MOST_GROUPS] = {};
  for (int start = 0; start < DEPTH; start += TILE) {
    __syncthreads();
    // A lane takes a channel: the lanes of a warp read one number of 32 lines each.
    q[y][x] = queries[(size_t)(start + x) * n + first_q + y];
    k[y][x] = keys[(size_t)(start + x) * n + first_k + y];
    __syncthreads();
    for (int d = 0; d < TILE; ++d) parts[(start + d) / group] += q[y][d] * k[x][d];
  }
  float total = 0.f;
  for (int g = 0; g < DEPTH / group; ++g) total += scales[g] * parts[g];
  out[(size_t)(first_q + y) * n + first_k + x] = total;
}
