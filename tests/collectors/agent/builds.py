"""Builds of the agent with its stand-in CUPTI, and the host programs that run under them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rings import RingReader

ROOT = Path(__file__).parents[3]
LIBRARIES = ROOT / "collectors" / "spanlite_collectors" / "lib"
SANITIZERS = {"plain": "", "asan": "address,undefined", "tsan": "thread"}
# What a sanitizer finds must fail the test, and the agent's own leak checks make no sense: it is
# never torn down.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:handle_abort=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
}


def _has_sanitizer(flags: str) -> bool:
    program = "int main(){return 0;}"
    command = ["g++", f"-fsanitize={flags}", "-x", "c++", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


@dataclass
class Build:
    """One build of everything, and how to run programs of it."""

    name: str
    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "tests" / name

    @property
    def libraries(self) -> Path:
        return LIBRARIES if self.name == "plain" else self.folder

    def environment(self, rings: Path, **settings: object) -> dict[str, str]:
        """The one variable a server needs, NVTX's, and the agent's settings."""
        agent = {f"SPANLITE_AGENT_{k.upper()}": str(v) for k, v in settings.items()}
        return (
            os.environ
            | OPTIONS
            | {
                "CUDA_INJECTION64_PATH": str(self.libraries / "libspanlite_agent.so"),
                "NVTX_INJECTION64_PATH": str(self.libraries / "libspanlite_agent.so"),
                "LD_LIBRARY_PATH": str(self.folder / "tests"),
                "SPANLITE_AGENT_DIR": str(rings),
                "SPANLITE_AGENT_RING_BYTES": str(8 << 20),
                "SPANLITE_AGENT_LEARN_SECONDS": "0",
            }
            | agent
        )


def make(name: str) -> Build:
    flags = SANITIZERS[name]
    if shutil.which("g++") is None:
        pytest.skip("the agent is built with g++, which is missing (Debian: g++)")
    if flags and not _has_sanitizer(flags):
        pytest.skip(f"this g++ has no runtime for -fsanitize={flags} (Debian: libasan8, libtsan2)")
    # The plain build is that of `make agent`, with the tests' programs added.
    folder = ROOT / "collectors" / "agent" / (f"build-{name}" if flags else "build")
    arguments = ["-DBUILD_TESTS=ON"]
    if flags:
        arguments += [f"-DSANITIZE={flags}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -g1"]
    else:
        arguments += [f"-DLIBRARY_FOLDER={LIBRARIES}"]
    command = [str(ROOT / "scripts" / "build-agent"), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Build(name, folder)


@dataclass
class Ended:
    """A host program that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def reports(self) -> dict[str, dict[str, int]]:
        rows = [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]
        return {row["who"]: row for row in rows}


@dataclass
class Hosts:
    """Starts host programs whose rings lie in one folder, and reads the rings."""

    rings: Path
    library: Path
    readers: list[RingReader] = field(default_factory=list)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, build: Build, *words: str, command: list[str] | None = None, **settings: object
    ) -> subprocess.Popen[str]:
        environment = build.environment(self.rings, **settings)
        process = subprocess.Popen(
            [*(command or [str(build.program("host"))]), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, build: Build, *words: str, **settings: object) -> Ended:
        return self.end(self.start(build, *words, **settings))

    def end(self, process: subprocess.Popen[str], code: int = 0) -> Ended:
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == code, stderr
        return Ended(process.returncode, stdout, stderr)

    def reader(self, pid: int | None = None) -> RingReader:
        """The ring of a process (of the only one, without a pid), waited for."""
        pattern = "*.ring" if pid is None else f"{pid}-*.ring"
        deadline = time.monotonic() + 60
        while not (paths := sorted(self.rings.glob(pattern))):
            assert time.monotonic() < deadline, "no ring appeared"
            time.sleep(0.01)
        assert len(paths) == 1, paths
        self.readers.append(RingReader(self.library, paths[0]))
        return self.readers[-1]

    def drained(self) -> RingReader:
        """The only ring, with all that it holds."""
        reader = self.reader()
        reader.drain()
        return reader
