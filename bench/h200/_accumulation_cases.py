"""Dot products in each order of summation that the emulator knows: as CUDA, and by the emulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.h200._rounding_cases import BF16, FP16, FP32, Format, dot, to_bits

#: Terms of a sum, and sums of a case.
LENGTH, SUMS = 256, 8192
PARTS = 8
ORDERS = ("sequential", "pairwise", "warp", f"split:{PARTS}")


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Products of two rows of `inputs`, summed in `sums` in an order."""

    inputs: Format
    sums: Format
    order: str

    @property
    def name(self) -> str:
        """As `fp16 in fp32 warp`."""
        return f"{self.inputs.name} in {self.sums.name} {self.order}"

    @property
    def kernel(self) -> str:
        """The CUDA kernel's name."""
        return f"dot_{self.inputs.name}_{self.sums.name}_{self.order.split(':')[0]}"

    def given(self, seed: int, count: int = SUMS) -> tuple[np.ndarray, np.ndarray]:
        """Rows of both sides, shape (count, LENGTH): signs and exponents vary, so sums cancel.

        Fewer rows are the first of more.
        """
        made, shape = [], (count, LENGTH)
        for side in range(2):
            numbers, powers = (np.random.default_rng([seed, side, part]) for part in range(2))
            values = numbers.standard_normal(shape) * 2.0 ** powers.integers(-5, 5, shape)
            made.append(to_bits(values.astype(np.float32), self.inputs))
        return made[0], made[1]

    def emulate(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """What the emulator says, shape (SUMS,)."""
        return dot(a, b, self.inputs, self.sums, self.order)


ACCUMULATIONS = tuple(
    Accumulation(inputs, sums, order)
    for inputs, sums in ((FP32, FP32), (FP16, FP32), (BF16, FP32), (FP16, FP16))
    for order in ORDERS
)

_HEAD = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ float sum_of(float a, float b) { return __fadd_rn(a, b); }
__device__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __half sum_of(__half a, __half b) { return __hadd_rn(a, b); }
__device__ __half product(__half a, __half b) { return __hmul_rn(a, b); }
__device__ __half fused(__half a, __half b, __half c) { return __hfma(a, b, c); }
__device__ unsigned bits(float v) { return __float_as_uint(v); }
__device__ unsigned bits(__half v) { return __half_as_ushort(v); }
"""
_TAKE = {
    ("fp32", "fp32"): "__uint_as_float(w)",
    ("fp16", "fp32"): "__half2float(__ushort_as_half((unsigned short)w))",
    ("bf16", "fp32"): "__bfloat162float(__ushort_as_bfloat16((unsigned short)w))",
    ("fp16", "fp16"): "__ushort_as_half((unsigned short)w)",
}
_BODY = {
    "sequential": """
  T s = product(take(x[0]), take(y[0]));
  for (int i = 1; i < LENGTH; ++i) s = fused(take(x[i]), take(y[i]), s);""",
    "pairwise": """
  T t[LENGTH];
  for (int i = 0; i < LENGTH; ++i) t[i] = product(take(x[i]), take(y[i]));
  for (int n = LENGTH; n > 1; n /= 2)
    for (int i = 0; i < n / 2; ++i) t[i] = sum_of(t[2 * i], t[2 * i + 1]);
  T s = t[0];""",
    "warp": """
  T s = product(take(x[lane]), take(y[lane]));
  for (int i = lane + 32; i < LENGTH; i += 32) s = sum_of(s, product(take(x[i]), take(y[i])));
  for (int d = 16; d > 0; d /= 2) s = sum_of(s, __shfl_down_sync(0xffffffffu, s, d));""",
    "split": """
  T s = T(0.f);
  for (int p = 0; p < PARTS; ++p) {
    int at = p * (LENGTH / PARTS);
    T part = product(take(x[at]), take(y[at]));
    for (int i = at + 1; i < at + LENGTH / PARTS; ++i)
      part = sum_of(part, product(take(x[i]), take(y[i])));
    s = p ? sum_of(s, part) : part;
  }""",
}


def source() -> str:
    """One kernel for each case: a thread a sum, or a warp a sum."""
    parts = [_HEAD, f"#define LENGTH {LENGTH}\n#define PARTS {PARTS}\n"]
    for case in ACCUMULATIONS:
        order = case.order.split(":")[0]
        type_ = "float" if case.sums is FP32 else "__half"
        by_warp, taken = order == "warp", _TAKE[case.inputs.name, case.sums.name]
        thread = "(blockIdx.x * blockDim.x + threadIdx.x)" + (" / 32" if by_warp else "")
        last = "lane == 0" if by_warp else "true"
        parts.append(
            f'extern "C" __global__ void {case.kernel}(const unsigned* a, const unsigned* b, '
            f"unsigned* out, int count) {{\n  using T = {type_};\n"
            f"  auto take = [](unsigned w) {{ return {taken}; }};\n"
            f"  int sum = {thread}, lane = threadIdx.x % 32;\n  if (sum >= count) return;\n"
            "  const unsigned *x = a + (size_t)sum * LENGTH, *y = b + (size_t)sum * LENGTH;"
            f"{_BODY[order]}\n  if ({last}) out[sum] = bits(s);\n}}\n"
        )
    return "".join(parts)
