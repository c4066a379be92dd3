"""The processes of a soak: the daemon, the server, their memory, and what an operator types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
STAND_IN = ROOT / "collectors" / "agent" / "build" / "tests"
#: Nothing listens there, so everything goes to the spool.
NO_BROKER = "127.0.0.1:9"
#: At `continuous` the process makes more than one daemon reads, for some seconds.
RING_BYTES = 512 << 20
#: What glibc's arenas are aligned to.
ARENA_BYTES = 64 << 20
#: Mappings are looked at so seldom.
CLOSER_S = 20
SPANLITE = [sys.executable, "-m", "spanlite.cli"]


@dataclass
class Process:
    """Memory and CPU time of a process, each second."""

    pid: int
    seconds: list[float] = field(default_factory=list)
    resident_kib: list[int] = field(default_factory=list)
    anonymous_kib: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    #: When, and the KiB of anonymous memory of each mapping then.
    mappings: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def look(self, now: float) -> None:
        """Read /proc, where it still lives."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            resident, anonymous = (
                int(status.split(f"{word}:")[1].split()[0]) for word in ("VmRSS", "RssAnon")
            )
        except (OSError, IndexError):
            return
        self.seconds.append(now)
        self.resident_kib.append(resident)
        self.anonymous_kib.append(anonymous)
        self.cpu_s.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    def look_closer(self, now: float) -> None:
        """What its memory is: a few ms, so seldom."""
        found: dict[str, int] = {}
        name = ""
        try:
            lines = Path(f"/proc/{self.pid}/smaps").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            word, _, rest = line.partition(" ")
            if not word.endswith(":"):
                name = _mapping(word, rest)
            elif word == "Anonymous:" and (kib := int(rest.split()[0])):
                found[name] = found.get(name, 0) + kib
        self.mappings.append((now, found))

    def slope(self, values: list[int], settled_s: float) -> float:
        """MiB a minute, by regression; NaN where there is too little."""
        return slope(np.array(self.seconds), np.array(values), settled_s)

    def kinds(self, settled_s: float) -> dict[str, float]:
        """MiB a minute of each kind of mapping."""
        at = np.array([now for now, _ in self.mappings])
        words = sorted({name.split()[0] for _, found in self.mappings for name in found})
        out = {}
        for word in words:
            kib = [sum(n for name, n in found.items() if name.split()[0] == word)
                   for _, found in self.mappings]  # fmt: skip
            out[word] = round(slope(at, np.array(kib), settled_s), 3)
        return {word: each for word, each in out.items() if each == each}

    def grown(self, settled_s: float) -> list[str]:
        """The mappings that grew most."""
        late = [found for now, found in self.mappings if now >= settled_s]
        if len(late) < 2:
            return []
        more = {name: n - late[0].get(name, 0) for name, n in late[-1].items()}
        most = sorted(more, key=lambda name: -more[name])[:4]
        return [f"{name}: {more[name] / 1024:+.1f} MiB" for name in most if more[name] > 100]


def slope(at: npt.NDArray[Any], kib: npt.NDArray[Any], settled_s: float) -> float:
    """MiB a minute of KiB at seconds, by regression; NaN where there is too little."""
    late = at >= settled_s
    if late.sum() < 5:
        return float("nan")
    return float(np.polyfit(at[late], kib[late], 1)[0] * 60 / 1024)


def _mapping(addresses: str, rest: str) -> str:
    """Kind and place of a mapping by its line in smaps."""
    begin, end = (int(part, 16) for part in addresses.split("-"))
    path = rest.split(maxsplit=4)[4:] or [""]
    if path[0].startswith("["):
        return path[0].strip("[] ")
    if path[0]:
        return f"file {path[0].rpartition('/')[2]}"
    # Of threads: as glibc makes them. All else is large, or has an allocator of its own.
    arena = begin % ARENA_BYTES == 0 and end - begin <= ARENA_BYTES
    return f"{'arena' if arena else 'mapped'} {begin:x}"


class Watch(threading.Thread):
    """Looks at both processes each second, and now and then at the daemon's page."""

    def __init__(self, processes: list[Process], page: str) -> None:
        super().__init__(daemon=True)
        self._processes, self._page, self._done = processes, page, threading.Event()
        self.began = time.monotonic()
        self.families: set[str] = set()
        self.page_text = ""
        #: Second, and windows, detaches and records of the agent by then.
        self.marks: list[tuple[float, float, float, float]] = []
        self.start()

    def run(self) -> None:
        """Look."""
        second = 0
        while not self._done.wait(max(0.0, self.began + second - time.monotonic())):
            for process in self._processes:
                process.look(time.monotonic() - self.began)
                if second % CLOSER_S == 0:
                    process.look_closer(time.monotonic() - self.began)
            if second % 5 == 0:
                self.read_page()
            if second % CLOSER_S == 0:
                windows, detaches, records = (
                    self.value(f"spanlite_agent_{what}_total")
                    for what in ("windows", "detaches", "records")
                )
                self.marks.append((time.monotonic() - self.began, windows, detaches, records))
            second += 1

    def read_page(self) -> None:
        """Keep what is on the page; which series have ever been there."""
        try:
            with urllib.request.urlopen(self._page, timeout=2) as page:
                self.page_text = page.read().decode()
        except OSError:
            return
        self.families |= set(re.findall(r"^(\w+)[ {]", self.page_text, re.M))

    def value(self, name: str) -> float:
        """A series of the last page; NaN where there is none."""
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.page_text, re.M)
        return float(found[1]) if found else float("nan")

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self.join()


def note(text: str) -> None:
    """Say on stderr how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def start_daemon(folder: Path, stand_in: bool) -> tuple[subprocess.Popen[str], str, list[str]]:
    """The real command; its metrics page, and what it says."""
    more = ["--no-nvml"] if stand_in else ["--pm-sampling"]
    command = [*SPANLITE, "collect", "--agent-dir", str(folder / "rings"), "--bootstrap", NO_BROKER,
               "--spool", str(folder / "spool"), "--spool-bytes", "32GiB", "--otlp-port", "0",
               "--metrics-port", "0", *more]  # fmt: skip
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            said.append(line.rstrip())
            print(line, end="", file=sys.stderr, flush=True)
            if "taking spans on" in line and "ring" in line:
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    ready.wait(60)
    page = next((m[1] for line in said if (m := re.search(r"metrics on (\S+)", line))), "")
    if not page:
        raise RuntimeError(f"the daemon did not start: {said}")
    return daemon, page, said


def start_server(folder: Path, seconds: float, stand_in: bool) -> subprocess.Popen[bytes]:
    """The decoding process, with two variables set."""
    environment = os.environ | {
        "CUDA_INJECTION64_PATH": str(LIBRARY),
        "NVTX_INJECTION64_PATH": str(LIBRARY),
        "SPANLITE_AGENT_DIR": str(folder / "rings"),
        "SPANLITE_AGENT_RING_BYTES": str(RING_BYTES),
        "OTEL_SERVICE_NAME": "soak",
    }
    flags = []
    if seconds < 100:  # as in a longer run, but sooner
        environment["SPANLITE_AGENT_WINDOW_SECONDS"] = "1"
    if stand_in:
        environment["LD_LIBRARY_PATH"] = str(STAND_IN)
        flags = ["--stand-in"]
    command = [sys.executable, "-m", "bench._soak_worker", str(folder), str(seconds), *flags]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def capture(folder: Path, *words: str) -> int:
    """`spanlite capture`, as an operator types it."""
    command = [*SPANLITE, "capture", "--agent-dir", str(folder / "rings"), "--all", *words]
    return subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
