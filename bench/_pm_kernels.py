"""Kernels whose counters are known, run one after the other as another process asks.

    python -m bench._pm_kernels [CASE...]

Without cases it reads them from stdin, a line each. Prints one JSON object a case: begin and end in
host time, and what the counters must say while it runs, per cent.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

SECONDS = 0.1
#: A block that shall quit stays as long as it takes to place all others.
_SOURCE = r"""
__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// which: 0: all blocks; 1: those of every second SM, so one of each TPC; 2: of every second TPC
extern "C" __global__ void spin(unsigned long long ns, int which, int* placed) {
  int sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  const bool stays = which == 0 || (which == 1 ? sm % 2 == 0 : sm / 2 % 2 == 0);
  if (threadIdx.x == 0) placed[blockIdx.x] = stays ? sm : -1;
  const unsigned long long begin = now();
  while (now() - begin < (stays ? ns : 300000ull)) __nanosleep(200);
}

// cold: of 8 loads so many are of memory that nobody has touched for long; else of the L2.
extern "C" __global__ void load(const uint4* hot, unsigned hot_mask, const uint4* cold,
                                unsigned cold_mask, int cold_loads, int turns, unsigned* out) {
  const unsigned stride = gridDim.x * blockDim.x;
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x, cold_at = at, sum = 0;
  for (int turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4* from = i < cold_loads ? cold + (cold_at & cold_mask) : hot + (at & hot_mask);
      const uint4 x = __ldcg(from);
      if (i < cold_loads) cold_at += stride;
      at += stride;
      sum ^= x.x ^ x.y ^ x.z ^ x.w;
    }
  }
  if (sum == 12345) out[0] = sum;
}

