"""Recordings of two streams and a host thread, and what replays of them observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite.archive import schema
from spanlite_replay.fidelity.spans import Spans
from spanlite_replay.targets.base import OBSERVED_SCHEMA

#: 2026-12-01T07:00:00Z
HOUR = 1_796_108_400_000_000_000
#: What a span of an archive has where a test does not say.
_NONE: dict[str, Any] = {
    "kind": "kernel",
    "name": "k",
    "status": "unset",
    "service": "s",
    "host": "h",
    "process_id": 1,
    "device": 0,
    "context": 1,
    "flags": 0,
    "resource": "{}",
    "sampling_weight": 1.0,
    "clock_offset_ns": 0,
    "clock_uncertainty_ns": 0,
}


def spans_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of the archive's `spans`, with defaults."""
    full = [_NONE | row for row in rows]
    columns = [pa.array([row.get(item.name) for row in full], item.type) for item in schema.SPANS]
    return pa.Table.from_arrays(columns, schema=schema.SPANS)


def observed_table(recorded: pa.Table, start: Any = 0, longer: Any = 0) -> pa.Table:
    """A replay in which each span started `start` ns late and took `longer` ns more."""
    spans = Spans.of(recorded)
    begin = spans.start_ns + start
    columns = [
        spans.trace_low,
        spans.trace_high,
        spans.span_id,
        spans.start_ns,
        spans.end_ns,
        begin,
        begin + spans.duration_ns + longer,
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=OBSERVED_SCHEMA)


def two_streams(count: int) -> pa.Table:
    """`count` kernels of 8 us, one each 10 us, on streams 7 and 8 in turn; each with its call."""
    rows = []
    for number in range(count):
        begin = HOUR + number * 10_000
        trace = f"{1 + number // 10:032x}"
        call = 2 * number + 1
        rows.append(
            {
                "trace_id": trace,
                "span_id": call,
                "start_ns": begin - 5_000,
                "duration_ns": 2_000,
                "kind": "runtime_call",
                "name": "cudaLaunchKernel",
                "device": None,
                "context": None,
                "thread_id": 5,
            }
        )
        rows.append(
            {
                "trace_id": trace,
                "span_id": call + 1,
                "parent_span_id": call,
                "start_ns": begin,
                "duration_ns": 8_000 if number % 2 else 12_000,
                "stream": 7 + number % 2,
                "name": f"kernel_{number % 3}",
                "correlation_id": number + 1,
            }
        )
    return spans_table(rows)


@pytest.fixture
def table() -> Callable[[list[dict[str, Any]]], pa.Table]:
    return spans_table


@pytest.fixture
def observe() -> Callable[..., pa.Table]:
    return observed_table


@pytest.fixture
def recorded() -> pa.Table:
    return two_streams(100)


@pytest.fixture
def kernel_rows(recorded: pa.Table) -> np.ndarray:
    return np.flatnonzero(Spans.of(recorded).on_device)
