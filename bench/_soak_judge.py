"""What the spans of a soak say: read from the files that the daemon left, by several processes."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.codec import BatchView
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.pm import METRICS

U64 = npt.NDArray[np.uint64]
#: What a kernel has whose layer and stage are not known.
UNKNOWN = "(unknown)"
#: A step that takes so long only waits.
IDLE_STEP_NS = 50_000_000


@dataclass
class Window:
    """A capture window, as its batches say."""

    reason: str = ""
    level: str = ""
    steps: int = 0
    steps_seen: int = 0
    cost_ppm: int = 0
    first_step_ns: int = 1 << 62


@dataclass
class Findings:
    """Sums over batches; two add up."""

    spans: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    #: (producer, epoch, bucket) -> [(seq, spans before, spans)]
    numbers: dict[tuple[Any, ...], list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: level -> stage -> ns of kernels, each times its weight
    stage_ns: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: level -> kernel's name -> the same
    name_ns: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    windows: dict[int, Window] = field(default_factory=dict)
    #: Of parts of steps: trace, kernels and copies.
    kernels: list[tuple[U64, npt.NDArray[np.int64]]] = field(default_factory=list)
    #: Trace -> the kernels of its part in a window, by name.
    names: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: Of steps: trace, start, number, the window that covers it or 0, has figures of counters.
    steps: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    pm: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: GPU activity during steps that only waited.
    idle_active: list[float] = field(default_factory=list)
    flags: Counter[str] = field(default_factory=Counter)
    payload_bytes: int = 0

    def add(self, other: Findings) -> None:
        """Take in what another process found."""
        self.spans += other.spans
        self.dropped += other.dropped
        self.flags += other.flags
        self.payload_bytes += other.payload_bytes
        self.kernels += other.kernels
        self.steps += other.steps
        self.idle_active += other.idle_active
        for trace, kernels in other.names.items():
            self.names[trace] += kernels
        for key, rows in other.numbers.items():
            self.numbers[key] += rows
        for level, stages in other.stage_ns.items():
            self.stage_ns[level] += stages
        for level, names in other.name_ns.items():
            self.name_ns[level] += names
        for metric, values in other.pm.items():
            self.pm[metric] += values
        for number, window in other.windows.items():
            mine = self.windows.setdefault(number, window)
            mine.first_step_ns = min(mine.first_step_ns, window.first_step_ns)
            for name in ("reason", "level", "steps", "steps_seen", "cost_ppm"):
                setattr(mine, name, getattr(mine, name) or getattr(window, name))

    def take(self, payload: bytes) -> None:
        """One message."""
        view = BatchView(payload)
        header = view.header
        self.payload_bytes += len(payload)
        key = (header.producer, header.epoch, header.bucket)
        self.numbers[key].append((header.seq, header.spans_before, header.span_count))
        for drop in header.drops:
            self.dropped[drop.reason] += drop.spans
        if not view.count:
            return
        kind = view.column("kind")
        for number, count in zip(*np.unique(kind, return_counts=True), strict=True):
            self.spans[SpanKind(int(number)).name.lower()] += int(count)
        flags = view.column("flags")
        for flag in SpanFlag:
            if count := int((flags & np.uint32(flag) != 0).sum()):
                self.flags[str(flag.name).lower()] += count
        self._window(view.resource)
        self._work(view, np.isin(kind, (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)))
        self._kernels(view, kind == SpanKind.KERNEL)
        self._steps(view, kind == SpanKind.STEP)

    def _window(self, resource: Mapping[str, Any]) -> None:
        number = resource.get("spanlite.capture.window")
        if number is None:
            return
        said = self.windows.setdefault(int(number), Window())
        said.reason = resource.get("spanlite.capture.reason", said.reason)
        said.level = resource.get("spanlite.capture.level", said.level)
        said.steps = int(resource.get("spanlite.capture.steps", said.steps))
        said.steps_seen = int(resource.get("spanlite.capture.steps_seen", said.steps_seen))
        said.cost_ppm = int(resource.get("spanlite.capture.cost_ppm", said.cost_ppm))

    def _work(self, view: BatchView, work: npt.NDArray[np.bool_]) -> None:
        """Count a step's kernels and copies: a copy in a graph is recorded as one or the other."""
        if not work.any():
            return
        traces, inverse = np.unique(view.trace_index[np.flatnonzero(work)], return_inverse=True)
        counts = np.bincount(inverse.ravel(), minlength=len(traces))
        self.kernels.append((view.trace_low[traces.astype(np.int64)], counts.astype(np.int64)))

    def _kernels(self, view: BatchView, kernel: npt.NDArray[np.bool_]) -> None:
        if not kernel.any():
            return
        at = np.flatnonzero(kernel)
        resource = view.resource
        level, reason = (resource.get(f"spanlite.capture.{w}", "") for w in ("level", "reason"))
        whole = view.column("flags")[at] & np.uint32(SpanFlag.PARTIAL) == 0
        at = at[whole]
        if level == "windows":
            self._names(view, at)
        if reason == "learn" or not len(at):
            return
        weight = float(resource.get("spanlite.capture.weight", 1.0))
        weighted, strings = view.column("duration_ns")[at] * weight, view.strings
        for code, ns in _sums(view.column("attributes")[at], weighted):
            said = json.loads(strings[code - 1].as_py()) if code else {}
            stage = UNKNOWN if said.get("stage.unknown") else said.get("stage", "")
            self.stage_ns[level][stage] += ns  # type: ignore[assignment]
        for code, ns in _sums(view.column("name")[at], weighted):
            self.name_ns[level][strings[code].as_py()] += ns  # type: ignore[assignment]

    def _names(self, view: BatchView, at: npt.NDArray[np.int64]) -> None:
        trace, name = view.trace_low[view.trace_index[at].astype(np.int64)], view.column("name")[at]
        pairs, counts = np.unique(np.stack([trace, name.astype(np.uint64)]), axis=1,
                                  return_counts=True)  # fmt: skip
        for low, code, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self.names[low][view.strings[code].as_py()] += count

    def _steps(self, view: BatchView, step: npt.NDArray[np.bool_]) -> None:
        at = np.flatnonzero(step)
        low, start = view.column("trace_id_low"), view.column("start_ns")
        duration = view.column("duration_ns")
        attributes, strings = view.column("attributes"), view.strings
        for row in at.tolist():
            code = int(attributes[row])
            said = json.loads(strings[code - 1].as_py()) if code else {}
            figures = "gpu.active_pct" in said
            for name in METRICS:
                if name in said and len(self.pm[name]) < 20_000:
                    self.pm[name].append(said[name])
            if figures and duration[row] >= IDLE_STEP_NS:
                self.idle_active.append(said["gpu.active_pct"])
            covered = int(said["capture.window"]) if said.get("capture.covered") else 0
            self.steps.append(
                (int(low[row]), int(start[row]), int(said.get("step", -1)), covered, figures)
            )
            if covered:
                window = self.windows.setdefault(covered, Window())
                window.first_step_ns = min(window.first_step_ns, int(start[row]))


