"""Ask the CUDA occupancy API about 10,000 random configurations, and keep its answers.

python3 -m bench.h200.lab_occupancy_table [--rows N] [--seed N] [--nvcc PATH] [--compile-only]

Kernels of 1 to some 250 registers, up to 48 KiB of static shared memory and up to 16 barriers
are compiled; then `cuOccupancyMaxActiveBlocksPerMultiprocessor` answers for random block sizes,
dynamic shared memory, opt-ins and carve-outs, and `cuOccupancyMaxActiveClusters` for clusters
of 1 to 16 blocks. Writes bench/h200/tables/lab_occupancy.npz. About 20 s, nvcc on 8 cores.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.h200._device import Driver, compile_cubin, load, save, surroundings

KIB = 1024
#: CUfunction_attribute.
STATIC_SHARED, REGISTERS, MAX_DYNAMIC, CARVEOUT, NON_PORTABLE_CLUSTER = 1, 4, 8, 9, 14
#: CUdevice_attribute.
DEVICE = {"sms": 16, "major": 75, "minor": 76, "shared_sm": 81, "opt_in": 97, "reserved": 111}
ACCUMULATORS = (*range(1, 64, 2), *range(64, 240, 7))
CAPS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 168, 192, 208, 224, 240, 255)
CLUSTERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Kernel:
    """What one kernel is made to need."""

    accumulators: int
    static_shared_bytes: int
    barriers: int

    @property
    def name(self) -> str:
        """Of the function."""
        return f"k{self.accumulators}_{self.static_shared_bytes}_{self.barriers}"

    def source(self) -> str:
        """All accumulators are alive through the loop, each in a register of its own."""
        n = self.accumulators
        steps = "".join(f"a[{i}]=a[{i}]*v+a[{(i * 7 + 3) % n}];" for i in range(n))
        floats = max(self.static_shared_bytes // 4, 1)
        shared = f"__shared__ float s[{floats}];" if self.static_shared_bytes else ""
        use = f"s[threadIdx.x%{floats}]=v;v+=s[(threadIdx.x+1)%{floats}];" if shared else ""
        syncs = "".join(f'asm volatile("bar.sync {i};":::"memory");' for i in range(self.barriers))
        return (
            f'extern "C" __global__ void {self.name}(float* x,int n){{{shared}float a[{n}];'
            f'_Pragma("unroll") for(int i=0;i<{n};i++)a[i]=x[i*32+threadIdx.x];'
            f'_Pragma("unroll 1") for(int k=0;k<n;k++){{float v=x[k];{use}{syncs}{steps}}}'
            f'float t=0;_Pragma("unroll") for(int i=0;i<{n};i++)t+=a[i];x[threadIdx.x]=t;}}\n'
        )


def kernels(seed: int) -> list[Kernel]:
    """One for each count of accumulators, with static shared memory and barriers at random."""
    draw = np.random.default_rng(seed)
    made = []
    for count in ACCUMULATORS:
        static = 0 if draw.random() < 0.4 else int(draw.integers(1, 12 * KIB + 1)) * 4
        barriers = int(draw.choice([0, 1, 1, 1, 2, 3, 4, 5, 7, 8, 11, 15, 16]))
        made.append(Kernel(count, static, barriers))
    return made


def compile_all(folder: Path, nvcc: str, seed: int) -> Iterator[tuple[list[Kernel], bytes]]:
    """Cubins: the kernels as the compiler likes them, and a large one under each register cap."""
    made = kernels(seed)
    jobs = [(f"free{i}", made[i::6], ()) for i in range(6)]
    for index, cap in enumerate(CAPS):
        kernel = Kernel(238, (index % 3) * 4_000, index % 5)
        jobs.append((f"cap{cap}", [kernel], (f"-maxrregcount={cap}",)))

    def one(job: tuple[str, list[Kernel], tuple[str, ...]]) -> tuple[list[Kernel], bytes]:
        name, group, flags = job
        source = "".join(kernel.source() for kernel in group)
        return group, compile_cubin(source, folder, name, nvcc, *flags)

    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(one, jobs)


class Asked:
    """A loaded kernel: what it needs, and the API's answers about it."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p, kernel: Kernel) -> None:
        self.driver, self.handle, self.kernel = driver, handle, kernel
        self.registers = self._get(REGISTERS)
        self.static = self._get(STATIC_SHARED)

    def _get(self, attribute: int) -> int:
        value = ctypes.c_int()
        self.driver("cuFuncGetAttribute", ctypes.byref(value), attribute, self.handle)
        return value.value

    def set(self, attribute: int, value: int) -> None:
        """Set an attribute of the function."""
        self.driver("cuFuncSetAttribute", self.handle, attribute, value)

    def _ask(self, name: str, *arguments: object) -> int:
        """What the API answers, or its error as a negative number."""
        answer = ctypes.c_int()
        call = getattr(self.driver.library, name)
        status = int(call(ctypes.byref(answer), self.handle, *arguments))
        return -status if status else answer.value

    def blocks(self, threads: int, dynamic: int) -> int:
        """Blocks that an SM holds."""
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self._ask(name, threads, ctypes.c_size_t(dynamic))

    def clusters(self, size: int, threads: int, dynamic: int) -> int:
        """Clusters that the GPU holds."""
        attribute = _Attribute(4, (size, 1, 1))
        config = _Config((size, 1, 1), (threads, 1, 1), dynamic, None, ctypes.pointer(attribute), 1)
        return self._ask("cuOccupancyMaxActiveClusters", ctypes.byref(config))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute with a cluster dimension; 4 is CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("size", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )

    def __init__(self, number: int, size: tuple[int, int, int]) -> None:
        super().__init__(id=number, size=(ctypes.c_uint * 3)(*size))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def ask(found: list[Asked], rows: int, seed: int, opt_in: int) -> dict[str, np.ndarray]:
    """Random configurations and the API's blocks. Half lie where one more byte matters."""
    draw = np.random.default_rng(seed)
    table = []
    for _ in range(rows):
        kernel = found[draw.integers(len(found))]
        most = opt_in - kernel.static
        fair = int(228 * KIB // draw.integers(1, 12)) - KIB - kernel.static
        wish = fair + int(draw.integers(-300, 300)) if draw.random() < 0.5 else 0
        dynamic = min(max(wish or int(draw.integers(0, most + 1)), 0), most)
        dynamic = 0 if draw.random() < 0.3 else dynamic
        limit = int(draw.integers(0, most + 1)) if draw.random() < 0.1 else dynamic
        carveout = -1 if draw.random() < 0.5 else int(draw.integers(0, 101))
        fits = max(65_536 // (-(-kernel.registers // 8) * 256), 1)
        warps = int(draw.integers(1, 33 if draw.random() < 0.2 else min(fits, 32) + 1))
        threads = warps * 32 - (int(draw.integers(0, 32)) if draw.random() < 0.3 else 0)
        kernel.set(MAX_DYNAMIC, limit)
        kernel.set(CARVEOUT, carveout)
        blocks = kernel.blocks(threads, dynamic)
        table.append(
            (
                threads,
                kernel.registers,
                kernel.static,
                dynamic,
                limit,
                carveout,
                kernel.kernel.barriers,
                blocks,
            )
        )
    names = ("threads", "registers", "static", "dynamic", "max_dynamic", "carveout", "barriers")
    return dict(zip((*names, "blocks"), np.array(table).T, strict=True))


def ask_clusters(kernel: Asked, opt_in: int) -> dict[str, np.ndarray]:
    """Clusters that the whole GPU holds, by their size and the blocks an SM holds."""
    kernel.set(MAX_DYNAMIC, opt_in - kernel.static)
    kernel.set(CARVEOUT, -1)
    kernel.set(NON_PORTABLE_CLUSTER, 1)
    table = []
    for per_sm in (1, 2, 3, 4, 8):
        dynamic = (228 * KIB // per_sm - KIB - kernel.static) // 128 * 128
        dynamic = min(dynamic, opt_in - kernel.static)
        held = kernel.blocks(64, dynamic)
        table += [(size, held, kernel.clusters(size, 64, dynamic)) for size in CLUSTERS]
    names = ("cluster_size", "cluster_blocks_per_sm", "cluster_active")
    return dict(zip(names, np.array(table).T, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=90)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cubins = list(compile_all(Path(folder), args.nvcc, args.seed))
    print(f"compiled {sum(len(group) for group, _ in cubins)} kernels", flush=True)
    if args.compile_only:
        return
    driver = Driver()
    found = []
    for group, cubin in cubins:
        module = driver.load_module(cubin)
        found += [Asked(driver, driver.function(module, k.name), k) for k in group]
    device = {name: driver.attribute(number) for name, number in DEVICE.items()}
    columns = ask(found, args.rows, args.seed, device["opt_in"])
    light = min((a for a in found if a.kernel.barriers < 2), key=lambda a: a.registers)
    columns |= ask_clusters(light, device["opt_in"])
    about = surroundings() | {"device": device, "registers": sorted({a.registers for a in found})}
    path = save("lab_occupancy", columns, about)
    print(f"{len(columns['blocks'])} configurations in {path}, {path.stat().st_size:,} bytes")
    print("clusters", [load(path)[0][k].tolist() for k in columns if k.startswith("cluster")])


if __name__ == "__main__":
    main()
