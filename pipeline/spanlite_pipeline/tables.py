"""The small tables: rows of many buckets in one file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, NS_PER_HOUR, TRACES, hour_folder
from spanlite.archive.schema import KERNEL_MINUTES as KERNEL_MINUTES_SCHEMA
from spanlite.archive.schema import LEDGER as LEDGER_SCHEMA
from spanlite.archive.schema import TRACES as TRACES_SCHEMA
from spanlite.archive.writer import write_table
from spanlite.ids import trace_id_strings
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
    weights: np.ndarray[tuple[int], np.dtype[np.float64]],
    policies: Sequence[str],
    late: bool,
    words: Words,
    senders: Words,
    bucket: int,
) -> pa.Table:
    """Rows of TRACES; `weights` of shape (n,), 0 where a trace is not kept."""
    n = len(rows)
    sent = [senders[code] for code in rows["sender"].tolist()]
    roots = rows["root_name"].tolist()
    columns = {
        "trace_id": trace_id_strings(rows["low"], rows["high"]),
        **{
            name: pa.array(rows[name])
            for name in ("start_ns", "end_ns", "spans", "errors", "device_spans", "device_ns")
        },
        "bytes": pa.array(rows["bytes"]),
        "root_name": [None if code < 0 else words[code] for code in roots],
        "root_kind": [
            None if code < 0 else kind_word(kind)
            for code, kind in zip(roots, rows["root_kind"].tolist(), strict=True)
        ],
        "service": [service for service, _ in sent],
        "host": [host for _, host in sent],
        "kept": pa.array(weights > 0),
        "policy": list(policies),
        "sampling_weight": pa.array(weights * rows["head_weight"]),
        "late": [late] * n,
        "bucket": [bucket] * n,
    }
    arrays = []
    for item in TRACES_SCHEMA:
        values = columns[item.name]
        if not isinstance(values, pa.Array):
            kind = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
            values = pa.array(values, kind).cast(item.type)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=TRACES_SCHEMA)
