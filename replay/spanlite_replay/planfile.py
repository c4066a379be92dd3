"""A plan as one file, `.slplan`: Parquet, one row a span, with all that a target needs.

The rows are those of the archive's `spans` table, so that any Parquet reader can look at
them, with columns `plan_...` beside: when each span is due, what becomes of it, its place in
the work and what it waits for. The metadata entry `spanlite.plan` says where it comes from
and holds the digest, which is checked when it is read. The same plan gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from spanlite.errors import InputError, UsageError

from spanlite_replay.plan import Fate, Plan, PlanSettings
from spanlite_replay.recording import Recording
from spanlite_replay.work import STREAM_KEY, THREAD_KEY, EdgeKind, Edges, Work, links_of

SUFFIX = ".slplan"
FORMAT = 1
METADATA_KEY = b"spanlite.plan"
#: SHA-256 of that entry: Parquet's own checksums cover the pages alone.
CHECK_KEY = b"spanlite.plan_check"
_FATES = [fate.name.lower() for fate in Fate]
_EDGES = [kind.name.lower() for kind in EdgeKind]
_WAITS_FOR = pa.list_(
    pa.struct([("position", pa.int64()), ("kind", pa.string()), ("inferred", pa.bool_())])
)


@dataclass(frozen=True)
class Provenance:
    """Where a plan comes from."""

    archive: str
    window: str
    bucket_count: int
    versions: dict[str, str] = field(
        default_factory=lambda: {
            name: version(name) for name in ("spanlite", "spanlite-replay", "numpy", "pyarrow")
        }
    )


def write_plan(plan: Plan, provenance: Provenance, path: Path) -> None:
    """Write the file, whole or not at all. Raises UsageError where it cannot be written."""
    if path.suffix != SUFFIX:
        raise UsageError(f"--out '{path}' must end in {SUFFIX}")
    head = _head(plan, provenance)
    metadata = {METADATA_KEY: head, CHECK_KEY: hashlib.sha256(head).hexdigest().encode()}
    table = _rows(plan).replace_schema_metadata(metadata)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, draft, compression="zstd", write_page_checksum=True)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"--out '{path}' cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def read_plan(path: Path) -> tuple[Plan, Provenance]:
    """Read and check it. Raises InputError where it is none, damaged or of a newer format."""
    head, table = _read(path)
    try:
        plan = _plan(head, table)
        provenance = Provenance(**head["provenance"])
    except (KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise InputError(f"'{path}' is damaged: {error}; save the plan again") from None
    if plan.digest() != head["digest"]:
        raise InputError(f"'{path}' does not match its own digest: save the plan again")
    return plan, provenance


def is_plan(path: Path) -> bool:
    """Whether a path names a plan and not an archive."""
    return path.suffix == SUFFIX or path.is_file()


def _read(path: Path) -> tuple[dict[str, Any], pa.Table]:
    if not path.is_file():
        raise InputError(f"there is no plan '{path}'; `spanlite plan save` makes one")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            entries = file.metadata.metadata or {}
            metadata = entries.get(METADATA_KEY)
            if metadata is None:
                raise InputError(
                    f"'{path}' is Parquet, but no plan: `spanlite plan save` makes one"
                )
            if entries.get(CHECK_KEY) != hashlib.sha256(metadata).hexdigest().encode():
                raise InputError(f"'{path}' is damaged: save the plan again")
            head = json.loads(metadata)
            if head.get("format") != FORMAT:
                raise InputError(
                    f"'{path}' has plan format {head.get('format')}; this spanlite reads {FORMAT}"
                )
            return head, file.read()
    except (OSError, pa.ArrowInvalid, ValueError) as error:
        raise InputError(f"'{path}' cannot be read as a plan: {error}") from None


def _head(plan: Plan, provenance: Provenance) -> bytes:
    work = plan.work
    head = {
        "format": FORMAT,
        "digest": plan.digest(),
        "provenance": vars(provenance),
        "settings": settings_to_dict(plan.settings),
        "left_out": [plan.traces_sampled_out, plan.spans_sampled_out, plan.spans_not_of_unit],
        "deps": None if work is None else work.deps,
    }
    if work is not None:
        head["waits_unknown"] = work.waits_unknown
        head["threads"], head["streams"] = work.threads.to_pylist(), work.streams.to_pylist()
    return json.dumps(head, sort_keys=True).encode()


def settings_to_dict(settings: PlanSettings) -> dict[str, Any]:
    """For JSON: fractions as text."""
    told = {
        name: str(value) if isinstance(value, Fraction) else value
        for name, value in vars(settings).items()
    }
    return told | {"service_qps": {name: str(qps) for name, qps in settings.service_qps}}


def _settings(told: dict[str, Any]) -> PlanSettings:
    ratios = {
        name: None if told[name] is None else Fraction(told[name])
        for name in ("sample", "speed", "qps")
    }
    services = tuple((name, Fraction(qps)) for name, qps in told["service_qps"].items())
    return PlanSettings(**{**told, **ratios, "service_qps": services})


def _rows(plan: Plan) -> pa.Table:
    rec = plan.recording
    event, row, start_ns, duration_ns = plan.span_rows(np.arange(len(plan)))
    is_head = plan.row[event] == row
    table = rec.table.take(pa.array(row)).combine_chunks()
    length = np.where(is_head, plan.duration_ns[event], 0)
    columns: dict[str, pa.Array] = {
        "plan_event": pa.array(event),
        "plan_is_head": pa.array(is_head),
        "plan_start_ns": pa.array(start_ns),
        "plan_duration_ns": pa.array(duration_ns),
        "plan_event_duration_ns": pa.array(length, mask=~is_head),
        "plan_fate": pa.DictionaryArray.from_arrays(
            pa.array(plan.fate[event].astype(np.int32)), pa.array(_FATES)
        ),
    }
    if plan.work is not None:
        columns |= _work_columns(plan.work, row)
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def _work_columns(work: Work, row: np.ndarray[Any, Any]) -> dict[str, pa.Array]:
    place = np.full(int(max(row.max(initial=0), work.row.max(initial=0))) + 1, -1, dtype=np.int64)
    place[work.row] = np.arange(len(work))
    at = place[row]
    runs = at >= 0
    waits = np.bincount(work.edges.after, minlength=len(work))
    # Edges are sorted by `after`: the runs of each position, in the order of the rows.
    first = np.cumsum(waits) - waits
    counts = np.where(runs, waits[at], 0)
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.repeat(np.where(runs, first[at], 0), counts) + inside
    edges = work.edges
    values = pa.StructArray.from_arrays(
        [
            pa.array(edges.before[order]),
            pa.DictionaryArray.from_arrays(
                pa.array(edges.kind[order].astype(np.int32)), pa.array(_EDGES)
            ).cast(pa.string()),
            pa.array(edges.inferred[order]),
        ],
        fields=list(_WAITS_FOR.value_type),
    )
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return {
        "plan_position": pa.array(at, mask=~runs),
        "plan_thread": pa.array(np.where(runs, work.thread[at], -1).astype(np.int32)),
        "plan_stream": pa.array(np.where(runs, work.stream[at], -1).astype(np.int32)),
        "plan_launched_by": pa.array(np.where(runs, work.launched_by[at], -1)),
        "plan_is_call": pa.array(runs & work.is_call[at]),
        "plan_waits_for": pa.ListArray.from_arrays(pa.array(offsets), values),
    }


def _plan(head: dict[str, Any], table: pa.Table) -> Plan:
    names = [name for name in table.column_names if not name.startswith("plan_")]
    rec = Recording.from_table(table.select(names))
    is_head = _column(table, "plan_is_head").astype(np.bool_)
    rows = np.flatnonzero(is_head)
    event = _column(table, "plan_event")
    row = rows[np.argsort(event[rows], kind="stable")]
    fates = {word: number for number, word in enumerate(_FATES)}
    fate = table.column("plan_fate").cast(pa.string()).to_pylist()
    plan = Plan(
        _settings(head["settings"]),
        rec,
        _column(table, "plan_start_ns")[row],
        rec.start_ns[row],
        table.column("plan_event_duration_ns").fill_null(0).to_numpy()[row],
        rec.trace[row],
        row,
        np.bincount(event, minlength=len(row)).astype(np.int64),
        np.array([fates[word] for word in fate], dtype=np.uint8)[row],
        *head["left_out"],
    )
    if head["deps"] is None:
        return plan
    return Plan(**{**vars(plan), "work": _work(head, table, plan)})


def _work(head: dict[str, Any], table: pa.Table, plan: Plan) -> Work:
    at = table.column("plan_position").fill_null(-1).to_numpy()
    runs = np.flatnonzero(at >= 0)
    row = runs[np.argsort(at[runs], kind="stable")]
    waits = table.column("plan_waits_for").combine_chunks()
    if isinstance(waits, pa.ChunkedArray):
        waits = waits.chunk(0)
    flat = waits.flatten()
    kinds = {word: number for number, word in enumerate(_EDGES)}
    after = at[np.asarray(pc.list_parent_indices(waits), dtype=np.int64)]
    order = np.argsort(after, kind="stable")
    edges = Edges(
        flat.field("position").to_numpy()[order],
        after[order],
        np.array([kinds[word] for word in flat.field("kind").to_pylist()], dtype=np.uint8)[order],
        flat.field("inferred").to_numpy(zero_copy_only=False)[order].astype(np.bool_),
    )
    keys = plan.recording.table.schema
    return Work(
        head["deps"],
        _column(table, "plan_event")[row],
        row,
        _column(table, "plan_start_ns")[row],
        plan.recording.duration_ns[row],
        plan.recording.kinds()[row],
        _column(table, "plan_thread")[row],
        _column(table, "plan_stream")[row],
        _column(table, "plan_launched_by")[row],
        _column(table, "plan_is_call")[row].astype(np.bool_),
        edges,
        *links_of(plan.recording, row),
        head["waits_unknown"],
        _named(head["threads"], [keys.field(name) for name in THREAD_KEY]),
        _named(head["streams"], [keys.field(name) for name in STREAM_KEY]),
    )


def _named(rows: list[dict[str, Any]], fields: list[pa.Field]) -> pa.Table:
    plain = pa.schema(
        [pa.field(item.name, getattr(item.type, "value_type", item.type)) for item in fields]
    )
    return pa.Table.from_pylist(rows, schema=plain)


def _column(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    return np.asarray(table.column(name).to_numpy())
