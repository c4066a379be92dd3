"""From loose columns to a record batch in SPAN_SCHEMA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.schema import LINK_TYPE, MINUS_ONE_IS_NONE, SPAN_SCHEMA

Column: TypeAlias = "npt.NDArray[Any] | pa.Array | Sequence[Any]"
#: (trace_id_low, trace_id_high, span_id) of each span that a span links to.
LinkRow: TypeAlias = Sequence[tuple[int, int, int]]

#: Columns that rows and SPAN_SCHEMA share, by their names in each.
SAME_COLUMNS = {
    "duration": "duration_ns",
    "kind": "kind",
    "status": "status",
    "device": "device",
    "context": "context",
    "stream": "stream",
    "thread": "thread_id",
    "correlation": "correlation_id",
    "graph_id": "graph_id",
    "graph_node": "graph_node_id",
    "bytes": "bytes",
    "copy_kind": "copy_kind",
}


def span_batch(count: int, columns: Mapping[str, Column]) -> pa.RecordBatch:
    """`count` spans in SPAN_SCHEMA; a column that is not given is "none" for all.

    `name` and `attributes` are sequences of text (attributes: JSON objects or None) or
    dictionary arrays; everything else is numbers of shape (count,).
    """
    arrays = [_array(item, columns.get(item.name), count) for item in SPAN_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def _array(item: pa.Field, values: Column | None, count: int) -> pa.Array:
    if values is None:
        return _nothing(item, count)
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_dictionary(item.type):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(np.asarray(values, dtype=item.type.to_pandas_dtype()))


def _nothing(item: pa.Field, count: int) -> pa.Array:
    if item.name == "links":
        return pa.nulls(count, item.type)
    if pa.types.is_dictionary(item.type):
        text = None if item.nullable else ""
        return pa.array([text] * count, pa.string()).dictionary_encode()
    value = -1 if item.name in MINUS_ONE_IS_NONE else 0
    return pa.array(np.full(count, value, dtype=item.type.to_pandas_dtype()))


def link_column(count: int, links: Mapping[int, LinkRow]) -> pa.Array:
    """The `links` column from the links of the few rows that have any."""
    if not links:
        return pa.nulls(count, pa.list_(LINK_TYPE))
    sizes = np.zeros(count, dtype=np.int64)
    flat: list[tuple[int, int, int]] = []
    for row in sorted(links):
        sizes[row] = len(links[row])
        flat.extend(links[row])
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    table = np.array(flat, dtype=np.uint64).reshape(-1, 3)
    values = pa.StructArray.from_arrays(
        [pa.array(np.ascontiguousarray(table[:, i])) for i in range(3)], fields=list(LINK_TYPE)
    )
    missing = np.append(sizes == 0, False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=missing), values)
