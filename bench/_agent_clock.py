"""Kernels that note `%globaltimer` at their start and end, and that timer mapped to the host clock.

Run under the agent; prints one JSON object: the kernels' own times in host ns (CLOCK_REALTIME),
in launch order, and the bound on the mapping. A CuPy program, so also proof of one.
"""

from __future__ import annotations

import ctypes
import json
import time

import cupy
import numpy as np

#: Threads of a stamping kernel: a number by which its records are found.
BLOCK = 96
KERNELS, PINGS = 2000, 3000
SPIN_CYCLES = 20_000

SOURCE = r"""
__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
extern "C" __global__ void pings(volatile unsigned long long* flag,
                                 volatile unsigned long long* reply,
                                 unsigned long long* times, int count) {
  for (int i = 1; i <= count; ++i) {
    while (*flag < i) {}
    times[i - 1] = now();
    *reply = i;
    __threadfence_system();
  }
}
extern "C" __global__ void stamp(unsigned long long* times, int number, long long cycles) {
  if (threadIdx.x != 0) return;
  unsigned long long start = now();
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
  times[2 * number] = start;
  times[2 * number + 1] = now();
}
"""


def ping(kernel: cupy.RawKernel) -> tuple[float, float, float]:
    """(host ns at the middle of the best pings, device ns minus host ns, bound in ns)."""
    memory = cupy.cuda.alloc_pinned_memory(4096)
    words = (ctypes.c_uint64 * 512).from_address(memory.ptr)
    words[0] = words[256] = 0
    times = cupy.zeros(PINGS, np.uint64)
    kernel((1,), (1,), (memory.ptr, memory.ptr + 2048, times, np.int32(PINGS)))
    clock, realtime = time.clock_gettime_ns, time.CLOCK_REALTIME
    sent, back = np.zeros(PINGS, np.int64), np.zeros(PINGS, np.int64)
    for i in range(1, PINGS + 1):
        sent[i - 1] = clock(realtime)
        words[0] = i
        while words[256] < i:
            pass
        back[i - 1] = clock(realtime)
    cupy.cuda.Device().synchronize()
    trips = back - sent
    best = np.argsort(trips)[: PINGS // 50]
    middles = (sent[best] + back[best]) // 2
    offsets = times.get().astype(np.int64)[best] - middles
    return float(middles.mean()), float(np.median(offsets)), float(trips[best].max() / 2)


def main() -> None:
    """Ping, stamp, ping again; the drift between the two pings is taken out."""
    module = cupy.RawModule(code=SOURCE)
    pings, stamp = module.get_function("pings"), module.get_function("stamp")
    times = cupy.zeros(2 * KERNELS, np.uint64)
    stamp((1,), (BLOCK,), (times, np.int32(0), np.int64(SPIN_CYCLES)))
    cupy.cuda.Device().synchronize()
    ping(pings)  # warm
    at0, offset0, bound0 = ping(pings)
    for number in range(KERNELS):
        stamp((1,), (BLOCK,), (times, np.int32(number), np.int64(SPIN_CYCLES)))
        if number % 50 == 0:
            cupy.cuda.Device().synchronize()
    cupy.cuda.Device().synchronize()
    at1, offset1, bound1 = ping(pings)
    device = times.get().astype(np.int64)
    drift = (offset1 - offset0) / (at1 - at0)
    host = device - np.round(offset0 + drift * (device - offset0 - at0)).astype(np.int64)
    print(
        json.dumps({"ns": host.tolist(), "bound_ns": max(bound0, bound1), "drift_ppm": drift * 1e6})
    )


if __name__ == "__main__":
    main()
