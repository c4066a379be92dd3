"""What each machine instruction keeps busy, and for how long, by compute capability.

Rates are results a clock and SM from "Throughput of Native Arithmetic Instructions" in NVIDIA's
CUDA C++ Programming Guide (12.6 and 13.0); divided over four sub-partitions of a warp instruction
of 32 lanes they are clocks an instruction. For 9.0 the rates and latencies that the guide does
not give were measured on an H200 (`bench/h200/lab_pressure_table.py`, the kernels named
`micro_*`); latencies of fixed length are in the code itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from spanlite.errors import UsageError

from spanlite_analytics.lab.pressure.code import Instruction

#: Kinds, for people.
KINDS = {
    "FFMA": "FP32", "FADD": "FP32", "FMUL": "FP32", "FMNMX": "FP32", "FSETP": "FP32",
    "FSEL": "FP32", "FCHK": "FP32", "FSET": "FP32", "FSWZADD": "FP32", "FMNMX3": "FP32",
    "DFMA": "FP64", "DADD": "FP64", "DMUL": "FP64", "DSETP": "FP64", "DMNMX": "FP64",
    "HFMA2": "FP16", "HADD2": "FP16", "HMUL2": "FP16", "HMNMX2": "FP16", "HSETP2": "FP16",
    "HSET2": "FP16",
    "MUFU": "SFU",
    "HMMA": "tensor", "IMMA": "tensor", "DMMA": "tensor", "HGMMA": "tensor", "IGMMA": "tensor",
    "QGMMA": "tensor", "BGMMA": "tensor", "BMMA": "tensor", "QMMA": "tensor",
    "LDS": "shared", "STS": "shared", "LDSM": "shared", "STSM": "shared", "ATOMS": "shared",
    "LDG": "global", "STG": "global", "LD": "global", "ST": "global", "LDGSTS": "global",
    "ATOM": "global", "ATOMG": "global", "RED": "global", "REDG": "global",
    "LDL": "spill", "STL": "spill",
    "BRA": "branch", "BRX": "branch", "BSSY": "branch", "BSYNC": "branch", "EXIT": "branch",
    "CALL": "branch", "RET": "branch", "JMP": "branch", "BREAK": "branch", "WARPSYNC": "branch",
    "NANOSLEEP": "branch", "YIELD": "branch",
    "BAR": "barrier", "DEPBAR": "barrier", "MEMBAR": "barrier", "SYNCS": "barrier",
    "WARPGROUP": "barrier", "ERRBAR": "barrier", "CCTL": "barrier", "FENCE": "barrier",
    "SHFL": "shuffle", "VOTE": "shuffle", "REDUX": "shuffle", "MATCH": "shuffle",
    "F2F": "convert", "F2I": "convert", "I2F": "convert", "F2FP": "convert", "I2FP": "convert",
    "FRND": "convert", "I2I": "convert",
    "LDC": "constant", "ULDC": "constant", "LDCU": "constant",
}  # fmt: skip

#: Words of FP arithmetic: operations of a thread.
_FLOPS = {
    "FFMA": 2, "FADD": 1, "FMUL": 1, "DFMA": 2, "DADD": 1, "DMUL": 1,
    "HFMA2": 4, "HADD2": 2, "HMUL2": 2,
}  # fmt: skip
_MMA_SHAPE = re.compile(r"^(?:16816|1688|168256|16832|16864|884|64x\d+x\d+)$")


def kind_of(code: Instruction) -> str:
    """In a word: FP32, FP64, INT, SFU, tensor, shared, global, ..."""
    return KINDS.get(code.name, "INT")


def flops_of(code: Instruction) -> int:
    """Adds and multiplies of one thread; on tensor cores its share of the warp's or warpgroup's."""
    if code.name in _FLOPS:
        # A 16-bit constant moved by HFMA2 computes nothing.
        moves = code.opcode.startswith("HFMA2.MMA") and "RZ, RZ" in code.operands
        return 0 if moves else _FLOPS[code.name]
    if kind_of(code) != "tensor":
        return 0
    return 2 * _mma_products(code) // (128 if code.name.endswith("GMMA") else 32)


def _mma_products(code: Instruction) -> int:
    """Multiply-adds of one instruction; the shape is in its modifiers."""
    shape = next((m for m in code.modifiers if _MMA_SHAPE.match(m)), "")
    if "x" in shape:
        m, n, k = (int(word) for word in shape.split("x"))
        return m * n * k
    depth = {"1688": 8, "16816": 16, "16832": 32, "16864": 64, "168256": 256}
    return 8 * 8 * 4 if shape == "884" else 16 * 8 * depth.get(shape, 0)


def _warpgroup_clocks(code: Instruction) -> float:
    """Of each of the four tensor cores: 512 multiply-adds a clock in 16 bits (datasheet)."""
    rate = {"QGMMA": 1024, "IGMMA": 1024, "BGMMA": 8192}.get(code.name, 512)
    rate = 256 if "TF32" in code.opcode else rate
    return _mma_products(code) / 4 / rate


@dataclass(frozen=True, slots=True)
class Cost:
    """What an instruction takes on one sub-partition.

    `busy` clocks its `pipe` takes nothing else; `latency` clocks until a result that is waited
    for by a scoreboard is there; `read` until its operands have been read.
    """

    pipe: str
    busy: float
    latency: float = 0
    read: float = 0


@dataclass(frozen=True)
class Chip:
    """Costs by class, for one family of compute capabilities."""

    name: str
    costs: dict[str, Cost]
    source: str
    #: Clocks between the branch back and the loop's first instruction.
    branch: float = 10
    #: Clock for FLOP/s where none is given.
    clock_hz: float = 1.98e9
    #: Whether the model was compared with such a GPU.
    checked: bool = False
    l2_bytes: float = 60 * 2**20
    #: How much dearer spills are once all SMs' together are half as much again as the L2 holds.
    spill_miss: float = 2.55

    def spill_factor(self, spilled_bytes: float) -> float:
        """Of the cost of spills, by what all resident threads of the GPU have spilled."""
        over = min(max((spilled_bytes / self.l2_bytes - 1.1) * 2.5, 0.0), 1.0)
        return 1 + over * (self.spill_miss - 1)

    def cost(self, code: Instruction, memory: str) -> Cost:
        """Of one instruction; `memory` says where global loads find their data."""
        found = self.costs[class_of(code, memory)]
        if code.name.endswith("GMMA"):
            return Cost(found.pipe, _warpgroup_clocks(code), found.latency)
        return found


def class_of(code: Instruction, memory: str = "l1") -> str:
    """The row of `Chip.costs` for an instruction."""
    name = code.name
    if name in ("HMMA", "IMMA", "DMMA", "QMMA", "BMMA") or name.endswith("GMMA"):
        return "mma"
    if name in ("LDG", "LD"):
        past_l1 = "STRONG.GPU" in code.opcode or "STRONG.SYS" in code.opcode
        level = "l2" if past_l1 and memory == "l1" else memory
        return f"ldg_{level}{_width(code)}"
    if name in ("LDS", "LDSM"):
        return "lds" + ("128" if name == "LDSM" else _width(code))
    if name in ("LDL", "STL"):
        return name.lower() + _width(code)
    return _CLASS.get(name) or _by_kind(code)


def _width(code: Instruction) -> str:
    return next((m for m in code.modifiers if m in ("64", "128")), "32")


#: Registers that an operand takes, by the instruction; others take one.
_WIDE = {"DFMA": (2, 2, 2), "DADD": (2, 2), "DMUL": (2, 2), "DSETP": (2, 2), "HMMA": (4, 2, 4)}
_REGISTER = re.compile(r"(?<![\w.])[-~|!]*R(\d+)(\.reuse)?(?:\.64)?")


def sources_of(code: Instruction) -> list[tuple[int, int, bool]]:
    """General registers that an instruction reads, as (first, how many, kept for the next).

    Registers of addresses and of stored values are read by another path, at its own pace.
    """
    if kind_of(code) not in _BY_OPERANDS:
        return []
    parts = code.operands.split(", ")
    first = 0 if code.name.endswith(("SETP", "SETP2")) else 1
    widths = _WIDE.get(code.name, ())
    found = []
    for place, part in enumerate(parts[first:]):
        register = _REGISTER.match(part)
        if register:
            count = widths[place] if place < len(widths) else 1
            found.append((int(register.group(1)), count, bool(register.group(2))))
        else:
            found.append((-1, 0, False))
    return found


_BY_OPERANDS = ("FP32", "FP64", "FP16", "INT", "tensor", "convert", "SFU")


def reads_of(code: Instruction, before: Instruction | None) -> tuple[int, int]:
    """Reads from the even and the odd bank of the register file.

    What `before` has kept in the same place (`.reuse`) is not read again; it is lost (`before`
    None) when another warp issues in between. A register that stands twice is read once.
    """
    kept = sources_of(before) if before else []
    reads = [0, 0]
    seen = set()
    for place, (first, count, _) in enumerate(sources_of(code)):
        if place < len(kept) and kept[place][2] and kept[place][0] == first:
            continue
        for register in range(first, first + count):
            if register not in seen:
                seen.add(register)
                reads[register % 2] += 1
    return reads[0], reads[1]


_CLASS = {
    "FFMA": "ffma", "FADD": "ffma", "FMUL": "ffma",
    "FMNMX": "alu", "FSETP": "alu", "FSEL": "alu", "FSET": "alu",
    "IMAD": "imad", "IDP": "imad", "IDP4A": "imad", "VIADD": "viadd",
    "DFMA": "dfma", "DADD": "dfma", "DMUL": "dfma", "DSETP": "dfma", "DMNMX": "dfma",
    "HFMA2": "hfma2", "HADD2": "hfma2", "HMUL2": "hfma2", "HMNMX2": "alu", "HSETP2": "hfma2",
    "MUFU": "mufu", "F2F": "xu", "F2I": "xu", "I2F": "xu", "FRND": "xu", "POPC": "xu",
    "FLO": "xu", "BREV": "xu", "I2FP": "alu", "F2FP": "alu",
    "STS": "sts", "STSM": "sts", "ATOMS": "atoms", "STG": "stg", "ST": "stg",
    "ATOM": "atomg", "ATOMG": "atomg", "RED": "stg", "REDG": "stg", "LDGSTS": "stg",
    "SHFL": "shfl", "VOTE": "vote", "REDUX": "xu", "MATCH": "xu",
    "BAR": "bar", "LDC": "ldc", "S2R": "s2r", "S2UR": "s2r", "CS2R": "alu", "R2UR": "s2r",
}  # fmt: skip


def _by_kind(code: Instruction) -> str:
    if kind_of(code) in ("branch", "barrier"):
        return "control"
    return "uniform" if code.name.startswith("U") else "alu"


def _hopper() -> Chip:
    """9.0. Of each number: (g) the guide, (m) measured by the micro kernels on an H200."""
    lsu = {"32": 4.0, "64": 8.0, "128": 16.0}
    costs = {
        "ffma": Cost("fma", 1),
        "hfma2": Cost("fma", 1),
        "imad": Cost("fmaheavy", 2),
        "alu": Cost("alu", 2),
        "viadd": Cost("fmalite", 2),
        "dfma": Cost("fp64", 2, 16),
        "mufu": Cost("xu", 8, 17),
        "xu": Cost("xu", 8, 17),
        "vote": Cost("alu", 2, 10),
        "shfl": Cost("lsu", 4, 24),
        "mma": Cost("tensor", 6.3, 33),
        "sts": Cost("lsu", 4, 12, 12),
        "stg": Cost("lsu", 4, 12, 12),
        "atoms": Cost("lsu", 8, 50, 12),
        "atomg": Cost("lsu", 8, 300, 12),
        "bar": Cost("bar", 8, 17),
        "ldc": Cost("lsu", 4, 30),
        "s2r": Cost("control", 2, 20),
        "control": Cost("control", 2),
        "uniform": Cost("uniform", 2),
    }
    for width, busy in lsu.items():
        # Both go at the L2's pace, even where all that is spilled would fit into the L1.
        costs["stl" + width] = Cost("lsu", busy * 5, 12, 12)
        costs["ldl" + width] = Cost("lsu", busy * 2, 33, 12)
        costs["lds" + width] = Cost("lsu", busy, 22 + busy / 4, 10)
        costs["ldg_l1" + width] = Cost("lsu", busy, 30 + busy / 4, 10)
        costs["ldg_l2" + width] = Cost("lsu", busy * 2.7, 290, 10)
        costs["ldg_dram" + width] = Cost("lsu", busy * 7, 630, 10)
    return Chip("9.0", costs, "CUDA C++ Programming Guide 13.0; H200, micro kernels", checked=True)


def _before(name: str, clock_hz: float, l2_mib: float, **busy: float) -> Chip:
    """Another compute capability: rates from the guide, all else as on 9.0, and not checked."""
    hopper = _hopper()
    costs = hopper.costs | {k: replace(hopper.costs[k], busy=b) for k, b in busy.items()}
    source = "CUDA C++ Programming Guide 12.6; latencies and memory as on 9.0"
    return Chip(name, costs, source, clock_hz=clock_hz, l2_bytes=l2_mib * 2**20)


CHIPS = {
    chip.name: chip
    for chip in (
        _before("8.0", 1.41e9, 40, ffma=2, hfma2=1, dfma=4),
        _before("8.6", 1.695e9, 6, ffma=1, hfma2=1, dfma=64),
        _before("8.9", 2.52e9, 48, ffma=1, hfma2=2, dfma=64),
        _hopper(),
    )
}


def chip_of(capability: str) -> Chip:
    """Costs for a compute capability. Raises UsageError where there are none."""
    if capability not in CHIPS:
        raise UsageError(
            f"the issue model knows compute capability {', '.join(CHIPS)}, not {capability}"
        )
    return CHIPS[capability]
