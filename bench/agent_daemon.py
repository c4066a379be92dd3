"""How fast the daemon turns a ring's records into spans: one core, nothing delivered.

The ring holds what an agent writes for a decode loop: per step 100 kernels, their launch
calls, 20 ranges, and the step itself.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from spanlite_collectors.agent.convert import Converter
from spanlite_collectors.agent.layout import RECORDS, RecordType
from spanlite_collectors.agent.process import ProcessSpans
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.sinks import MemorySink

from bench._report import emit

_KERNELS, _RANGES = 100, 20
_STEP_NS = 1_000_000
_TEXTS = ["step:", "QKV", "attention", "out_proj", "FFN", *[f"kernel_{i}" for i in range(30)]]


def _strings() -> bytes:
    out = b""
    for number, text in enumerate(_TEXTS, 1):
        data = text.encode()
        size = (16 + len(data) + 7) // 8 * 8
        head = np.array([size], "<u4").tobytes() + np.array([RecordType.STRING, 0], "<u2").tobytes()
        out += (head + np.array([number, len(data)], "<u4").tobytes() + data).ljust(size, b"\0")
        assert len(out) % 8 == 0
    return out


def _make(kind: RecordType, count: int) -> Records:
    return np.zeros(count, RECORDS[kind])


def records_of(first: int, steps: int) -> dict[RecordType, Records]:
    """What an agent writes in so many steps, a step each ms."""
    begin = 1_796_143_900_000_000_000 + (first + np.arange(steps, dtype=np.uint64)) * _STEP_NS
    number = np.arange(steps * _KERNELS, dtype=np.uint64)
    launch = np.repeat(begin, _KERNELS) + number % _KERNELS * np.uint64(9_000) + np.uint64(2_000)
    calls = _make(RecordType.API, len(number))
    calls["start_ns"], calls["end_ns"] = launch, launch + np.uint64(4_000)
    calls["thread_id"], calls["call"], calls["domain"] = 7, 211, 1
    calls["correlation_id"] = first * _KERNELS + number + 1
    kernels = _make(RecordType.KERNEL, len(number))
    kernels["start_ns"], kernels["end_ns"] = launch + np.uint64(6_000), launch + np.uint64(13_000)
    kernels["correlation_id"], kernels["stream"] = calls["correlation_id"], 7
    kernels["name"], kernels["grid_x"], kernels["block_x"] = 6 + number % 30, 128, 256
    part = np.arange(steps * _RANGES, dtype=np.uint64)
    ranges = _make(RecordType.RANGE, len(part))
    ranges["start_ns"] = np.repeat(begin, _RANGES) + part % _RANGES * np.uint64(45_000) + 1_000
    ranges["end_ns"] = ranges["start_ns"] + np.uint64(44_000)
    ranges["thread_id"], ranges["name"] = 7, 2 + part % 4
    ranges["id"] = (first + 1) * 1_000 + part
    step = _make(RecordType.STEP, steps)
    step["start_ns"], step["end_ns"] = begin, begin + np.uint64(950_000)
    step["number"], step["thread_id"], step["name"] = first + np.arange(steps), 7, 1
    whole = _make(RecordType.RANGE, steps)
    whole["start_ns"], whole["end_ns"] = step["start_ns"], step["end_ns"]
    whole["thread_id"], whole["name"] = 7, 1
    whole["id"] = (1 << 40) + first + np.arange(steps)
    return {
        RecordType.API: calls,
        RecordType.KERNEL: kernels,
        RecordType.RANGE: np.concatenate([ranges, whole]),
        RecordType.STEP: step,
    }


def main() -> None:
    """Convert and join some seconds of it, a flush each second."""
    seconds = 3 if "--quick" in sys.argv else 20
    _once(MemorySink(), 1)  # pyarrow loads pandas at its first conversion
    sink = MemorySink()
    busy, count = _once(sink, seconds)
    assert sink.span_count == count, (sink.span_count, count)
    emit("agent.daemon_spans_per_second", round(count / busy), "spans/s of one core")
    # 100,000 kernels a second is a launch-bound server.
    emit("agent.daemon_cores_at_100k_kernels", round(busy / seconds, 3), "cores")


def _once(sink: MemorySink, seconds: int) -> tuple[float, int]:
    """(CPU seconds, spans that went in)."""
    steps = 1000
    spans = ProcessSpans(sink, {"service.name": "bench"}, "bench")
    converter = Converter(spans.texts)
    converter.convert({}, _strings())
    made = [records_of(second * steps, steps) for second in range(seconds)]
    busy = 0.0
    for second, records in enumerate(made):
        began = time.process_time()
        spans.take(converter.convert(records, b""))
        spans.flush(1_796_143_900_000_000_000 + (second + 1) * 1_000_000_000)
        busy += time.process_time() - began
    began = time.process_time()
    spans.flush(0, final=True)
    busy += time.process_time() - began
    count = sum(len(array) for records in made for kind, array in records.items() if kind != 12)
    return busy, count


if __name__ == "__main__":
    main()
