"""Time loops of many mixes at several register caps and with more and more warps in flight.

python3 -m bench.h200.lab_pressure_table [--nvcc PATH] [--cubins FOLDER]
    [--compile-only] [--limit N] [--budget SECONDS]

Each kernel of `_pressure_kernels` is compiled under every cap; those that differ in registers
or spills are launched as one wave of blocks of 128 threads, with 1 block on an SM, 2, 4, ... as
many as fit, and the clocks of the loop are read in the kernel. Writes
bench/h200/tables/lab_pressure.npz, with the cubins. About 3 s, and 10 for nvcc on 8 cores.
"""

from __future__ import annotations

import argparse
import ctypes
import lzma
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.h200._device import compile_cubin, save, surroundings
from bench.h200._launcher import (
    CLOCK_KHZ,
    LOCAL,
    REGISTERS,
    Launch,
    Launcher,
)
from bench.h200._pressure_kernels import CAPS, ZEROS_FROM, Kernel, kernels, source

BLOCK = 128
RESIDENT = (1, 2, 4, 8, 12, 16)
#: Clocks that a launch is made to take, and repeats of it.
CLOCKS, REPEATS = 150_000, 4
FLOATS = 1 << 22
NAMES = (
    "kernel", "cap", "registers", "local_bytes", "blocks", "turns", "span_cycles", "warp_cycles",
    "time_ns", "even",
)  # fmt: skip


def compile_caps(
    text: str, caps: tuple[int, ...], folder: Path, nvcc: str, name: str
) -> dict[int, bytes]:
    """A cubin for each register cap."""

    def one(cap: int) -> tuple[int, bytes]:
        flags = ("-w", f"-maxrregcount={cap}") if cap else ("-w",)
        return cap, compile_cubin(text, folder, f"{name}_{cap}", nvcc, *flags)

    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(one, sorted(set(caps))))


def cubins_of(
    text: str, caps: tuple[int, ...], folder: str, nvcc: str, name: str
) -> dict[int, bytes]:
    """From a folder where they were compiled before, else compiled now (and kept there)."""
    with tempfile.TemporaryDirectory() as other:
        place = Path(folder or other)
        place.mkdir(parents=True, exist_ok=True)
        made = {cap: place / f"{name}_{cap}.cubin" for cap in set(caps)}
        if all(path.exists() for path in made.values()):
            return {cap: path.read_bytes() for cap, path in made.items()}
        return compile_caps(text, caps, place, nvcc, name)


