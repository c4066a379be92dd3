"""Finds NVIDIA's compiler and disassemblers, runs them, and remembers what they answered.

They come from the wheels of the extra `lab` (no GPU needed), else from CUDA_HOME or PATH.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from spanlite.errors import InputError, ServiceError, UsageError

#: Hopper; the `a` brings wgmma and TMA's register reconfiguration.
DEFAULT_ARCH = "sm_90a"
CACHE_VARIABLE = "SPANLITE_LAB_CACHE"
#: A kernel that takes longer to compile than this has met a fault in the compiler.
TIMEOUT_S = 1800.0
_ARCH = re.compile(r"sm_\d+[af]?")


def cache_folder() -> Path:
    """Where compiled kernels are kept: SPANLITE_LAB_CACHE, else the user's cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "spanlite" / "lab"


def _places() -> Iterator[Path]:
    """Folders that may hold the tools, best first."""
    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    yield from sorted(site.glob("cu[0-9]*/bin"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin"
    yield from (Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p)
    yield Path("/usr/local/cuda/bin")


@lru_cache
def _find(name: str, places: tuple[Path, ...]) -> Path | None:
    found = (place / name for place in places)
    return next((p for p in found if p.is_file() and os.access(p, os.X_OK)), None)


def find_tool(name: str) -> Path:
    """The path of `nvcc`, `ptxas`, `cuobjdump` or `nvdisasm`.

    Raises ServiceError, which names the extra to install, where there is none; for `nvcc` also
    where the host compiler that it calls, even for code of the GPU alone, is missing.
    """
    found = _find(name, tuple(_places()))
    if found is None:
        raise ServiceError(
            f"{name} was not found: install spanlite-analytics[lab], "
            "or set CUDA_HOME to a CUDA 13 toolkit"
        )
    if name == "nvcc" and shutil.which("g++") is None:
        raise ServiceError("nvcc needs g++, which is missing; install it with: apt-get install g++")
    return found


def has_tools(*names: str) -> bool:
    """Whether all of the tools are there, and g++ for nvcc."""
    places = tuple(_places())
    if "nvcc" in names and shutil.which("g++") is None:
        return False
    return all(_find(name, places) for name in names)


@lru_cache
def _version(tool: Path) -> str:
    """Part of each cache key, so that another toolkit does not meet this one's answers."""
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool wrote: its output file (empty where it writes none), and its words."""

    data: bytes
    words: str


def run_tool(name: str, arguments: Sequence[str], source: bytes, suffix: str) -> Answer:
    """Run a tool on `source`, or take its answer from the cache.

    In `arguments`, `{in}` stands for a file with the source (its name ends in `suffix`) and
    `{out}` for the output file. The key is the tool's version, the arguments and the source.
    Raises InputError with the tool's message where the tool refuses, ServiceError where it is
    missing.
    """
    tool = find_tool(name)
    key = hashlib.sha256(
        b"\0".join([_version(tool).encode(), *(a.encode() for a in arguments), source])
    ).hexdigest()
    place = cache_folder() / key[:2] / key
    cached = _read(place)
    if cached is None:
        cached = _run(tool, arguments, source, suffix)
        _write(place, cached)
    return cached


def _read(place: Path) -> Answer | None:
    try:
        words, data = (place / "words").read_text(), (place / "data").read_bytes()
    except OSError:
        return None
    return Answer(data, words)


def _write(place: Path, answer: Answer) -> None:
    """Appears by one rename, so that nobody reads half of it; a full disk costs speed alone."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / "entry"
            made.mkdir()
            (made / "data").write_bytes(answer.data)
            (made / "words").write_text(answer.words)
            made.rename(place)
    except OSError:
        return


def _run(tool: Path, arguments: Sequence[str], source: bytes, suffix: str) -> Answer:
    with tempfile.TemporaryDirectory(prefix="spanlite-lab-") as folder:
        given, made = Path(folder) / f"input{suffix}", Path(folder) / "output"
        given.write_bytes(source)
        words = [str(tool)]
        words += [a.replace("{in}", str(given)).replace("{out}", str(made)) for a in arguments]
        done = _finished(tool.name, words)
        said = (done.stderr + done.stdout).replace(str(given), "input" + suffix)
        if done.returncode:
            raise InputError(f"{tool.name} refuses it: {said.strip()[:2000]}")
        data = made.read_bytes() if made.exists() else b""
        return Answer(data, done.stdout if not data else said)


def _finished(name: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end. nvcc starts programs of its own: they go with it, whatever ends it."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # nvcc quotes source as it is
    ) as process:
        try:
            out, error = process.communicate(timeout=TIMEOUT_S)
        except BaseException as reason:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(reason, subprocess.TimeoutExpired):
                raise ServiceError(
                    f"{name} did not finish within {TIMEOUT_S:.0f} s; try a smaller kernel"
                ) from reason
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, error)


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to compile: the architecture, and flags for nvcc."""

    arch: str = DEFAULT_ARCH
    flags: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not _ARCH.fullmatch(self.arch):
            raise UsageError(f"no such architecture: {self.arch!r}; one looks like sm_90a")

    def ptx(self, path: Path) -> str:
        """PTX of a `.cu` file, with the lines of its source."""
        source = read_bytes(path)
        # Absolute, and by name: what it includes beside itself is found, and named in `.loc`.
        folder = str(path.resolve().parent)
        where = f'# 1 "{path.resolve()}"\n'.encode()
        words = (f"-arch={self.arch}", "-lineinfo", "-std=c++17", "-I", folder, *self.flags)
        key = where + source + _beside(path, source)
        return run_tool_on_cuda(words, where + source, key).data.decode(errors="replace")

    def cubin(self, ptx: str, level: int = 3) -> Answer:
        """Machine code of a PTX text at an optimisation level, and what ptxas counts with `-v`."""
        limits = [flag for flag in self.flags if "maxrregcount" in flag]
        words = (
            f"-arch={self.arch}",
            f"-O{level}",
            "-lineinfo",
            "-v",
            *limits,
            "{in}",
            "-o",
            "{out}",
        )
        return run_tool("ptxas", words, ptx.encode(), ".ptx")


def run_tool_on_cuda(words: Sequence[str], source: bytes, key: bytes) -> Answer:
    """nvcc to PTX. `key` holds all that the answer depends on beside the flags."""
    mark = f"-DSPANLITE_LAB_KEY={hashlib.sha256(key).hexdigest()[:16]}"
    return run_tool("nvcc", (*words, mark, "-ptx", "{in}", "-o", "{out}"), source, ".cu")


_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _beside(path: Path, source: bytes) -> bytes:
    """The files that a source includes by "name" from its own folder."""
    parts = []
    for name in _INCLUDE.findall(source):
        other = path.parent / name.decode(errors="replace")
        if other.is_file() and other != path:
            text = other.read_bytes()
            parts += [name, text]
    return b"\0".join(parts)


def disassemble(cubin: bytes) -> str:
    """SASS of a cubin with the lines of its source and of its PTX (`nvdisasm -c -g -gp`)."""
    return run_tool("nvdisasm", ("-c", "-g", "-gp", "{in}"), cubin, ".cubin").words


def read_bytes(path: Path) -> bytes:
    """A file's bytes. Raises InputError where there is none, or it is empty."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not data:
        raise InputError(f"{path}: is empty")
    return data
