"""Windows opened and closed as fast as they go, in each way, under many kinds of load.

Processes run side by side, each with an agent and a ring of its own: models whose states are
compared with those of a process without an agent (bench/_agent_stress_worker.py), and plain CUDA
programs that compare every bit themselves (bench/h200/agent_stress.cpp). A process that ends badly
leaves a trace of all its threads (bench/h200/crash_trace.cpp), and another takes its place.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spanlite_collectors.agent.layout import Level

from bench._agent_copies import lacking_nodes
from bench._agent_device_memory import DeviceMemory
from bench._agent_plain import machine_cupti
from bench._agent_rings import Drained, RingDrain, account
from bench._agent_turns import LIBRARY, ROOT, STAND_IN
from bench._agent_watch import Watch
from bench._report import emit

#: A process that has not ended so long after its time is hanging.
PATIENCE_S = 12.0
TRACE = ROOT / "bench" / "h200" / "crash_trace.cpp"
ENDLESS_S = 1e9
#: Of each process the first kernels, so many, and the last are looked at: whether whole steps have
#: all of theirs.
MOST_KERNELS = 150_000
#: With less time left no process that runs models is started.
MODEL_START_S = 16.0
#: Windows as close as they go: one step each, and no budget of time or memory.
SETTINGS = {"WINDOW_SECONDS": "0", "WINDOW_STEPS": "1", "BUDGET_PCT": "100000", "HOLD_MS": "200",
            "DETACH_MIB_PER_DAY": "0"}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How windows are closed, and what runs meanwhile."""

    name: str
    detach: str
    #: Loads joined by + have a thread each; of a plain program the number of threads.
    run: str
    flags: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    plain: bool = False
    #: How long a process lives.
    life_s: float = ENDLESS_S
    #: Without an agent: what crashes there is not the agent's doing.
    bare: bool = False
    #: Set after the first window, as a daemon sets it.
    level: Level | None = None


#: Models: CUPTI stays while three threads launch; it is detached after each window, with the others
#: held, or in a process with one thread.
MODELS = (
    Way("never", "never", "stress_s4+stress_eager+stress_s8"),
    Way("held", "held", "stress_s4+stress_eager+stress_s8", ("--helper",)),
    Way("proven", "proven", "stress_s4"),
    Way("bare", "proven", "stress_s4+stress_eager+stress_s8", bare=True),
)
#: Plain programs, for the many windows that a rare fault needs.
PLAIN = (
    Way("never", "never", "3", plain=True),
    Way("never_short", "never", "3", plain=True, life_s=3),
    Way("never_late", "never", "3", settings=(("LEARN_SECONDS", "0"),), plain=True, life_s=5),
    Way("never_churn", "never", "3", ("churn",), plain=True),
    Way("never_crowd", "never", "12", plain=True),
    Way("held", "held", "3", plain=True),
    Way("proven", "proven", "1", plain=True),
    Way("bare", "never", "3", plain=True, life_s=3, bare=True),
    Way("continuous", "never", "3", settings=(("LEVEL", "continuous"),), plain=True, life_s=3),
)


@dataclass(frozen=True)
class Start:
    """What all processes of a run have in common."""

    program: Path | None
    stand_in: bool
    #: The library that says where a process crashed.
    trace: Path | None
    work: Path
    memory: DeviceMemory


@dataclass
class Tally:
    """What all processes of a way did."""

    way: Way
    windows: int = 0
    detaches: int = 0
    processes: int = 0
    rounds: int = 0
    steps: int = 0
    records: int = 0
    whole_steps: int = 0
    lacking: int = 0
    missing: int = 0
    kernels: int = 0
    #: Of them, those without times.
    untimed: int = 0
    #: GPU memory: by how much that of all processes grew, and in how many seconds of theirs.
    device_mib: int = 0
    device_s: float = 0.0
    drops: dict[str, int] = field(default_factory=dict)
    #: Of what lacks: nodes of graphs that ran as copies, which windows do not record.
    copies: int = 0
    lacking_names: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[int, int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: Loads and their states after a round, of all processes and of one without an agent.
    sums: set[tuple[int, str]] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    cupti_versions: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, mine: Drained, judged: bool) -> None:
        """A process has ended, and this is what its ring held."""
        parts = [mine, end] if (end := mine.end()) is not None else [mine]
        for part in parts:
            part.trim()
        found = [account(part) for part in parts if judged]
        nodes = lacking_nodes(mine) if found and found[0].lacking else None
        with self.lock:
            self.windows += mine.state.get("windows", 0)
            self.detaches += mine.state.get("detaches", 0)
            self.records += mine.state.get("records", 0)
            for reason, count in mine.drops.items():
                self.drops[reason] = self.drops.get(reason, 0) + count
            self.kernels += mine.seen.get("kernel", 0)
            self.untimed += mine.untimed
            self.cupti_versions.add(mine.cupti_version)
            for at, one in enumerate(found):
                self.whole_steps += one.steps
                self.lacking += one.lacking
                self.missing += max(0, one.missing - (nodes.copies if nodes and at == 0 else 0))
                self.examples += one.examples
            if nodes is not None:
                self.copies += nodes.copies
                for name, count in nodes.names.items():
                    self.lacking_names[name] = self.lacking_names.get(name, 0) + count

    def fail(self, text: str) -> None:
        """One more failure, said at once."""
        with self.lock:
            self.failures.append(text[:300])
        emit(f"agent.stress_failure.{_label(self.way)}", 1, "failures", 0, error=text[:4000],
             at=time.strftime("%T"))  # fmt: skip


