"""Recorded and replayed spans as two processes of a Chrome trace, for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
from spanlite.errors import UsageError
from spanlite.ids import trace_id_strings
from spanlite.kinds import kind_word

from spanlite_replay.fidelity.pairing import Pairs, pair
from spanlite_replay.fidelity.spans import group_rows

PLANNED, REPLAYED = 1, 2


def write_chrome(recorded: pa.Table, observed: pa.Table, path: Path) -> int:
    """Write both tracks; returns the number of spans drawn.

    Times count from the plan's first start. Raises UsageError where it cannot be written.
    """
    pairs = pair(recorded, observed)
    try:
        with path.open("w", encoding="utf-8") as stream:
            return _write(pairs, stream)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from None


def _write(pairs: Pairs, stream: TextIO) -> int:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    stream.write('{"displayTimeUnit":"ns","traceEvents":[\n')
    stream.write(",\n".join(encode(event) for event in _names(pairs)))
    written = 0
    for event in _events(pairs):
        stream.write(",\n" + encode(event))
        written += 1
    stream.write("\n]}\n")
    return written


def _track_numbers(pairs: Pairs) -> tuple[Any, list[str]]:
    """(track of each row, title of each track): streams on devices, threads on the host."""
    s = pairs.spans
    on_device = s.on_device.astype(np.int64)
    track, first = group_rows(
        on_device,
        s.process,
        np.where(on_device, s.device, -1),
        np.where(on_device, s.stream, s.thread),
    )
    titles = [
        f"GPU {s.device[row]} stream {s.stream[row]}"
        if on_device[row]
        else f"process {s.process[row]} thread {s.thread[row]}"
        for row in first.tolist()
    ]
    return track, titles


def _names(pairs: Pairs) -> Iterator[dict[str, Any]]:
    _, titles = _track_numbers(pairs)
    for process, title in ((PLANNED, "recorded, as planned"), (REPLAYED, "replayed")):
        yield _metadata("process_name", process, 0, title)
        for track, name in enumerate(titles):
            yield _metadata("thread_name", process, track + 1, name)


def _metadata(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _events(pairs: Pairs) -> Iterator[dict[str, Any]]:
    s = pairs.spans
    if not len(s):
        return
    track, _ = _track_numbers(pairs)
    origin = int(pairs.planned_start_ns.min())
    ids = trace_id_strings(s.trace_low, s.trace_high)
    drawn = s.on_device | pairs.seen
    order = np.argsort(pairs.planned_start_ns, kind="stable")
    for row in order[drawn[order]].tolist():
        both = {
            "ph": "X",
            "name": s.names[s.name[row]],
            "cat": kind_word(int(s.kind[row])),
            "tid": int(track[row]) + 1,
        }
        args: dict[str, Any] = {"trace_id": ids[row], "span_id": f"{int(s.span_id[row]):016x}"}
        start, end = int(pairs.planned_start_ns[row]), int(pairs.planned_end_ns[row])
        if not pairs.seen[row]:
            args["lost"] = True
        yield both | _at(PLANNED, start - origin, end - start) | {"args": args}
        if pairs.seen[row]:
            begin, finish = int(pairs.start_ns[row]), int(pairs.end_ns[row])
            errors = {
                "start_error_ns": begin - start,
                "duration_error_ns": finish - begin - end + start,
            }
            yield both | _at(REPLAYED, begin - origin, finish - begin) | {"args": args | errors}


def _at(process: int, start_ns: int, duration_ns: int) -> dict[str, Any]:
    """Chrome counts in us; three decimals keep the ns."""
    return {"pid": process, "ts": start_ns / 1e3, "dur": duration_ns / 1e3}
