"""The small tables: rows of many buckets in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, NS_PER_HOUR, TRACES, hour_folder
from spanlite.archive.schema import KERNEL_MINUTES as KERNEL_MINUTES_SCHEMA
from spanlite.archive.schema import LEDGER as LEDGER_SCHEMA
from spanlite.archive.schema import TRACES as TRACES_SCHEMA
from spanlite.archive.writer import write_table
from spanlite.kinds import kind_word

from spanlite_pipeline.frames import Output, file_output
from spanlite_pipeline.summaries import Rows, Words

_SCHEMAS = {TRACES: TRACES_SCHEMA, KERNEL_MINUTES: KERNEL_MINUTES_SCHEMA, LEDGER: LEDGER_SCHEMA}
_TIME = {TRACES: "start_ns", KERNEL_MINUTES: "minute_ns", LEDGER: "time_ns"}
#: How each column of equal keys becomes one; tables not named here keep all rows.
_SUMS: dict[str, list[tuple[str, str]]] = {
    KERNEL_MINUTES: [
        ("spans", "sum"),
        ("errors", "sum"),
        ("duration_ns", "sum"),
        ("min_ns", "min"),
        ("max_ns", "max"),
        ("bytes", "sum"),
    ],
    LEDGER: [("spans", "sum"), ("messages", "sum"), ("time_ns", "max")],
}
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def pack(table: pa.Table) -> bytes:
    """Rows as Arrow IPC bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def unpack(parts: Sequence[bytes]) -> pa.Table:
    """All rows of some packed tables of one schema."""
    return pa.concat_tables(pa.ipc.open_stream(part).read_all() for part in parts)


def finish(name: str, parts: Sequence[bytes]) -> list[Output]:
    """Files of the small table `name`: one a folder, sorted, equal keys summed."""
    schema = _SCHEMAS[name]
    table = _plain(unpack(parts))
    if name in _SUMS:
        keys = [f.name for f in schema if f.name not in dict(_SUMS[name])]
        table = table.group_by(keys).aggregate(_SUMS[name])
        table = table.rename_columns([_stem(column) for column in table.column_names])
        table = table.select(schema.names)
    hours = pc.divide(table[_TIME[name]], NS_PER_HOUR).to_numpy()
    # Truncation rounds towards zero; times before 1970 need the floor.
    hours = hours - (table[_TIME[name]].to_numpy() < hours * NS_PER_HOUR)
    out = []
    for hour in np.unique(hours).tolist():
        rows = table.filter(pa.array(hours == hour)).sort_by(_order(name))
        folder = hour_folder(hour * NS_PER_HOUR)
        folder = folder.split("/")[0] if name == LEDGER else folder
        out.append(file_output(f"{name}/{folder}", write_table(rows, schema)))
    return out


def _stem(column: str) -> str:
    for ending in ("_sum", "_min", "_max"):
        if column.endswith(ending):
            return column.removesuffix(ending)
    return column


def _order(name: str) -> list[tuple[str, str]]:
    first = {TRACES: "trace_id", KERNEL_MINUTES: "minute_ns", LEDGER: "hop"}[name]
    return [(first, "ascending"), (_TIME[name], "ascending")]


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as text, which sorts, sums and concatenates."""
    fields = [
        f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f
        for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def traces_table(
    rows: Rows,
    weights: npt.NDArray[np.float64],
    policies: npt.NDArray[np.int32],
    policy_names: Sequence[str],
    late: bool,
    words: Words,
    senders: Words,
    bucket: int,
) -> pa.Table:
    """Rows of TRACES, with text as plain as `unpack` makes it.

    `weights` of shape (n,), 0 where a trace is not kept; `policies` index `policy_names`.
    """
    n = len(rows)
    sent, sender = np.unique(rows["sender"], return_inverse=True)
    names = [senders[code] for code in sent.tolist()]
    roots, root = np.unique(rows["root_name"], return_inverse=True)
    has_root = rows["root_name"] >= 0
    kinds, kind = np.unique(rows["root_kind"], return_inverse=True)
    columns = {
        "trace_id": hex_ids(rows["low"], rows["high"]),
        "root_name": _words([None if c < 0 else words[c] for c in roots.tolist()], root),
        "root_kind": _words([kind_word(code) for code in kinds.tolist()], kind, ~has_root),
        "service": _words([service for service, _ in names], sender),
        "host": _words([host for _, host in names], sender),
        "kept": weights > 0,
        "policy": _words(policy_names, policies),
        "sampling_weight": weights * rows["head_weight"],
        "late": np.full(n, late),
        "bucket": np.full(n, bucket, np.int32),
    }
    arrays = [
        columns[item.name] if item.name in columns else np.ascontiguousarray(rows[item.name])
        for item in TRACES_SCHEMA
    ]
    return pa.Table.from_arrays([pa.array(values) for values in arrays], TRACES_SCHEMA.names)


def _words(
    words: Sequence[str | None], codes: npt.NDArray[Any], none: npt.NDArray[np.bool_] | None = None
) -> pa.StringArray:
    index = pa.array(codes.astype(np.int32), mask=none)
    return pa.array(words, pa.string()).take(index)


def hex_ids(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> pa.StringArray:
    """Trace ids as 32 hex digits, shape (n,), without a Python object an id."""
    raw = np.empty((len(low), 2), dtype=">u8")
    raw[:, 0], raw[:, 1] = high, low
    offsets = np.arange(0, 32 * len(low) + 1, 32, dtype=np.int32)
    text = raw.tobytes().hex().encode()
    return pa.StringArray.from_buffers(len(low), pa.py_buffer(offsets), pa.py_buffer(text))
