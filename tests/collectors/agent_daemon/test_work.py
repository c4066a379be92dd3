"""What each step of a window started on the GPU, and how long that ran."""

from __future__ import annotations

import numpy as np
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.layout import RECORDS, RecordType
from spanlite_collectors.agent.rows import DEVICE, HOST, empty
from spanlite_collectors.agent.work import work_of_steps

#: Thread, start and end in ns of three steps; two threads have one at the same time.
STEPS = ((1, 1000, 2000), (2, 1000, 2000), (1, 2100, 2400))


def steps() -> np.ndarray:
    records = np.zeros(len(STEPS), RECORDS[RecordType.STEP])
    for name, column in zip(("thread_id", "start_ns", "end_ns"), zip(*STEPS, strict=True),
                            strict=True):  # fmt: skip
        records[name] = column
    return records


def calls(*rows: tuple[int, int, int]) -> np.ndarray:
    """Of (thread, start, correlation id)."""
    out = empty(len(rows), HOST)
    out["kind"], out["window"] = SpanKind.RUNTIME_CALL, 3
    for name, column in zip(("thread", "start", "correlation"), zip(*rows, strict=True),
                            strict=True):  # fmt: skip
        out[name] = column
    return out


def device(kind: SpanKind, *rows: tuple[int, int], window: int = 3) -> np.ndarray:
    """Of (correlation id, ns)."""
    out = empty(len(rows), DEVICE)
    out["kind"], out["window"] = kind, window
    out["correlation"], out["duration"] = zip(*rows, strict=True)
    return out


def work(host: np.ndarray, *rows: np.ndarray) -> list[list[int]]:
    return work_of_steps(3, steps(), host, rows).tolist()


def test_work_belongs_to_the_step_of_the_calls_thread():
    host = calls((1, 1100, 10), (2, 1100, 11), (1, 2200, 12), (1, 2050, 13), (1, 1500, 14))
    kernels = device(SpanKind.KERNEL, (10, 5), (10, 6), (11, 7), (12, 8), (13, 100), (99, 100))
    copies = device(SpanKind.MEMCPY, (14, 2))
    assert work(host, kernels, copies) == [[2, 13], [1, 7], [1, 8]]


def test_waits_and_other_windows_are_left_out():
    host = calls((1, 1100, 10), (2, 1100, 11))
    wait = device(SpanKind.SYNC, (10, 1000))
    other = device(SpanKind.KERNEL, (11, 1000), window=4)
    assert work(host, wait, other) == [[0, 0]] * 3


def test_a_runtime_call_and_the_drivers_in_it_count_once():
    host = calls((1, 1100, 10), (1, 1101, 10))
    host["kind"][1] = SpanKind.DRIVER_CALL
    assert work(host, device(SpanKind.KERNEL, (10, 5)))[0] == [1, 5]


def test_without_calls_there_is_no_work():
    assert work(calls((3, 1100, 10)), device(SpanKind.KERNEL, (10, 5))) == [[0, 0]] * 3
