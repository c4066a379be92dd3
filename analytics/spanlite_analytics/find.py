"""Finds a trace by its id or by the start of it, and says why it is not there."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from spanlite.archive.layout import Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.errors import UsageError
from spanlite.ids import format_trace_id, parse_trace_id
from spanlite.timewindow import ALL_TIME, TimeWindow, format_time

from spanlite_analytics.views import quote, reading
from spanlite_analytics.words import plural, time_words

ID_DIGITS = 32
#: Candidates named when the start of an id fits several traces.
CANDIDATES = 10


@dataclass(frozen=True)
class Found:
    """A trace's spans, or, where there are none, the reason in words."""

    trace_id: str
    spans: pa.Table
    why_not: str = ""


def find(archive: Archive, text: str, window: TimeWindow = ALL_TIME) -> Found:
    """Look a trace up. Raises UsageError where `text` is no id or fits several traces."""
    low, high = parse_trace_id(text)
    reader, trace_id = ArchiveReader(archive), format_trace_id(low, high)
    spans = reader.find_trace(low, high, window)
    digits = text.strip().replace("-", "").lower()
    if spans.num_rows == 0 and len(digits) < ID_DIGITS:
        trace_id = _by_start(archive, digits, window) or trace_id
        spans = reader.find_trace(*parse_trace_id(trace_id), window)
    why_not = "" if spans.num_rows else _why_not(archive, trace_id, window, digits)
    return Found(trace_id, spans, why_not)


def _by_start(archive: Archive, digits: str, window: TimeWindow) -> str | None:
    # 'g' follows the last hex digit, so the range is all ids that start so; as a range it
    # can be answered from the statistics of the files.
    condition = f"trace_id >= {quote(digits)} AND trace_id < {quote(digits + 'g')}"
    sql = (
        f"SELECT trace_id FROM traces WHERE {condition} UNION "
        f"SELECT trace_id FROM spans WHERE {condition} ORDER BY 1 LIMIT {CANDIDATES + 1}"
    )
    ids = reading(archive, window, lambda con: [row[0] for row in con.execute(sql).fetchall()])
    if len(ids) > 1:
        more = "\n  ..." if len(ids) > CANDIDATES else ""
        listed = "".join(f"\n  {i}" for i in ids[:CANDIDATES])
        raise UsageError(f"several traces start with '{digits}', give more digits:{listed}{more}")
    return ids[0] if ids else None


def _why_not(archive: Archive, trace_id: str, window: TimeWindow, digits: str) -> str:
    sql = (
        "SELECT kept, policy, spans, start_ns, duration_ns, service, host FROM traces "
        f"WHERE trace_id = {quote(trace_id)}"
    )
    row = reading(archive, window, lambda con: con.execute(sql).fetchone())
    if row is None:
        where = "" if window == ALL_TIME else f" in the window {window}"
        short = len(digits) < ID_DIGITS
        what = f"no trace starts with {digits}" if short else f"no trace {trace_id}"
        return (
            f"{what}{where}; a trace that has just ended is here once it has been "
            "quiet for the pipeline's decision wait and a checkpoint has passed"
        )
    kept, policy, spans, start_ns, duration_ns, service, host = row
    seen = (
        f"trace {trace_id} was seen at {format_time(start_ns)} ({plural(spans, 'span')}, "
        f"{time_words(duration_ns)}, {service or '(no service)'} on {host or '(no host)'})"
    )
    if kept:
        return (
            f"{seen} and kept by policy '{policy}', but its spans are not here: either the next "
            "checkpoint brings them, or `spanlite archive retain` has dropped that hour"
        )
    return f"{seen}, but sampled out: policy '{policy}' decided, and its spans were not kept"