def stress(stand_in: bool, windows: int, limit_s: float) -> None:
    """The models' ways, a process each."""
    run_ways(dict.fromkeys(MODELS, 1), limit_s, windows, stand_in=stand_in)


def run_ways(
    counts: dict[Way, int], limit_s: float, windows: int, program: Path | None = None,
    stand_in: bool = False,
) -> int:  # fmt: skip
    """So many processes of each way side by side for so long; how many failures there were.

    `windows`: the goal of each way. `program`: what build_agent_plain.sh made of agent_stress.cpp.
    """
    ends = time.monotonic() + limit_s
    tallies = [Tally(way) for way in counts]
    memory = DeviceMemory()
    with tempfile.TemporaryDirectory() as work, _trace_library(Path(work)) as trace:
        start = Start(program, stand_in, trace, Path(work), memory)
        slots = [
            threading.Thread(target=_slot, args=(tally, ends, start))
            for tally in tallies
            for _ in range(counts[tally.way])
        ]
        slots += [
            threading.Thread(target=_reference, args=(tally, stand_in))
            for tally in tallies
            if not tally.way.plain
        ]
        for slot in slots:
            slot.start()
        for slot in slots:
            slot.join()
    memory.stop()
    for tally in tallies:
        _report(tally, windows)
    return sum(len(tally.failures) for tally in tallies)


def _label(way: Way) -> str:
    return f"{'plain_' if way.plain else ''}{way.name}"


