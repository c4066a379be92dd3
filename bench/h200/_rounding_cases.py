"""Instructions whose rounding the emulator claims, as inline PTX and as the emulator's call.

All inputs and outputs are 32-bit words; narrower formats lie in the low bits.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

try:
    import spanlite_analytics
except ImportError:
    # The emulator needs numpy alone. The front door of its package needs duckdb and pyarrow, which
    # the machine with the GPU may lack: go in by the side.
    spanlite_analytics = types.ModuleType("spanlite_analytics")
    spanlite_analytics.__path__ = [
        str(Path(__file__).parents[2] / "analytics" / "spanlite_analytics")
    ]
    sys.modules["spanlite_analytics"] = spanlite_analytics

from spanlite_analytics.lab.rounding.chain import dot as dot
from spanlite_analytics.lab.rounding.emulator import add, convert, fused, multiply
from spanlite_analytics.lab.rounding.emulator import to_bits as to_bits
from spanlite_analytics.lab.rounding.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

if TYPE_CHECKING:
    from spanlite_analytics.lab.rounding.emulator import Mode

Bits = np.ndarray
Emulate = Callable[[Bits, Bits, Bits], Bits]
_DIRECTED: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")
_CLASS = {32: ("f32", "mov.b32"), 16: ("b16", "cvt.u16.u32"), 8: ("b16", "cvt.u16.u32")}


@dataclass(frozen=True, slots=True)
class Case:
    """One instruction: its PTX, formats in and out (`packed`: two results), how it is emulated."""

    name: str
    asm: str
    inputs: Format
    output: Format
    emulate: Emulate
    packed: bool = False
    #: Whether all its inputs are few enough to try each of them.
    exhaustive: bool = False


def _wrap(body: str, source: int, target: int, count: int) -> str:
    """Registers of the right class around an instruction on p, q, s that sets d."""
    kind, take = _CLASS[source]
    out = "f32" if target == 32 else "b16"
    give = "mov.b32 %0,d;" if target == 32 else "cvt.u32.u16 %0,d;"
    takes = "".join(f"{take} {name},%{i};" for i, name in enumerate("pqs"[:count], 1))
    return f"{{.reg .{kind} p,q,s;.reg .{out} d;{takes}{body};{give}}}"


def _arithmetic(format_: Format, modes: tuple[Mode, ...], suffixes: tuple[str, ...]) -> list[Case]:
    type_ = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}[format_.name]
    made = []
    for mode in modes:
        for suffix in suffixes:
            ftz, sat = ".ftz" in suffix, ".sat" in suffix

            def summed(
                a: Bits, b: Bits, c: Bits, mode: Mode = mode, ftz: bool = ftz, sat: bool = sat
            ) -> Bits:
                return add(a, b, format_, mode, ftz=ftz, sat=sat)

            def product(
                a: Bits, b: Bits, c: Bits, mode: Mode = mode, ftz: bool = ftz, sat: bool = sat
            ) -> Bits:
                return multiply(a, b, format_, mode, ftz=ftz, sat=sat)

            def both(
                a: Bits, b: Bits, c: Bits, mode: Mode = mode, ftz: bool = ftz, sat: bool = sat
            ) -> Bits:
                return fused(a, b, c, format_, mode, ftz=ftz, sat=sat)

            for name, operands, count, emulate in (
                ("add", "p,q", 2, summed),
                ("mul", "p,q", 2, product),
                ("fma", "p,q,s", 3, both),
            ):
                opcode = f"{name}.{mode}{suffix}.{type_}"
                asm = _wrap(f"{opcode} d,{operands}", format_.width, format_.width, count)
                made.append(Case(opcode, asm, format_, format_, emulate))
    return made


def _conversions() -> list[Case]:
    made = []
    for target, type_, modes in (
        (FP16, "f16", _DIRECTED),
        (BF16, "bf16", ("rn", "rz")),
        (TF32, "tf32", ("rna", "rn", "rz")),
    ):
        for mode in modes:
            opcode = f"cvt.{mode}.{type_}.f32"
            asm = _wrap(f"{opcode} d,p", 32, target.width, 1)
            if target is TF32:
                asm = asm.replace(".reg .f32 d", ".reg .b32 d")
            made.append(Case(opcode, asm, FP32, target, _narrowed(FP32, target, mode)))
    for source, type_ in ((FP16, "f16"), (BF16, "bf16")):
        opcode = f"cvt.f32.{type_}"
        asm = _wrap(f"{opcode} d,p", 16, 32, 1)
        made.append(Case(opcode, asm, source, FP32, _narrowed(source, FP32, "rn"), exhaustive=True))
    for target, type_ in ((E4M3, "e4m3x2"), (E5M2, "e5m2x2")):
        opcode = f"cvt.rn.satfinite.{type_}.f32"
        asm = (
            "{.reg .f32 p,q;.reg .b16 d;mov.b32 p,%1;mov.b32 q,%2;"
            f"{opcode} d,p,q;cvt.u32.u16 %0,d;}}"
        )
        made.append(Case(opcode, asm, FP32, target, _pair(FP32, target), packed=True))
        opcode = f"cvt.rn.satfinite.{type_}.f16x2"
        asm = f"{{.reg .b32 p;.reg .b16 d;prmt.b32 p,%2,%1,0x5410;{opcode} d,p;cvt.u32.u16 %0,d;}}"
        made.append(Case(opcode, asm, FP16, target, _pair(FP16, target), packed=True))
        opcode = f"cvt.rn.f16x2.{type_}"
        asm = f"{{.reg .b16 p;.reg .b32 d;cvt.u16.u32 p,%1;{opcode} d,p;and.b32 %0,d,0xffff;}}"
        made.append(Case(opcode, asm, target, FP16, _narrowed(target, FP16, "rn"), exhaustive=True))
    return made


def _narrowed(source: Format, target: Format, mode: Mode) -> Emulate:
    return lambda a, b, c: convert(a, source, target, mode)


def _pair(source: Format, target: Format) -> Emulate:
    def emulate(a: Bits, b: Bits, c: Bits) -> Bits:
        high, low = (convert(x, source, target, "rn", saturate=True) for x in (a, b))
        return np.asarray(high << np.uint32(8) | low)

    return emulate


CASES: tuple[Case, ...] = (
    *_conversions(),
    *_arithmetic(FP32, _DIRECTED, ("", ".ftz", ".sat")),
    *_arithmetic(FP16, ("rn",), ("", ".sat")),
    *_arithmetic(BF16, ("rn",), ("",)),
)


def source(cases: tuple[Case, ...] = CASES) -> str:
    """CUDA C++ with one kernel `k0`, `k1`, ... for each case."""
    parts = []
    for number, case in enumerate(cases):
        parts.append(
            f'extern "C" __global__ void k{number}(const unsigned* a,const unsigned* b,'
            "const unsigned* c,unsigned* out,int n){"
            "int i=blockIdx.x*blockDim.x+threadIdx.x;if(i<n){unsigned r;"
            f'asm("{case.asm}":"=r"(r):"r"(a[i]),"r"(b[i]),"r"(c[i]));out[i]=r;}}}}\n'
        )
    return "".join(parts)


def inputs(case: Case, count: int, seed: int) -> tuple[Bits, Bits, Bits]:
    """Random patterns: half of them any, half with exponents that lie close, so that sums round."""
    random = np.random.default_rng(seed)
    format_ = case.inputs
    if case.exhaustive:
        every = np.arange(1 << format_.width, dtype=np.uint32)
        return every, every, every
    a, b, c = random.integers(0, 1 << format_.width, (3, count), dtype=np.uint32)
    half = count // 2
    fraction, bits = format_.fraction_bits, format_.width - 1
    near = ((a[:half] >> np.uint32(fraction)) & np.uint32((1 << format_.exponent_bits) - 1)).astype(
        np.int64
    )
    top = (1 << format_.exponent_bits) - 1
    for other in (b, c):
        moved = np.clip(near + random.integers(-3, 4, half), 0, top).astype(np.uint32)
        keep = np.uint32((1 << fraction) - 1 | 1 << bits)
        other[:half] = (other[:half] & keep) | (moved << np.uint32(fraction))
    # What meets every edge: zeros, ones, the largest, the smallest, infinities, NaN.
    edges = np.array(
        [0, 1, format_.largest_bits, format_.infinity_bits, format_.nan_bits, 1 << fraction],
        np.uint32,
    )
    edges = np.concatenate([edges, edges | np.uint32(1 << bits)])
    grid = np.stack(np.meshgrid(edges, edges, edges)).reshape(3, -1)
    size = min(grid.shape[1], count)
    a[:size], b[:size], c[:size] = grid[:, :size]
    return a, b, c


def is_nan(patterns: Bits, format_: Format) -> np.ndarray:
    """Which patterns of one format are NaN."""
    magnitude = (patterns >> np.uint32(format_.padding_bits)) & np.uint32(
        (1 << (format_.width - 1 - format_.padding_bits)) - 1
    )
    if not format_.has_infinity:
        return np.asarray(magnitude == format_.nan_bits)
    return np.asarray(magnitude > format_.infinity_bits)


def wrong(case: Case, got: Bits, expected: Bits) -> np.ndarray:
    """Where the patterns differ, two NaNs being the same."""
    if case.packed:
        parts = [(x & np.uint32(0xFF), x >> np.uint32(8)) for x in (got, expected)]
        low, high = zip(*parts, strict=True)
        return _differ(low[0], low[1], case.output) | _differ(high[0], high[1], case.output)
    return _differ(got, expected, case.output)


def _differ(got: Bits, expected: Bits, format_: Format) -> np.ndarray:
    both = is_nan(got, format_) & is_nan(expected, format_)
    return np.asarray((got != expected) & ~both)


def digest(case: Case, patterns: Bits) -> str:
    """Sixteen hexadecimal digits of results, all NaNs being one: what a replay is compared with."""
    if case.packed:
        low, high = (_one_nan(x, case.output) for x in (patterns & 0xFF, patterns >> np.uint32(8)))
        patterns = low | (high << np.uint32(8))
    else:
        patterns = _one_nan(patterns, case.output)
    return hashlib.sha256(patterns.astype("<u4").tobytes()).hexdigest()[:16]


def _one_nan(patterns: Bits, format_: Format) -> Bits:
    given = patterns.astype(np.uint32)
    return np.where(is_nan(given, format_), np.uint32(0xFFFFFFFF), given)
