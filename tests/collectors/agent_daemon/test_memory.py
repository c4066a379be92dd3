"""What the daemon keeps of a process stops growing, however long it runs: sizes, not bytes."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from spanlite_collectors.agent import convert, graphs, string_table, windows
from spanlite_collectors.agent.convert import Converter
from spanlite_collectors.agent.layout import RECORDS, RecordType, WindowReason
from spanlite_collectors.agent.metrics import CustomMetrics
from spanlite_collectors.agent.process import Patience, ProcessSpans
from spanlite_collectors.agent.rows import Rows
from spanlite_collectors.sinks import MemorySink

SECOND = 1_000_000_000
BEGIN = 1_796_143_900 * SECOND
STEPS = 40
KERNELS = 6
#: Each second is a life of its own: bounds are reached within this many.
SETTLED, END = 45, 90


class Agent:
    """What an agent writes in a second: steps of requests that come and go, on a new thread each
    second, a metric in each step, and a window with eager kernels and those of a new graph."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._next, self._range, self._call = 1, 1, 1
        self._raw = b""

    def text(self, text: str) -> int:
        if text not in self._texts:
            if len(self._texts) > 200:
                self._texts.clear()
                self._send(0, b"")
            self._texts[text] = self._next
            self._send(self._next, text.encode())
            self._next += 1
        return self._texts[text]

    def _send(self, number: int, data: bytes) -> None:
        size = (16 + len(data) + 7) // 8 * 8
        head = struct.pack("<IHHII", size, RecordType.STRING, 0, number, len(data))
        self._raw += (head + data).ljust(size, b"\0")

    def second(self, number: int) -> tuple[dict[RecordType, Rows], bytes]:
        thread, at = 1000 + number, BEGIN + number * SECOND
        start = at + np.arange(STEPS, dtype=np.int64) * (SECOND // STEPS)
        ids = np.arange(self._range, self._range + 3 * STEPS, dtype=np.uint64).reshape(3, STEPS)
        self._range += 3 * STEPS
        links = [f"{number:032x}-{1 + i // 8:016x}" for i in range(STEPS)]
        ours = self.text("spanlite")
        step = self._rows(
            RecordType.RANGE, STEPS, start_ns=start, end_ns=start + 20_000_000, id=ids[0],
            thread_id=thread, domain=ours, payload=ids[0], payload_type=1,
            name=[self.text(f"step:;links={link}") for link in links],
        )  # fmt: skip
        mark = self._rows(
            RecordType.RANGE, STEPS, start_ns=start + 10, end_ns=start + 10, id=ids[1],
            parent_id=np.where(np.arange(STEPS) % 4, ids[0], ids[1]),  # of some no range comes
            thread_id=thread, domain=ours, payload_type=2, payload=ids[1],
            name=self.text(f"metric:gauge:queue{{second={number}}}"),
        )  # fmt: skip
        stage = self._rows(
            RecordType.RANGE, STEPS, start_ns=start + 20, end_ns=start + 9_000_000, id=ids[2],
            parent_id=ids[0], thread_id=thread, domain=ours, name=self.text(f"layer:{number}"),
        )  # fmt: skip
        steps = self._rows(
            RecordType.STEP, STEPS, start_ns=start, end_ns=start + 20_000_000, number=ids[0],
            thread_id=thread, window=number, covered=1,
        )  # fmt: skip
        records = {RecordType.RANGE: np.concatenate([step, mark, stage]), RecordType.STEP: steps}
        records |= self._window(number, thread, start)
        raw, self._raw = self._raw, b""
        return records, raw

    def _window(self, number: int, thread: int, start: Any) -> dict[RecordType, Rows]:
        calls = STEPS * KERNELS
        at = np.repeat(start, KERNELS) + 100 + np.tile(np.arange(KERNELS), STEPS) * 1000
        numbers = np.arange(self._call, self._call + calls)
        self._call += calls
        call = self._rows(
            RecordType.API, calls, start_ns=at, end_ns=at + 500, thread_id=thread,
            correlation_id=numbers, call=211, domain=1, window=number,
        )  # fmt: skip
        in_graph = np.repeat(np.arange(STEPS) % 2, KERNELS)
        names = [self.text(f"kernel {number} {i}") for i in range(KERNELS)]
        kernel = self._rows(
            RecordType.KERNEL, calls, start_ns=at + 600, end_ns=at + 900, window=number,
            correlation_id=np.where(in_graph, np.repeat(numbers[::KERNELS], KERNELS), numbers),
            name=np.tile(names, STEPS), graph_id=in_graph * (1 + number),
            graph_node_id=np.tile(np.arange(1, 1 + KERNELS), STEPS), local_bytes_per_thread=number,
        )  # fmt: skip
        closed = self._rows(
            RecordType.WINDOW, 1, open_ns=int(start[0]) - 1, close_ns=int(at[-1]) + 1000,
            window=number, steps=STEPS, steps_since_last=STEPS, reason=WindowReason.SCHEDULE,
            level=2,
        )  # fmt: skip
        return {RecordType.API: call, RecordType.KERNEL: kernel, RecordType.WINDOW: closed}

    @staticmethod
    def _rows(kind: RecordType, count: int, **columns: Any) -> Rows:
        rows = np.zeros(count, RECORDS[kind])
        rows["size_bytes"], rows["type"] = rows.dtype.itemsize, kind
        for name, values in columns.items():
            rows[name] = values
        return rows


def held(thing: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, int]]:
    """(where, how many) of each list, dict, set, array and text that an object of ours holds."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return
    seen.add(id(thing))
    if isinstance(thing, str | bytes | np.ndarray):
        yield path, len(thing) if not isinstance(thing, np.ndarray) else thing.size
    elif isinstance(thing, dict):
        yield path, len(thing)
        for value in list(thing.values()):
            yield from held(value, f"{path}{{}}", seen)
    elif isinstance(thing, list | tuple | set | deque):
        yield path, len(thing)
        for value in list(thing):
            yield from held(value, f"{path}[]", seen)
    elif type(thing).__module__.startswith("spanlite"):
        names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
        for name in names:
            yield from held(getattr(thing, name, None), f"{path}.{name}", seen)


def sizes(*things: Any) -> dict[str, int]:
    """Where -> how many in all."""
    out: dict[str, int] = {}
    for thing in things:
        for path, count in held(thing, type(thing).__name__):
            out[path] = out.get(path, 0) + count
    return out


def test_tables_of_a_process_stop_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds that are reached soon; all else must be small by itself."""
    for module, name, bound in (
        (windows, "_KEPT", 8), (graphs, "_MAX_GRAPHS", 8), (graphs, "_MAX_EAGER", 8),
        (convert, "_MAX_OPEN_SAMPLES", 100), (string_table, "_MAX_OLD_TEXTS", 100),
        (string_table, "_MOMENT_BYTES", 1000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, bound)
    sink, agent, metrics = MemorySink(), Agent(), CustomMetrics()
    spans = ProcessSpans(sink, {}, "test", Patience(SECOND // 2, 3 * SECOND))
    spans.texts._least = spans.texts._keep = 500
    converter = Converter(spans.texts, lambda sample: metrics.take({}, sample))
    most: list[dict[str, int]] = [{}, {}]
    for number in range(1, END):
        records, raw = agent.second(number)
        spans.take(converter.convert(records, raw))
        spans.flush(BEGIN + (number + 1) * SECOND)
        late = most[number >= SETTLED]
        for path, count in sizes(spans, converter).items():
            late[path] = max(late.get(path, 0), count)
        sink.written.clear()
    early, late = most
    assert spans.written > END * STEPS * KERNELS
    # A few more are the digits of numbers that grow.
    grown = {
        path: (early.get(path, 0), n)
        for path, n in late.items()
        if n > 1.05 * early.get(path, 0) + 8
    }
    assert not grown
    known = {part for path in late for part in path.split(".")}
    assert {"_texts", "_calls", "_links", "_step_end", "_graphs", "_eager", "_old{}"} <= known
