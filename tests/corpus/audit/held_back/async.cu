// Verdicts. Each names the one rule that must speak; clean, that none may.
// async_copy_waits_for_older_group: async-order, block 128
// async_copy_read_by_neighbour: shared-race
// async_bulk_store_without_proxy_fence: async-order
// async_wgmma_without_wait: async-order, block 128
// async_fixed_two_stages: clean, block 128
// async_fixed_own_bytes: clean
// async_fixed_bulk_store: clean

#include <cuda_pipeline.h>
#include <stdint.h>

extern "C" __global__ void async_copy_waits_for_older_group(float4* out, const float4* in, int tiles) {
  __shared__ float4 s[2][128];
  int t = threadIdx.x;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int k = 0; k < tiles; ++k) {
    __pipeline_memcpy_async(&s[k & 1][t], &in[k * 128 + t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    float4 v = s[k & 1][127 - t];
    sum.x += v.x;
    __syncthreads();
  }
  out[t] = sum;
}

extern "C" __global__ void async_copy_read_by_neighbour(float4* out, const float4* in) {
  __shared__ float4 s[256];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  __pipeline_memcpy_async(&s[t], &in[i], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  out[i] = s[255 - t];
}

extern "C" __global__ void async_bulk_store_without_proxy_fence(float* out, const float* in) {
  __shared__ alignas(128) float s[256];
  int t = threadIdx.x;
  uint32_t s_at = __cvta_generic_to_shared(s);
  s[t] = in[blockIdx.x * 256 + t] * 2.f;
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;"
                 ::"l"(out + blockIdx.x * 256), "r"(s_at) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

extern "C" __global__ void async_wgmma_without_wait(float* out, uint64_t a, uint64_t b) {
  float d0 = 0.f, d1 = 0.f, d2 = 0.f, d3 = 0.f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(d0, d1, d2, d3);
}

extern "C" __global__ void async_fixed_two_stages(float4* out, const float4* in, int tiles) {
  __shared__ float4 s[2][128];
  int t = threadIdx.x;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  __pipeline_memcpy_async(&s[0][t], &in[t], 16);
  __pipeline_commit();
  for (int k = 0; k < tiles; ++k) {
    if (k + 1 < tiles) __pipeline_memcpy_async(&s[(k + 1) & 1][t], &in[(k + 1) * 128 + t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    float4 v = s[k & 1][127 - t];
    sum.x += v.x;
    sum.y += v.y;
    __syncthreads();
  }
  out[t] = sum;
}

extern "C" __global__ void async_fixed_own_bytes(float4* out, const float4* in) {
  __shared__ float4 s[256];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  __pipeline_memcpy_async(&s[t], &in[i], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  float4 v = s[t];
  out[i] = make_float4(v.w, v.z, v.y, v.x);
}

extern "C" __global__ void async_fixed_bulk_store(float* out, const float* in) {
  __shared__ alignas(128) float s[256];
  int t = threadIdx.x;
  uint32_t s_at = __cvta_generic_to_shared(s);
  s[t] = in[blockIdx.x * 256 + t] * 2.f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;"
                 ::"l"(out + blockIdx.x * 256), "r"(s_at) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
