"""A recording several times over: each further round has trace and span ids of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.errors import UsageError
from spanlite.ids import trace_id_strings

from spanlite_replay.recording import Recording, hex_to_halves
from spanlite_replay.respan import IdMap
from spanlite_replay.transforms import check_times

#: More spans than this would not fit into memory as a plan.
MAX_SPANS = 200_000_000


def repeat(recording: Recording, rounds: int) -> Recording:
    """The recording `rounds` times, each round after all of the one before has ended.

    Where that comes sooner than one mean gap between traces after the last has started, the round
    waits for it, so that arrivals that take no time (those of a log) keep their rate. The first
    keeps its ids; parents and links of the others stay within their round.
    """
    count = len(recording.start_ns)
    if count * rounds > MAX_SPANS:
        raise UsageError(f"--loop {rounds} makes {count * rounds:,} spans: {MAX_SPANS:,} at most")
    if rounds == 1 or not count:
        return recording
    end = recording.start_ns + np.maximum(recording.duration_ns, 0)
    period_ns = max(int(end.max() - recording.start_ns.min()), _arrivals_ns(recording))
    check_times(end, (rounds - 1) * period_ns, f"--loop {rounds}")
    parts = [_round(recording, number, number * period_ns) for number in range(rounds)]
    return Recording.from_table(pa.concat_tables(parts).unify_dictionaries())


def _arrivals_ns(recording: Recording) -> int:
    """From the first arrival of a trace to one mean gap after the last; 0 for one trace."""
    starts = recording.trace_starts()
    if len(starts) < 2:
        return 0
    span_ns = int(starts.max() - starts.min())
    return span_ns + span_ns // (len(starts) - 1)


def _round(rec: Recording, number: int, later_ns: int) -> pa.Table:
    if number == 0:
        return rec.table
    ids = IdMap.of(f"loop {number}")
    words = trace_id_strings(*ids.traces(rec.trace_low, rec.trace_high))
    new: dict[str, pa.Array] = {
        "trace_id": pa.DictionaryArray.from_arrays(
            pa.array(rec.trace.astype(np.int32)), pa.array(words)
        ),
        "span_id": pa.array(ids.spans(rec.span_id).view(np.int64)),
        "start_ns": pa.array(rec.start_ns + later_ns),
    }
    table = rec.table
    if "parent_span_id" in table.column_names:
        column = table.column("parent_span_id")
        parent = column.fill_null(0).to_numpy().astype(np.int64)
        moved = ids.spans(parent.view(np.uint64)).view(np.int64)
        new["parent_span_id"] = pa.array(moved, mask=np.asarray(column.is_null().to_numpy()))
    if "links" in table.column_names:
        new["links"] = _links(table.column("links"), ids)
    for name, values in new.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), values.cast(table.schema.types[at]))
    return table


def _links(column: pa.ChunkedArray, ids: IdMap) -> pa.Array:
    links = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    flat = links.flatten()
    if not len(flat):
        return links
    low, high = ids.traces(*hex_to_halves(flat.field("trace_id")))
    spans: npt.NDArray[np.uint64] = flat.field("span_id").to_numpy().view(np.uint64)
    fields = list(links.type.value_type)
    values = pa.StructArray.from_arrays(
        [pa.array(trace_id_strings(low, high)), pa.array(ids.spans(spans).view(np.int64))],
        fields=fields,
    )
    counts = links.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    none = np.append(np.asarray(links.is_null().to_numpy(zero_copy_only=False)), False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=none), values, type=links.type)