@contextmanager
def _trace_library(work: Path) -> Iterator[Path | None]:
    """What says where a process crashed; None where it cannot be built."""
    built = work / "crash_trace.so"
    command = ["g++", "-O1", "-shared", "-fPIC", "-o", str(built), str(TRACE)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no traces of crashes: {error}", file=sys.stderr)
        yield None
        return
    yield built


def _slot(tally: Tally, ends: float, start: Start) -> None:
    """One process after the other, until the time is over."""
    least = 1 if tally.way.plain or start.stand_in else MODEL_START_S
    while (left := ends - time.monotonic()) > least and len(tally.failures) < 8:
        try:
            _live(tally, min(left, tally.way.life_s), start)
        except Exception as error:  # the other processes are worth having
            tally.fail(f"{type(error).__name__}: {error}")
            time.sleep(1)


def _environment(way: Way, rings: str, stand_in: bool, trace: Path | None) -> dict[str, str]:
    own = SETTINGS | dict(way.settings) | {"DETACH": way.detach, "DIR": rings}
    if (cupti := machine_cupti()) is not None and way.plain:
        own["CUPTI"] = str(cupti)
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if not way.bare:
        environment |= {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "NVTX_INJECTION64_PATH": str(LIBRARY),
        }
        environment |= {f"SPANLITE_AGENT_{key}": value for key, value in own.items()}
    environment |= {"LD_PRELOAD": str(trace)} if trace is not None else {}
    environment |= {"LD_LIBRARY_PATH": str(STAND_IN)} if stand_in else {}
    return environment


def _command(way: Way, seconds: float, program: Path | None, stand_in: bool) -> list[str]:
    if way.plain:
        return [str(program), f"{seconds:.1f}", way.run, *way.flags]
    words = [way.run, f"{seconds:.1f}", *way.flags, *(["--stand-in"] if stand_in else [])]
    return [sys.executable, "-m", "bench._agent_stress_worker", *words]


def _reference(tally: Tally, stand_in: bool) -> None:
    """One round without an agent."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment |= {"LD_LIBRARY_PATH": str(STAND_IN)} if stand_in else {}
    done = subprocess.run(
        _command(tally.way, 0, None, stand_in), env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if not lines:
        tally.fail(f"no reference: {done.stderr[-2000:]}")
        return
    with tally.lock:
        tally.sums |= {(said["load"], said["sum"]) for said in map(json.loads, lines)}


def _live(tally: Tally, seconds: float, start: Start) -> None:
    """One process from its start to its end."""
    way = tally.way
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
        tempfile.TemporaryFile("w+", dir=start.work) as errors,
    ):
        drain = RingDrain(Path(rings), 0 if way.plain else MOST_KERNELS)
        process = subprocess.Popen(
            _command(way, seconds, start.program, start.stand_in), text=True, cwd=ROOT,
            stderr=errors, stdout=subprocess.PIPE,
            env=_environment(way, rings, start.stand_in, start.trace),
        )  # fmt: skip
        watch = Watch(process, time.monotonic() + seconds + PATIENCE_S)
        try:
            _read(tally, process, drain, watch)
        finally:
            watch.stop()
            drain.stop()
        errors.seek(0)
        said = errors.read()
        mine = drain.drained.get(process.pid)
    grown_mib, grown_s = start.memory.grown_mib(process.pid)
    with tally.lock:
        tally.processes += 1
        tally.device_mib += grown_mib
        tally.device_s += grown_s
        tally.said |= {x for x in said.splitlines() if x.startswith("spanlite agent")}
    if mine is not None:
        tally.take(mine, not way.plain)
    if process.returncode != 0:
        state = mine.state if mine is not None else {}
        number = _keep(tally, said)
        tally.fail(f"ended with {process.returncode}, {state}, trace {number}: {_shorten(said)}")
    elif mine is None and not way.bare:
        tally.fail(f"no ring: {said[-1000:]}")


def _keep(tally: Tally, said: str) -> str:
    """Put all it said into a file of $OUT."""
    folder = Path(os.environ.get("OUT", tempfile.gettempdir()))
    path = folder / f"stress_{_label(tally.way)}_{time.time_ns() % 10**10}.txt"
    path.write_text(said[:200_000])
    return path.name


def _shorten(said: str) -> str:
    """Where the thread that crashed was; else the last of what was said."""
    first = said.find("crash_trace: SIG")
    if first < 0:
        return said[-1500:]
    trace = said[first:].split("\ncrash_trace: another")[0]
    return re.sub(r"\S*/([^/\s]+)\(([^)]*)\)\[\w+\]", r"\1(\2)", trace)[:2500]


def _read(tally: Tally, process: subprocess.Popen[str], drain: RingDrain, watch: Watch) -> None:
    """What it says of each round, until its end."""
    level = tally.way.level
    assert process.stdout is not None
    for line in process.stdout:
        watch.hear()
        said = json.loads(line)
        with tally.lock:
            tally.steps += said["steps"]
            if "sum" in said:
                tally.sums.add((said["load"], said["sum"]))
                tally.rounds += 1
            else:
                tally.rounds += said["rounds"]
        ring = drain.ring_of(process.pid) if level is not None else None
        if ring is not None and int(ring.state["windows"][0]) > 0:
            ring.set_control("level", level)
    process.wait()


def _report(tally: Tally, windows: int) -> None:
    way, word = tally.way, _label(tally.way)
    if not way.plain and len(tally.sums) != way.run.count("+") + 1:
        tally.fail(f"the bits differ: {sorted(tally.sums)[:4]}")
    emit(f"agent.stress_windows.{word}", tally.windows, "windows", windows, run=way.run,
         detach=way.detach, detaches=tally.detaches, processes=tally.processes,
         rounds=tally.rounds, steps=tally.steps, records=tally.records, kernels=tally.kernels,
         untimed=tally.untimed, drops=tally.drops, device_mib=tally.device_mib,
         device_s=tally.device_s, cupti_versions=sorted(tally.cupti_versions),
         bits="all states of each round" if not way.plain else "the results of each round",
         said=sorted(tally.said)[:4])  # fmt: skip
    if not way.plain:
        emit(f"agent.stress_unaccounted.{word}", tally.missing, "records", 0,
             whole_steps=tally.whole_steps, lacking=tally.lacking, ran_as_copies=tally.copies,
             lacking_by_name=tally.lacking_names, examples=tally.examples[:8])  # fmt: skip
    emit(f"agent.stress_failures.{word}", len(tally.failures), "failures", 0,
         windows=tally.windows, failures=[text[:120] for text in tally.failures])  # fmt: skip
