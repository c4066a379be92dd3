"""Synthetic recordings: a small model of a host thread that launches on streams.

None of them was recorded on a GPU: times follow from the rules in `Machine`, so that what the
analysis must find is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from spanlite.archive import schema
from spanlite_replay.recording import Recording

#: 2026-12-01T07:00:00Z
HOUR = 1_796_108_400_000_000_000
US = 1_000
_NONE: dict[str, Any] = {
    "status": "unset",
    "service": "s",
    "host": "h",
    "process_id": 1,
    "flags": 0,
    "resource": json.dumps({"gpu.name": "NVIDIA H200"}),
    "sampling_weight": 1.0,
    "clock_offset_ns": 0,
    "clock_uncertainty_ns": 0,
}


def spans_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of the archive's `spans`, with defaults."""
    full = [_NONE | row for row in rows]
    columns = [pa.array([row.get(item.name) for row in full], item.type) for item in schema.SPANS]
    return pa.Table.from_arrays(columns, schema=schema.SPANS)


@dataclass
class Machine:
    """One host thread and one GPU. A call takes 4 us; an idle stream starts 6 us after the
    call began, a busy one 0.5 us after the kernel before; waiting costs 3 us more."""

    now: int = HOUR
    process: int = 1
    free: dict[int, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    step: tuple[str, int] | None = None
    request: tuple[str, int] | None = None

    def _add(self, kind: str, name: str, start: int, end: int, **more: Any) -> int:
        span = len(self.rows) + 1
        trace = self.step[0] if self.step else f"{10**6 + span:032x}"
        row = {"trace_id": trace, "span_id": span, "kind": kind, "name": name}
        row |= {"start_ns": start, "duration_ns": end - start, "process_id": self.process}
        self.rows.append(row | more)
        return span

    def _call(self, name: str, took: int) -> tuple[int, int]:
        parent = self.step[1] if self.step else None
        start, self.now = self.now, self.now + took
        span = self._add("runtime_call", name, start, self.now, thread_id=7, parent_span_id=parent)
        return span, start

    def begin_step(self, name: str) -> None:
        number = len(self.rows) + 1
        self.step = (f"{number:032x}", number)
        links = (
            [{"trace_id": self.request[0], "span_id": self.request[1]}] if self.request else None
        )
        self._add("step", name, self.now, self.now, thread_id=7, links=links)

    def end_step(self) -> None:
        assert self.step is not None
        row = self.rows[self.step[1] - 1]
        row["duration_ns"] = self.now - row["start_ns"]
        self.step = None

    def begin_request(self, name: str) -> None:
        number = len(self.rows) + 1
        self.request = (f"{number:032x}", number)
        self._add("request", name, self.now, self.now, thread_id=7)
        self.rows[-1]["trace_id"] = self.request[0]

    def end_request(self) -> None:
        assert self.request is not None
        row = self.rows[self.request[1] - 1]
        row["duration_ns"] = self.now - row["start_ns"]
        self.request = None

    def host(self, took: int) -> None:
        self.now += took

    def launch(self, name: str, took: int, stream: int = 1, after: int = 0, **more: Any) -> int:
        """Returns when it will have ended. `after`: another stream's work it waits for."""
        call, issued = self._call("cudaLaunchKernel", 4 * US)
        ready = max(self.free.get(stream, 0) + US // 2, issued + 6 * US, after)
        launch = {"grid_x": 132, "grid_y": 1, "grid_z": 1, "block_x": 128} | more
        return self._run("kernel", name, call, ready, took, stream, launch)

    def copy(self, took: int, size: int, stream: int = 1) -> int:
        call, issued = self._call("cudaMemcpyAsync", 4 * US)
        ready = max(self.free.get(stream, 0) + US // 2, issued + 6 * US)
        facts = {"bytes": size, "copy_kind": "htod"}
        return self._run("memcpy", "Memcpy HtoD", call, ready, took, stream, facts)

    def _run(
        self, kind: str, name: str, call: int, ready: int, took: int, stream: int, more: Any
    ) -> int:
        self.free[stream] = ready + took
        where = {"device": 0, "context": 1, "stream": stream, "correlation_id": call}
        self._add(kind, name, ready, ready + took, parent_span_id=call, **where, **more)
        return ready + took

    def sync(self) -> None:
        done = max([self.now + US, *(end + 3 * US for end in self.free.values())])
        self._call("cudaDeviceSynchronize", done - self.now)

    def recording(self) -> Recording:
        return Recording.from_table(spans_table(self.rows))


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def another() -> Callable[[], Machine]:
    return Machine


@pytest.fixture
def recording_of() -> Callable[[list[dict[str, Any]]], Recording]:
    return lambda rows: Recording.from_table(spans_table(rows))