def _sums(codes: npt.NDArray[Any], ns: npt.NDArray[np.float64]) -> list[tuple[int, float]]:
    """(code, sum of its ns), each code once."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    totals = np.bincount(inverse.ravel(), ns)
    return list(zip(distinct.tolist(), totals.tolist(), strict=True))


def messages_of(path: Path) -> Iterator[bytes]:
    """The batches in a segment of a spool or in a file of delimited batches."""
    from spanlite_collectors.delivery import spool
    from spanlite_collectors.importers._delimited import read_messages

    if path.suffix != spool.SUFFIX:
        yield from read_messages(path)
        return
    segment = spool._Segment(path)
    for offset, size, whole in spool._frames(path.read_bytes()):
        record = spool._read(spool.Entry(segment, offset, size)) if whole else None
        if record is None:
            raise ValueError(f"{path}: torn at {offset}")
        yield record


def findings_of(path: Path) -> Findings:
    """What one file says."""
    found = Findings()
    for payload in messages_of(path):
        found.take(payload)
    return found


class Judge:
    """Reads the files of a spool while it grows, by processes that give way to all others."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder, self._taken, self._lock = folder, set[Path](), threading.Lock()
        # Not forked: this process has had threads.
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"), os.nice, (19,))
        self._found: list[Future[Findings]] = []
        self.bytes = 0

    @property
    def files(self) -> int:
        """How many were taken so far."""
        return len(self._taken)

    def look(self, all_of_them: bool = False) -> None:
        """Take the files that are complete: in each folder all but the newest."""
        with self._lock:
            for folder in {path.parent for path in self._folder.rglob("*.spool")}:
                paths = sorted(folder.glob("*.spool"))
                for path in paths if all_of_them else paths[:-1]:
                    if path not in self._taken:
                        self._taken.add(path)
                        self.bytes += path.stat().st_size
                        self._found.append(self._pool.submit(findings_of, path))

    def end(self) -> Findings:
        """What all files say. Nobody writes to them any more."""
        self.look(all_of_them=True)
        total = Findings()
        with self._pool:
            for found in self._found:
                total.add(found.result())
        return total


def gaps(found: Findings) -> int:
    """Spans that the batches' own numbers say are missing, and batches out of order or twice."""
    wrong = 0
    for rows in found.numbers.values():
        before = 0
        for place, (seq, spans_before, spans) in enumerate(sorted(rows)):
            wrong += abs(spans_before - before) + (seq != place)
            before += spans
    return wrong


def kernels_by_step(found: Findings) -> dict[int, int]:
    """Trace of a step -> its kernels."""
    if not found.kernels:
        return {}
    traces = np.concatenate([part[0] for part in found.kernels])
    counts = np.concatenate([part[1] for part in found.kernels])
    distinct, inverse = np.unique(traces, return_inverse=True)
    sums = np.bincount(inverse.ravel(), counts).astype(np.int64)
    return dict(zip(distinct.tolist(), sums.tolist(), strict=True))


def shares(stage_ns: Mapping[str, float]) -> dict[str, float]:
    """Each stage's share of the time."""
    total = sum(stage_ns.values())
    return {stage: ns / total for stage, ns in stage_ns.items()} if total else {}


def by_leaf(stage_ns: Mapping[str, float]) -> Counter[str]:
    """The layers of each stage added up: `layer:3/QKV` is QKV."""
    out: Counter[str] = Counter()
    for stage, ns in stage_ns.items():
        out[stage.rpartition("/")[2]] += ns  # type: ignore[assignment]
    return out


def share_errors(
    estimated: Mapping[str, float], true: Mapping[str, float], least: float = 0.0
) -> dict[str, float]:
    """Per cent of each stage's true share that the estimate is off; of shares from `least` on."""
    told, known = shares(estimated), shares(true)
    return {
        stage: abs(told.get(stage, 0.0) / share - 1) * 100
        for stage, share in known.items()
        if share >= least
    }