extern "C" __global__ void copy(const uint4* from, uint4* to, unsigned count, int turns) {
  for (int turn = 0; turn < turns; ++turn)
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
      to[i] = from[i];
}
"""
_WARPS, _BIG = 64, 120 * 1024
#: Dense products of a bf16 or fp16 pair of matrices: FLOP that an SM of this chip does in a cycle
#: (989.4 TFLOP/s at 1,830 MHz with 132 SMs, by the datasheet of the H100 SXM).
FLOP_A_CYCLE = 4096.0


class Kernels:
    """The cases. Raises whatever CuPy raises."""

    def __init__(self) -> None:
        import cupy  # type: ignore[import-not-found,unused-ignore]

        self.cupy = cupy
        module = cupy.RawModule(code=_SOURCE)
        self.spin, self.load, self.copy = (module.get_function(n) for n in ("spin", "load", "copy"))
        self.spin.max_dynamic_shared_size_bytes = _BIG
        about = cupy.cuda.runtime.deviceGetAttribute
        self.sms, clock_khz, bus_bits = (about(number, 0) for number in (16, 36, 37))
        self.dram_peak = 2e3 * clock_khz * bus_bits / 8  # two transfers a clock
        self.hot = cupy.zeros(8 << 20, cupy.uint8)
        self.cold, self.other = (cupy.zeros(4 << 30, cupy.uint8) for _ in range(2))
        self.out = cupy.zeros(1, cupy.uint32)
        self.cases: dict[str, Callable[[], dict[str, float]]] = {
            **{f"spin_{w}": partial(self.spins, w) for w in (64, 62, 48, 32, 16, 8)},
            "spin_64_one_sm_a_tpc": partial(self.spins, 64, 1),
            "spin_64_every_second_tpc": partial(self.spins, 64, 2),
            "spin_32_half_of_the_blocks": partial(self.spins, 32, 0, self.sms // 2),
            "l2_hits": partial(self.loads, 0, 1),
            "l2_quarter_cold": partial(self.loads, 2, 1),
            "l2_half_cold": partial(self.loads, 4, 1),
            "dram_read": partial(self.loads, 8, 1),
            "dram_read_few_sms": partial(self.loads, 8, 8),
            "dram_copy": self.copies,
            "matmul_16384": partial(self.products, 16384, 4),
            "matmul_1024": partial(self.products, 1024, 200),
            "idle": self.idle,
        }

    def spins(self, warps: int, which: int = 0, blocks: int = 0) -> dict[str, float]:
        """So many warps on each SM: of one block, or of two of a size where 32 do not suffice."""
        two = warps > _WARPS // 2
        blocks = blocks or (2 * self.sms if two else self.sms)
        threads = (warps // 2 if two else warps) * 32
        placed = self.cupy.full(blocks, -1, self.cupy.int32)
        call = (self.cupy.uint64(SECONDS * 1e9), self.cupy.int32(which), placed)
        self.cupy.cuda.Device().synchronize()
        self.begun_ns = time.time_ns()
        self.spin((blocks,), (threads,), call, shared_mem=0 if two else _BIG)
        self.cupy.cuda.Device().synchronize()
        self.ended_ns = time.time_ns()
        return self._placed(placed, threads // 32)

    def _placed(self, placed: Any, warps: int) -> dict[str, float]:
        each = [0] * self.sms
        for sm in placed.tolist():
            if sm >= 0:
                each[sm] += warps
        return {
            "gpu.active_pct": 100.0,
            "gpu.sm_active_pct": 100 * sum(w > 0 for w in each) / self.sms,
            "gpu.warps_active_pct": 100 * sum(each) / self.sms / _WARPS,
            "gpu.dram_pct": 0.0, "gpu.tensor_pct": 0.0, "most_warps": max(each),
        }  # fmt: skip

    def loads(self, cold_loads: int, fewer: int) -> dict[str, float]:
        """Of 8 loads so many from device memory, the rest from the L2."""
        blocks, threads = 2 * self.sms // fewer, 1024
        i32, u32 = self.cupy.int32, self.cupy.uint32

        def run(turns: int) -> float:
            masks = [u32((array.nbytes >> 4) - 1) for array in (self.hot, self.cold)]
            call = (self.hot, masks[0], self.cold, masks[1], i32(cold_loads), i32(turns), self.out)
            return self._seconds(lambda: self.load((blocks,), (threads,), call))

        turns, seconds = self._filled(run, 200)
        bytes_read = blocks * threads * turns * cold_loads * 16
        return {"gpu.active_pct": 100.0, "gpu.l2_hit_pct": 100 - 12.5 * cold_loads,
                "gpu.dram_pct": 100 * bytes_read / seconds / self.dram_peak,
                "gpu.tensor_pct": 0.0, "bytes_per_s": bytes_read / seconds}  # fmt: skip

    def copies(self) -> dict[str, float]:
        """Each byte read and written once."""
        count, i32, u32 = self.cold.nbytes >> 4, self.cupy.int32, self.cupy.uint32

        def run(turns: int) -> float:
            call = (self.cold, self.other, u32(count), i32(turns))
            return self._seconds(lambda: self.copy((16 * self.sms,), (512,), call))

        turns, seconds = self._filled(run, 4)
        moved = 2 * self.cold.nbytes * turns / seconds
        return {"gpu.active_pct": 100.0, "gpu.dram_pct": 100 * moved / self.dram_peak,
                "gpu.tensor_pct": 0.0, "bytes_per_s": moved}  # fmt: skip

    def products(self, size: int, first: int) -> dict[str, float]:
        """Products of matrices. What the pipe does takes the SMs' clock, which the sampler has."""
        left, right = (self.cupy.full((size, size), 0.5, self.cupy.float16) for _ in range(2))
        out = self.cupy.empty_like(left)

        def run(turns: int) -> float:
            def products() -> None:
                for _ in range(turns):
                    self.cupy.matmul(left, right, out=out)

            return self._seconds(products)

        run(2)
        turns, seconds = self._filled(run, first)
        flop_per_s = 2.0 * size**3 * turns / seconds
        return {"tensor_cycles_per_s": flop_per_s / self.sms / FLOP_A_CYCLE}

    def idle(self) -> dict[str, float]:
        """Nothing."""
        time.sleep(SECONDS)
        names = ("active", "sm_active", "warps_active", "dram", "tensor")
        return {f"gpu.{name}_pct": 0.0 for name in names}

    def _filled(self, run: Callable[[int], float], turns: int) -> tuple[int, float]:
        """As many turns as last long enough, and how long they did, alone on the clock."""
        turns = max(1, int(turns * SECONDS / run(turns)))
        self.begun_ns = time.time_ns()
        return turns, run(turns)

    def _seconds(self, work: Callable[[], None]) -> float:
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def answer(self, case: str) -> dict[str, Any]:
        """Run it: when it ran, and the truth."""
        self.cupy.cuda.Device().synchronize()
        self.begun_ns, self.ended_ns = time.time_ns(), 0
        truth = self.cases[case]()
        end_ns = self.ended_ns or time.time_ns()
        return {"begin_ns": self.begun_ns, "end_ns": end_ns, "truth": truth}


def main() -> None:
    """Answer until the input ends."""
    kernels = Kernels()
    print(json.dumps({"cases": list(kernels.cases), "sms": kernels.sms,
                      "dram_peak_bytes_per_s": kernels.dram_peak}), flush=True)  # fmt: skip
    for line in sys.argv[1:] or sys.stdin:
        try:
            answer = kernels.answer(line.strip())
        except Exception as error:  # the other cases are worth having
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer | {"case": line.strip()}), flush=True)


if __name__ == "__main__":
    main()
