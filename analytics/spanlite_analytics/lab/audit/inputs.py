"""Finds the GPU code in what a user hands over: sources, PTX, cubins, libraries, Triton's cache."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spanlite.errors import InputError

from spanlite_analytics.lab.toolchain import TIMEOUT_S, Compiler, find_tool, has_tools, read_bytes

_ELF = b"\x7fELF"
_CUDA_MACHINE = 190
_FATBIN = b"\x50\xed\x55\xba"
_PTX_SECTION = b".nv_debug_ptx_txt"
Block = tuple[int, int, int]


@dataclass(slots=True)
class Unit:
    """One compiled module: PTX, machine code, or both."""

    name: str
    ptx: str = ""
    cubin: bytes = b""
    #: What `ptxas -v` said.
    counts: str = ""
    blocks: dict[str, Block] = field(default_factory=dict)
    #: Whether the PTX comes out of the cubin, and has lost the lines of its source.
    embedded: bool = False


def units_of(path: Path, compiler: Compiler) -> list[Unit]:
    """The modules in a file or folder.

    Raises InputError where nothing in it is GPU code, ServiceError where a tool is missing.
    """
    if path.is_dir():
        return _from_folder(path, compiler)
    data = read_bytes(path)
    if path.suffix == ".cu":
        return [_compiled(str(path), compiler.ptx(path), compiler)]
    if data.startswith(_ELF) and _machine(data) == _CUDA_MACHINE:
        return [_from_cubin(str(path), data)]
    if data.startswith((_ELF, _FATBIN)) or path.suffix in (".fatbin", ".a", ".o"):
        return _extracted(path)
    text = data.decode("utf-8", errors="replace")
    if ".version" in text and ".target" in text:
        return [_compiled(str(path), text, compiler)]
    raise InputError(
        f"{path}: holds no GPU code: give a .cu, .ptx, .cubin, .fatbin or .so file, "
        "or a folder of Triton's cache"
    )


def _machine(data: bytes) -> int:
    return int(struct.unpack_from("<H", data, 18)[0]) if len(data) >= 64 else 0


def _compiled(name: str, ptx: str, compiler: Compiler) -> Unit:
    """PTX, with ptxas's counts where there is a ptxas that takes it."""
    if not has_tools("ptxas"):
        return Unit(name, ptx)
    answer = Compiler(target_of(ptx, compiler.arch), compiler.flags).cubin(ptx)
    return Unit(name, ptx, answer.data, answer.words)


def target_of(ptx: str, otherwise: str) -> str:
    """The architecture a PTX text is for."""
    for line in ptx.splitlines():
        if line.strip().startswith(".target"):
            return line.split()[1].rstrip(",")
    return otherwise


def embedded_ptx(cubin: bytes) -> str:
    """The PTX that ptxas leaves in a cubin built with -lineinfo; empty where there is none."""
    try:
        at, count, names = (
            struct.unpack_from("<Q", cubin, 0x28)[0],
            *struct.unpack_from("<HH", cubin, 0x3C),
        )
        sections = [struct.unpack_from("<IIQQQQ", cubin, at + 64 * i) for i in range(count)]
        strings = sections[names][4]
        for name, _, _, _, start, size in sections:
            end = cubin.index(b"\0", strings + name)
            if cubin[strings + name : end] == _PTX_SECTION:
                return cubin[start : start + size].replace(b"\0", b"\n").decode(errors="replace")
    except (struct.error, IndexError, ValueError):
        return ""
    return ""


def _from_cubin(name: str, data: bytes) -> Unit:
    ptx = embedded_ptx(data)
    return Unit(name, ptx, data, embedded=bool(ptx))


def _extracted(path: Path) -> list[Unit]:
    """All that cuobjdump finds in a fat binary, a library or a program."""
    with tempfile.TemporaryDirectory(prefix="spanlite-lab-") as folder:
        for kind in ("-xelf", "-xptx"):
            subprocess.run(
                [find_tool("cuobjdump"), kind, "all", path.resolve()],
                cwd=folder,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        made = sorted(Path(folder).iterdir())
        units = [
            _from_cubin(f"{path}:{p.name}", p.read_bytes()) for p in made if p.suffix == ".cubin"
        ]
        ptx = [p for p in made if p.suffix == ".ptx"]
        if not any(unit.ptx for unit in units):
            units += [Unit(f"{path}:{p.name}", p.read_text(errors="replace")) for p in ptx]
    if not units:
        raise InputError(f"{path}: holds no GPU code that cuobjdump can find")
    return units


def _from_folder(folder: Path, compiler: Compiler) -> list[Unit]:
    """Pairs of `.ptx` and `.cubin` by name, as in Triton's cache; `num_warps` gives the block."""
    units = list(_pairs(folder, compiler))
    if not units:
        raise InputError(f"{folder}: holds no .ptx and no .cubin file")
    return units


def _pairs(folder: Path, compiler: Compiler) -> Iterator[Unit]:
    stems = {p.with_suffix("") for p in folder.rglob("*") if p.suffix in (".ptx", ".cubin")}
    for stem in sorted(stems):
        ptx, cubin, about = (stem.with_suffix(s) for s in (".ptx", ".cubin", ".json"))
        if ptx.exists():
            unit = _compiled(str(ptx), read_bytes(ptx).decode(errors="replace"), compiler)
        else:
            unit = _from_cubin(str(cubin), read_bytes(cubin))
        unit.blocks = _block_in(about)
        yield unit


def _block_in(about: Path) -> dict[str, Block]:
    try:
        words = json.loads(about.read_text())
        warps = int(words["num_warps"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"": (warps * int(words.get("warp_size", 32)), 1, 1)}
