"""What one SM holds, by compute capability 7.0 to 12.1.

Sources: "Technical Specifications per Compute Capability" and the sections on shared memory
in NVIDIA's CUDA C++ Programming Guide (13.0; 12.9 for 7.0 and 7.2), the facts in
`cuda_occupancy.h` of CUDA 13.0, and CCCL's `arch_traits`. `tests/proto/occupancy` compares
these rows with NVIDIA's header.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spanlite.errors import UsageError

KIB = 1024

#: The same for every compute capability from 7.0.
WARP_THREADS = 32
MAX_THREADS_PER_BLOCK = 1024
#: Warp schedulers, each with a quarter of the registers.
SUB_PARTITIONS = 4
#: Registers are given to a warp in units of so many.
REGISTER_UNIT = 256
#: What an instruction can name; the 256th is the zero register.
MAX_REGISTERS_PER_THREAD = 255
#: Shared memory of a block without opting in, static and dynamic together.
SHARED_WITHOUT_OPT_IN_BYTES = 48 * KIB
#: Blocks that any GPU from 9.0 takes as one cluster; 9.0 and 10.x take 16 on request.
PORTABLE_CLUSTER_BLOCKS = 8


def _kib(*sizes: int) -> tuple[int, ...]:
    return tuple(size * KIB for size in sizes)


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Limits of one streaming multiprocessor. Bytes are bytes, not KiB."""

    compute_capability: tuple[int, int]
    max_warps: int
    max_blocks: int
    #: What shared memory can be set to, ascending; the rest of the unified memory is L1.
    carveouts_bytes: tuple[int, ...]
    #: Shared memory is given to a block in units of so many bytes.
    shared_unit_bytes: int
    #: What the driver takes for itself of each block's shared memory.
    reserved_shared_bytes: int
    #: Hardware barriers an SM shares out; 0: no limit of their own.
    barriers: int = 0
    #: Largest cluster, where the kernel allows a size that is not portable; 1: no clusters.
    max_cluster_blocks: int = 1
    registers: int = 65_536
    registers_per_block: int = 65_536

    @property
    def name(self) -> str:
        """For people: `9.0`."""
        return "{}.{}".format(*self.compute_capability)

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of the SM."""
        return self.carveouts_bytes[-1]

    @property
    def shared_per_block_bytes(self) -> int:
        """Most shared memory that a block may ask for, once it has opted in."""
        return self.shared_bytes - self.reserved_shared_bytes

    @property
    def max_threads(self) -> int:
        """Resident threads."""
        return self.max_warps * WARP_THREADS


_VOLTA = SmLimits((7, 0), 64, 32, _kib(0, 8, 16, 32, 64, 96), 256, 0)
_TURING = SmLimits((7, 5), 32, 16, _kib(32, 64), 256, 0)
_AMPERE = SmLimits((8, 0), 64, 32, _kib(0, 8, 16, 32, 64, 100, 132, 164), 128, KIB)
_AMPERE_SMALL = SmLimits((8, 6), 48, 16, _kib(0, 8, 16, 32, 64, 100), 128, KIB)
_HOPPER = SmLimits(
    (9, 0),
    64,
    32,
    _kib(0, 8, 16, 32, 64, 100, 132, 164, 196, 228),
    128,
    KIB,
    barriers=64,
    max_cluster_blocks=16,
)
_BLACKWELL_SMALL = SmLimits(
    (12, 0),
    48,
    24,
    _AMPERE_SMALL.carveouts_bytes,
    128,
    KIB,
    barriers=24,
    max_cluster_blocks=PORTABLE_CLUSTER_BLOCKS,
)
_THOR = replace(_HOPPER, compute_capability=(11, 0), max_warps=48, max_blocks=24, barriers=24)

_ALL = (
    _VOLTA,
    replace(_VOLTA, compute_capability=(7, 2)),
    _TURING,
    _AMPERE,
    _AMPERE_SMALL,
    replace(_AMPERE, compute_capability=(8, 7), max_warps=48, max_blocks=16),
    replace(_AMPERE_SMALL, compute_capability=(8, 8)),
    replace(_AMPERE_SMALL, compute_capability=(8, 9), max_blocks=24),
    _HOPPER,
    replace(_HOPPER, compute_capability=(10, 0)),
    # CUDA 12 called it 10.1 what CUDA 13 calls 11.0.
    replace(_THOR, compute_capability=(10, 1)),
    # CUDA 13.0's header still said 64 barriers; 13.4's says 32.
    replace(_HOPPER, compute_capability=(10, 3), barriers=32),
    _THOR,
    _BLACKWELL_SMALL,
    replace(_BLACKWELL_SMALL, compute_capability=(12, 1)),
)

#: By (major, minor).
SM_LIMITS: dict[tuple[int, int], SmLimits] = {sm.compute_capability: sm for sm in _ALL}

#: Words of the names that traces and `nvidia-smi` use: the compute capability and the SMs.
KNOWN_GPUS: dict[str, tuple[tuple[int, int], int]] = {
    "h100 pcie": ((9, 0), 114),
    "v100": ((7, 0), 80),
    "t4": ((7, 5), 40),
    "a100": ((8, 0), 108),
    "a10": ((8, 6), 72),
    "l4": ((8, 9), 58),
    "l40s": ((8, 9), 142),
    "h100": ((9, 0), 132),
    "h200": ((9, 0), 132),
    "gh200": ((9, 0), 132),
    "b200": ((10, 0), 148),
}


def known_gpu(name: str) -> tuple[SmLimits, int] | None:
    """Limits and number of SMs for a name such as `NVIDIA H100 80GB HBM3`; None: unknown."""
    words = set(name.lower().replace("-", " ").split())
    for known, (capability, sms) in KNOWN_GPUS.items():
        if words.issuperset(known.split()):
            return SM_LIMITS[capability], sms
    return None


def limits_of(compute_capability: str | int | tuple[int, int]) -> SmLimits:
    """The limits for `"9.0"`, `"sm_90a"`, `90` or `(9, 0)`. Raises UsageError."""
    key = _parse(compute_capability)
    if key is None or key not in SM_LIMITS:
        known = ", ".join(sm.name for sm in SM_LIMITS.values())
        raise UsageError(
            f"no limits are known for compute capability '{compute_capability}'; known: {known}"
        )
    return SM_LIMITS[key]


def _parse(value: str | int | tuple[int, int]) -> tuple[int, int] | None:
    if isinstance(value, tuple):
        return value
    text = str(value).lower().removeprefix("sm_").removeprefix("sm").rstrip("af")
    major, dot, minor = text.partition(".")
    if not dot:
        major, minor = text[:-1], text[-1:]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
