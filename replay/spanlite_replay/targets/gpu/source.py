"""CUDA C++ of the stand-ins. Compiled by NVRTC, one module for each class of registers."""

from __future__ import annotations

#: Registers of a thread come in units of this many.
REGISTER_UNIT = 8
LEAST_REGISTERS, MOST_REGISTERS = 24, 255
#: What the kernel needs beside those it is made to hold; the cap of the compiler does the rest.
_OWN_REGISTERS = 10

#: `Work` is passed by value: the order and sizes of `structs.Work`.
_TEXT = r"""
typedef unsigned long long u64;
typedef unsigned int u32;
struct Work {
  u64* stamp;      // start of the kernel's first block, or null
  u64 length;      // ns or cycles
  u64 hold;        // the same for each block alone; 0: as long as the kernel
  const u64* origin;
  u64 due, steer;  // wanted end, from the origin, and how far the end may move to it
  u64 rate1024;    // cycles in 1,024 ns
  u64* scratch;
  u64 moved16;     // 16-byte words that the grid reads and writes first
  u64 scratch16;   // words of the scratch
  u32 per_wave, waves, never;
};
__device__ __forceinline__ u64 wall_ns() {
  u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t;
}
__device__ __forceinline__ u64 block_number() {
  return blockIdx.x + (u64)gridDim.x * (blockIdx.y + (u64)gridDim.y * blockIdx.z);
}
// Never runs; the compiler must hold LIVE values at once for it, so the kernel gets as many
// registers as the one it stands in for.
__device__ __forceinline__ void hold(volatile u32* p) {
  u32 v[LIVE];
#pragma unroll
  for (int i = 0; i < LIVE; ++i) v[i] = p[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < LIVE; ++i) p[i] = v[LIVE - 1 - i];
}
__device__ __forceinline__ void move(const Work& w) {
  uint4* words = (uint4*)w.scratch;
  u64 threads = (u64)blockDim.x * blockDim.y * blockDim.z;
  u64 mine = threadIdx.x + (u64)blockDim.x * (threadIdx.y + (u64)blockDim.y * threadIdx.z);
  u64 step = threads * gridDim.x * gridDim.y * gridDim.z;
  u64 half = w.scratch16 / 2;
  for (u64 i = block_number() * threads + mine; i < w.moved16 / 2; i += step)
    words[half + i % half] = words[i % half];
}
// When the first block began, as far as this one knows.
__device__ __forceinline__ u64 first_start(const Work& w, u64 begin) {
  u64 number = block_number();
  volatile u64* stamp = w.stamp;
  if (stamp && number == 0 && threadIdx.x == 0) *stamp = begin;
  u64 first = stamp && number ? *stamp : begin;
  return first < begin ? first : begin;
}
__device__ __forceinline__ bool is_last() {
  return block_number() == (u64)gridDim.x * gridDim.y * gridDim.z - 1;
}
// Blocks leave their SM after what they hold it for, and those that came late with the kernel; the
// last one keeps its length.
__device__ __forceinline__ void keep(const Work& w, u64 begin) {
  u64 until = first_start(w, begin) + w.length;
  u64 leave = begin + w.hold < until ? begin + w.hold : until;
  while (wall_ns() < leave) {}
  if (!is_last()) return;
  if (w.steer) {
    u64 due = *(volatile const u64*)w.origin + w.due;
    until = due < until - w.steer ? until - w.steer : due > until + w.steer ? until + w.steer : due;
  }
  while (wall_ns() < until) {}
}
extern "C" __global__ void spanlite_wall(Work w) {
  u64 begin = wall_ns();
  if (w.never) hold((volatile u32*)w.scratch);
  if (w.moved16) move(w);
  if (threadIdx.x >= 32 || threadIdx.y || threadIdx.z) return;
  if (w.hold) return keep(w, begin);
  u64 wave = w.waves == 1 ? 1 : block_number() / w.per_wave + 1;
  u64 share = w.waves == 1 ? w.length : w.length * wave / w.waves;
  if (w.stamp) {
    u64 first = begin;
    if (threadIdx.x == 0) first = atomicMin(w.stamp, begin);
    first = __shfl_sync(__activemask(), first, 0);
    begin = first < begin ? first : begin;
  } else if (w.waves != 1) {
    share = w.length / w.waves;
  }
  while (wall_ns() - begin < share) {}
}
extern "C" __global__ void spanlite_work(Work w) {
  long long begin = clock64();
  u64 wall = wall_ns();
  if (w.never) hold((volatile u32*)w.scratch);
  if (w.moved16) move(w);
  if (threadIdx.x >= 32 || threadIdx.y || threadIdx.z) return;
  long long share = (long long)(w.length / w.waves);
  if (w.hold) {  // the same as `keep`, in cycles; other SMs count others, so lateness is in ns
    u64 late = wall - first_start(w, wall);
    long long left = (long long)w.length - (long long)(late * w.rate1024 >> 10);
    share = is_last() || (long long)w.hold > left ? left : (long long)w.hold;
  }
  while (clock64() - begin < share) {}
}
extern "C" __global__ void spanlite_gate(volatile const u64* origin, u64 offset_ns) {
  u64 until = *origin + offset_ns;
  while (wall_ns() < until) {}
}
extern "C" __global__ void spanlite_start(volatile const u32* go, u64* origin, u64 lead_ns) {
  while (!*go) {}
  *origin = wall_ns() + lead_ns;
}
"""


def register_class(registers: int) -> int:
    """The class that a thread's registers fall into: what is allocated for them."""
    rounded = -(-registers // REGISTER_UNIT) * REGISTER_UNIT
    return min(max(rounded, LEAST_REGISTERS), MOST_REGISTERS)


def source_of(registers: int) -> str:
    """The module for one class of registers."""
    return f"#define LIVE {max(registers - _OWN_REGISTERS, 1)}\n{_TEXT}"
