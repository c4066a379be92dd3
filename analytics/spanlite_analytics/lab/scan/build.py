"""Compiles a configuration, and says what it takes of an SM: no GPU is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spanlite.errors import SpanLiteError
from spanlite.occupancy import limits_of

from spanlite_analytics.lab.occupancy import Launch, on
from spanlite_analytics.lab.resources import read_resources
from spanlite_analytics.lab.scan.spec import Argument, Config, Spec
from spanlite_analytics.lab.toolchain import Compiler

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", re.S)


class BuildError(Exception):
    """A configuration that cannot be built or launched; the scan goes on without it."""


@dataclass(frozen=True, slots=True)
class Theory:
    """What a configuration takes, and what an SM then holds."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    blocks_per_sm: int
    warps_per_sm: int
    occupancy: float
    limited_by: str


@dataclass(frozen=True, slots=True)
class Filled:
    """An argument with its value: elements of a buffer, or a scalar."""

    argument: Argument
    value: int | float


@dataclass(frozen=True, slots=True)
class Built:
    """A configuration ready to launch. `cubin` is empty for Triton, which compiles by itself."""

    spec: Spec
    config: Config
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    arguments: tuple[Filled, ...]
    defines: dict[str, int | float | str]
    flops: float | None
    moved_bytes: float | None
    cubin: bytes = b""
    theory: Theory | None = None


def build(spec: Spec, config: Config) -> Built:
    """Evaluate, compile and count. Raises BuildError; ServiceError where no compiler is there."""
    try:
        filled = _filled(spec, config)
    except ValueError as error:
        raise BuildError(str(error)) from None
    if spec.kernel.is_triton:
        return filled
    flags = tuple(f"-D{name}={value}" for name, value in filled.defines.items())
    compiler = Compiler(spec.arch, (*spec.flags, *flags, *_include(spec)))
    try:
        answer = compiler.cubin(compiler.ptx(spec.kernel.path))
        theory = _theory(spec, filled, answer.data, answer.words)
    except SpanLiteError as error:
        if "refuses" in str(error):
            raise BuildError(str(error)) from None
        raise
    return Built(**{name: getattr(filled, name) for name in Built.__slots__}
                 | {"cubin": answer.data, "theory": theory})  # fmt: skip


def _include(spec: Spec) -> tuple[str, ...]:
    return ("-I", str(spec.kernel.path.resolve().parent))


def _filled(spec: Spec, config: Config) -> Built:
    names, kernel = spec.names(config), spec.kernel
    defines = {name: e.value(names) for name, e in kernel.defines.items()}
    if kernel.shared and kernel.shared.whole(names) < 0:
        raise ValueError("shared memory cannot be negative")
    return Built(
        spec,
        config,
        _three([e.whole(names) for e in kernel.grid]),
        _three([e.whole(names) for e in kernel.block]),
        kernel.shared.whole(names) if kernel.shared else 0,
        tuple(
            Filled(
                a, a.size.whole(names) if a.is_buffer or a.type[0] == "i" else a.size.value(names)
            )
            for a in kernel.arguments
        ),
        defines,
        float(kernel.flops.value(names)) if kernel.flops else None,
        float(kernel.moved_bytes.value(names)) if kernel.moved_bytes else None,
    )


def _three(axes: list[int]) -> tuple[int, int, int]:
    if any(axis < 1 for axis in axes):
        raise ValueError(f"a grid or block of {axes} has an axis below 1")
    x, y, z = (*axes, 1, 1, 1)[:3]
    return x, y, z


def _theory(spec: Spec, built: Built, cubin: bytes, words: str) -> Theory:
    found = [r for r in read_resources(cubin, spec.kernel.entry) if r.name == spec.kernel.entry]
    if not found:
        raise BuildError(
            f"no kernel '{spec.kernel.entry}' in {spec.kernel.path.name}: is it extern \"C\"?"
        )
    spills = 0
    for name, said in _ENTRY.findall(words):
        if name == spec.kernel.entry and (numbers := _SPILLS.search(said)):
            spills = sum(map(int, numbers.groups()))
    return theory_of(
        spec, built, found[0].registers, found[0].shared_bytes + built.dynamic_shared_bytes, spills
    )


def theory_of(spec: Spec, built: Built, registers: int, shared_bytes: int, spills: int) -> Theory:
    """Occupancy of a configuration by CUDA's rules. Raises BuildError where it cannot run."""
    x, y, z = built.block
    sm = limits_of(_capability(spec.arch))
    launch = Launch(x * y * z, max(registers, 1), 0, shared_bytes)
    if x * y * z > 1024:
        raise BuildError(f"a block of {x * y * z} threads: at most 1024 run")
    got = on(sm, launch)
    row = got.row()
    if not int(got.blocks):
        raise BuildError(
            f"one block needs more than an SM has: {registers} registers a thread, "
            f"{shared_bytes:,} bytes of shared memory (limited by {row['limiters']})"
        )
    return Theory(
        registers, spills, shared_bytes, int(got.blocks), int(got.warps), float(got.fraction),
        str(row["limiters"]),
    )  # fmt: skip


def _capability(arch: str) -> str:
    digits = arch.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}"
