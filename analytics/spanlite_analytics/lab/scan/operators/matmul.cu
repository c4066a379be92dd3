// C = A * B by tiles of BLOCK_M x BLOCK_N; a ring of STAGES tiles is filled by cp.async.
#include <cuda_pipeline.h>
#include <mma.h>

using namespace nvcuda;

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
// Eight halves more a row: the 16-byte pieces of eight rows lie in different banks.
constexpr int kPitchA = BLOCK_K + 8, kPitchB = BLOCK_N + 8;
constexpr int kStage = BLOCK_M * kPitchA + BLOCK_K * kPitchB;
constexpr int kRows = BLOCK_M / WARPS_M / 16, kColumns = BLOCK_N / WARPS_N / 16;

extern __shared__ __align__(128) __half tiles[];

template <int Rows, int Columns, int Pitch>
__device__ void fetch(__half* to, const __half* from, int pitch) {
#pragma unroll
  for (int i = threadIdx.x; i < Rows * Columns / 8; i += kThreads) {
    int row = i / (Columns / 8), column = i % (Columns / 8) * 8;
    __pipeline_memcpy_async(to + row * Pitch + column, from + size_t(row) * pitch + column, 16);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
matmul(float* c, const __half* a, const __half* b, int m, int n, int k) {
  int row = blockIdx.y * BLOCK_M, column = blockIdx.x * BLOCK_N;
  int warp = threadIdx.x / 32, warp_row = warp / WARPS_N, warp_column = warp % WARPS_N;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kRows][kColumns];
  for (auto& line : sums)
    for (auto& sum : line) wmma::fill_fragment(sum, 0.f);

  auto load = [&](int step) {
    if (step * BLOCK_K < k) {
      __half* stage = tiles + step % STAGES * kStage;
      fetch<BLOCK_M, BLOCK_K, kPitchA>(stage, a + size_t(row) * k + step * BLOCK_K, k);
      fetch<BLOCK_K, BLOCK_N, kPitchB>(
          stage + BLOCK_M * kPitchA, b + size_t(step) * BLOCK_K * n + column, n);
    }
    // Empty groups keep the count right at the end.
    __pipeline_commit();
  };
  for (int step = 0; step < STAGES - 1; ++step) load(step);

  for (int step = 0; step < k / BLOCK_K; ++step) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    load(step + STAGES - 1);
    const __half* tile_a = tiles + step % STAGES * kStage + warp_row * kRows * 16 * kPitchA;
    const __half* tile_b = tiles + step % STAGES * kStage + BLOCK_M * kPitchA + warp_column * kColumns * 16;
#pragma unroll
    for (int inner = 0; inner < BLOCK_K; inner += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left[kRows];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right[kColumns];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        wmma::load_matrix_sync(left[i], tile_a + i * 16 * kPitchA + inner, kPitchA);
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        wmma::load_matrix_sync(right[j], tile_b + inner * kPitchB + j * 16, kPitchB);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      wmma::store_matrix_sync(
          c + size_t(row + (warp_row * kRows + i) * 16) * n + column + (warp_column * kColumns + j) * 16,
          sums[i][j], n, wmma::mem_row_major);
}
