// Verdicts. Each names the one rule that must speak; clean, that none may.
// async_copy_without_wait: async-order
// async_bulk_without_wait: async-order
// async_wgmma_without_fence: async-order, block 128
// async_fixed_copy: clean
// async_fixed_bulk: clean
// async_fixed_wgmma: clean, block 128

#include <cuda_pipeline.h>
#include <stdint.h>

extern "C" __global__ void async_copy_without_wait(float4* out, const float4* in) {
  __shared__ float4 s[256];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  __pipeline_memcpy_async(&s[t], &in[i], 16);
  __pipeline_commit();
  __syncthreads();
  out[i] = s[255 - t];
}

extern "C" __global__ void async_bulk_without_wait(float* out, const float* in) {
  __shared__ alignas(128) float s[256];
  __shared__ uint64_t bar;
  int t = threadIdx.x;
  uint32_t bar_at = __cvta_generic_to_shared(&bar), s_at = __cvta_generic_to_shared(s);
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar_at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(bar_at) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
        ::"r"(s_at), "l"(in + blockIdx.x * 256), "r"(bar_at) : "memory");
  }
  __syncthreads();
  out[blockIdx.x * 256 + t] = s[t];
}

extern "C" __global__ void async_wgmma_without_fence(float* out, uint64_t a, uint64_t b) {
  float d0 = 0.f, d1 = 0.f, d2 = 0.f, d3 = 0.f;
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(d0, d1, d2, d3);
}

extern "C" __global__ void async_fixed_copy(float4* out, const float4* in) {
  __shared__ float4 s[256];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  __pipeline_memcpy_async(&s[t], &in[i], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  out[i] = s[255 - t];
}

extern "C" __global__ void async_fixed_bulk(float* out, const float* in) {
  __shared__ alignas(128) float s[256];
  __shared__ uint64_t bar;
  int t = threadIdx.x;
  uint32_t bar_at = __cvta_generic_to_shared(&bar), s_at = __cvta_generic_to_shared(s);
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar_at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(bar_at) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
        ::"r"(s_at), "l"(in + blockIdx.x * 256), "r"(bar_at) : "memory");
  }
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(bar_at) : "memory");
  out[blockIdx.x * 256 + t] = s[t];
}

extern "C" __global__ void async_fixed_wgmma(float* out, uint64_t a, uint64_t b) {
  float d0 = 0.f, d1 = 0.f, d2 = 0.f, d3 = 0.f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(d0, d1, d2, d3);
}
