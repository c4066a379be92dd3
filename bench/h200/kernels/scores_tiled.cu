// Step 4: 4 x 4 scores a thread, so that a number read from shared memory serves four sums.
#define TILE 64
#define STEP 16
#define DEPTH 128

extern "C" __global__ void __launch_bounds__(256)
scores(float* out, const float* queries, const float* keys, const float* scales, int n, int group) {
  // Kept as they lie in memory, a line a channel: both sides read a row as float4.
  __shared__ __align__(16) float q[STEP][TILE], k[STEP][TILE];
  int t = threadIdx.y * 32 + threadIdx.x;
  int x = t % 16 * 4, y = t / 16 * 4;
  int first_q = blockIdx.y * TILE, first_k = blockIdx.x * TILE;
  float sums[4][4] = {};
  for (int chunk = 0; chunk < DEPTH / STEP; ++chunk) {
    __syncthreads();
    int line = t / 16, column = t % 16 * 4;
    size_t at = (size_t)(chunk * STEP + line) * n;
    float scale = scales[(chunk * STEP + line) / group];
    float4 mine = *(const float4*)&queries[at + first_q + column];
    *(float4*)&q[line][column] = {mine.x * scale, mine.y * scale, mine.z * scale, mine.w * scale};
    *(float4*)&k[line][column] = *(const float4*)&keys[at + first_k + column];
    __syncthreads();
#pragma unroll
    for (int d = 0; d < STEP; ++d) {
      float4 a = *(const float4*)&q[d][y], b = *(const float4*)&k[d][x];
      float left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += left[i] * right[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float4 v = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
    *(float4*)&out[(size_t)(first_q + y + i) * n + first_k + x] = v;
  }
}