def packed(cubins: dict[int, bytes]) -> tuple[np.ndarray, dict[str, int]]:
    """All cubins as one column of the table, and how long each is; they have much in common."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 24}]
    data = lzma.compress(b"".join(cubins.values()), filters=filters)
    return np.frombuffer(data, np.uint8), {str(cap): len(d) for cap, d in cubins.items()}


def unpacked(column: np.ndarray, sizes: dict[str, int]) -> dict[int, bytes]:
    """What `packed` packed."""
    data, made, at = lzma.decompress(column.tobytes()), {}, 0
    for cap, size in sizes.items():
        made[int(cap)] = data[at : at + size]
        at += size
    return made


def table_values(seed: int = 90) -> np.ndarray:
    """What kernels read: numbers from 0.5 to 1, and zeros where pointers are followed."""
    values = np.random.default_rng(seed).uniform(0.5, 1.0, FLOATS).astype(np.float32)
    values[2048:4096] = values[ZEROS_FROM:] = 0
    return values


class Bench:
    """Loaded cubins and memory."""

    def __init__(self, cubins: dict[int, bytes]) -> None:
        self.launcher = Launcher()
        self.modules = {cap: self.launcher.load_module(data) for cap, data in cubins.items()}
        self.x = self.launcher.allocate(FLOATS * 4)
        self.y = self.launcher.allocate(FLOATS * 4)
        self.launcher.upload(self.x, table_values())

    def launch(self, function: ctypes.c_void_p, resident: int, turns: int) -> Launch | None:
        """One wave with so many blocks on each SM; None where they do not fit.

        Blocks go to the SM that has the fewest, so each gets as many; `measure` looks.
        """
        launcher = self.launcher
        if launcher.blocks_per_sm(function, BLOCK, 0) < resident:
            return None
        arguments = (
            ctypes.c_uint64(self.y),
            ctypes.c_uint64(self.x),
            ctypes.c_uint32(turns),
            ctypes.c_float(0.75),
            ctypes.c_float(0.25),
        )
        return Launch(launcher, function, resident * launcher.sms, BLOCK, 0, arguments)

    def measure(self, function: ctypes.c_void_p, resident: int) -> tuple[int, ...] | None:
        """Turns, clocks of the loop on an SM and of a warp, ns of a launch, blocks alike."""
        probe = self.launch(function, resident, 16)
        if probe is None:
            return None
        probe.go()
        each = max(probe.recorded().span_cycles / 16, 1)
        turns = int(np.clip(CLOCKS / each, 16, 1 << 20))
        launch = self.launch(function, resident, turns)
        assert launch is not None
        launch.go()
        records = [launch.recorded() for _ in range(3)]
        record = min(records, key=lambda r: r.span_cycles)
        took = launch.time_ns(REPEATS)
        even = record.fewest == record.most and record.sms == self.launcher.sms
        return turns, round(record.span_cycles), round(record.warp_cycles), round(took), even


def run(cubins: dict[int, bytes], chosen: list[Kernel], budget_s: float) -> dict[str, np.ndarray]:
    """All kernels, the caps that change them, and all numbers of blocks that fit."""
    bench = Bench(cubins)
    rows: list[tuple[int, ...]] = []
    began = time.monotonic()
    for index, kernel in enumerate(chosen):
        if time.monotonic() - began > budget_s:
            print(f"stopped before {kernel.name}: out of time", flush=True)
            break
        seen = set()
        for cap in sorted(cubins, key=lambda c: (c == 0, c), reverse=True):
            try:
                function = bench.launcher.function(bench.modules[cap], kernel.name)
                needs = tuple(bench.launcher.asked(function, a) for a in (REGISTERS, LOCAL))
                if needs in seen or (kernel.micro and seen):
                    continue
                seen.add(needs)
                for resident in RESIDENT:
                    got = bench.measure(function, resident)
                    if got:
                        rows.append((index, cap, *needs, resident, *got))
            except RuntimeError:
                print(f"{kernel.name} under {cap} failed", flush=True)
                traceback.print_exc()
                return _columns(rows)
        show = [(row[1], row[4], round(row[6] / row[5], 1)) for row in rows if row[0] == index]
        print(kernel.name, show, flush=True)
    return _columns(rows)


def _columns(rows: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    return dict(zip(NAMES, np.array(rows, np.int64).reshape(-1, len(NAMES)).T, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--cubins", default="", metavar="FOLDER", help="compiled before, or kept")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--limit", type=int, default=1000, help="kernels")
    parser.add_argument("--budget", type=float, default=60, help="seconds on the GPU")
    args = parser.parse_args()
    began = time.monotonic()
    chosen = kernels()
    cubins = cubins_of(source(), CAPS, args.cubins, args.nvcc, "pressure")
    print(f"{len(chosen)} kernels under {len(cubins)} caps: {time.monotonic() - began:.1f} s")
    if args.compile_only:
        return
    columns = run(cubins, chosen[: args.limit], args.budget)
    launcher = Launcher()
    about = surroundings() | {
        "kernels": [kernel.name for kernel in chosen],
        "flops": [kernel.flops for kernel in chosen],
        "micro": [kernel.micro for kernel in chosen],
        "block": BLOCK,
        "sms": launcher.sms,
        "clock_khz": launcher.attribute(CLOCK_KHZ),
        "seconds": round(time.monotonic() - began, 1),
    }
    column, about["cubins"] = packed(cubins)
    path = save("lab_pressure", columns | {"cubins": column}, about)
    print(f"{len(columns['kernel'])} launches in {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
