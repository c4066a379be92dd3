"""What lies in a ring, as numpy dtypes: the twin of `collectors/agent/src/ring_layout.h`.

A test compares every size with the library's own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

LAYOUT_VERSION = 1
HEADER_BYTES = 4096
MAGIC = 0x31474E524C4E5053
#: Record types a drain makes room for; a little more than there are.
TYPES = 16


class Level(IntEnum):
    """How much an agent records."""

    OFF = 0
    RANGES = 1
    WINDOWS = 2
    CONTINUOUS = 3


class Detach(IntEnum):
    """When an agent detaches CUPTI after a window."""

    NEVER = 0
    WHEN_PROVEN = 1
    WHEN_HELD = 2


#: Why records were lost, by index in the header's `dropped`: words for the ledger.
DROP_REASONS = (
    "ring_full", "cupti_dropped", "agent_budget", "unknown_record", "torn_record", "ring_deleted",
)  # fmt: skip


class RecordType(IntEnum):
    """`spanlite::RecordType`."""

    STRING = 1
    CLOCK = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    API = 7
    GRAPH = 8
    OVERHEAD = 9
    RANGE = 10
    WINDOW = 11
    STEP = 12
    EXTERNAL = 13


class WindowReason(IntEnum):
    """Why a window was opened."""

    SCHEDULE = 0
    DEMAND = 1
    SLO = 2
    CONTINUOUS = 3
    LEARN = 4
    THROTTLE = 5
    QUEUE = 6


def _fields(words: str, kind: str) -> list[tuple[str, str]]:
    return [(word, kind) for word in words.split()]


def _record(*fields: tuple[str, str]) -> np.dtype[Any]:
    head = [("size_bytes", "u4"), ("type", "u2"), ("head_flags", "u2")]
    return np.dtype([*head, *fields], align=True)


_TIMES = _fields("start_ns end_ns", "u8")
KERNEL = _record(
    *_TIMES,
    ("graph_node_id", "u8"),
    *_fields("device context stream correlation_id graph_id name", "u4"),
    *_fields("grid_x grid_y grid_z block_x block_y block_z cluster_x cluster_y cluster_z", "u4"),
    *_fields("registers_per_thread static_shared_bytes dynamic_shared_bytes", "u4"),
    *_fields("executed_shared_bytes local_bytes_per_thread window launch_type", "u4"),
)
MEMORY = _record(
    *_TIMES,
    *_fields("bytes graph_node_id", "u8"),
    *_fields("device context stream correlation_id graph_id copy_kind window peer_device", "u4"),
)
#: The dtype of each record of fixed size.
RECORDS: dict[RecordType, np.dtype[Any]] = {
    RecordType.CLOCK: _record(
        *_fields("realtime_ns monotonic_ns monotonic_raw_ns cupti_ns uncertainty_ns", "u8")
    ),
    RecordType.KERNEL: KERNEL,
    RecordType.MEMCPY: MEMORY,
    RecordType.MEMSET: MEMORY,
    RecordType.SYNC: _record(
        *_TIMES, *_fields("kind context stream correlation_id event window", "u4")
    ),
    RecordType.API: _record(
        *_TIMES, *_fields("thread_id correlation_id call domain result window", "u4")
    ),
    RecordType.GRAPH: _record(
        *_TIMES, *_fields("device context stream correlation_id graph_id window", "u4")
    ),
    RecordType.OVERHEAD: _record(*_TIMES, *_fields("kind thread_id correlation_id window", "u4")),
    RecordType.RANGE: _record(
        *_TIMES,
        *_fields("id parent_id payload", "u8"),
        *_fields("thread_id name domain category payload_type depth", "u4"),
    ),
    RecordType.WINDOW: _record(
        *_fields("open_ns close_ns first_step steps steps_since_last cost_ppm", "u8"),
        *_fields("window reason level partial", "u4"),
    ),
    RecordType.STEP: _record(
        *_TIMES, ("number", "u8"), *_fields("thread_id name window covered", "u4")
    ),
    RecordType.EXTERNAL: _record(("external_id", "u8"), *_fields("correlation_id kind", "u4")),
}
#: Bit of `head_flags` in a kernel, copy or call whose start or end is 0.
ZERO_TIMESTAMP = 1
#: Bit of `head_flags` in a range of nvtxRangeStart and End: it need not nest.
START_END = 4
STRING_HEAD = _record(*_fields("id length", "u4"))

HEADER = np.dtype(
    [
        ("magic", "u8"),
        *_fields("layout_version header_bytes", "u4"),
        ("capacity_bytes", "u8"),
        *_fields("process_id cupti_version", "u4"),
        *_fields("process_start_ticks created_ns", "u8"),
        ("executable", "S256"),
        ("agent_version", "S32"),
    ],
    align=True,
)
#: Written by us, read by the agent. `step_slo_ns` in between keeps its alignment.
CONTROL = np.dtype(
    [
        *_fields("level capture_request capture_steps budget_ppm", "u4"),
        ("step_slo_ns", "u8"),
        *_fields("strings_epoch detach api_calls capture_reason", "u4"),
    ],
    align=True,
)
#: Written by the agent.
STATE = np.dtype(
    [
        *_fields("level attached window_open disabled", "u4"),
        *_fields("steps steps_covered windows cost_ppm records buffers", "u8"),
        *_fields("parse_ns attach_ns launch_threads", "u8"),
        ("reason", "S128"),
        *_fields("attached_cost_ppm detaches", "u8"),
        *_fields("hw_trace graph_trace", "u4"),
        ("window_cost_ns", "u8"),
        *_fields("window_spacing_ms window_steps", "u4"),
    ],
    align=True,
)
