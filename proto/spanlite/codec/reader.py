"""SpanBatch bytes to columns.

`ptars` turns the packed columns into Arrow arrays without a Python object a span; numpy
undoes the deltas. Nothing in a message is trusted: every length and index is checked,
and a bad one raises `WireError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite.bucket import bucket_of
from spanlite.codec import _columns as col
from spanlite.codec._wire import SITE_COLUMNS, SITE_LIMITS, SPAN_COLUMNS, batch_handler
from spanlite.codec.batch import Batch, read_header
from spanlite.errors import WireError
from spanlite.schema import LAUNCH_COLUMNS, LINK_TYPE, MINUS_ONE_IS_NONE, SPAN_SCHEMA

Array = npt.NDArray[Any]
_NO_CONFIG = np.zeros(1, dtype=np.uint32)


def parse(handler: Any, messages: list[bytes]) -> pa.RecordBatch:
    """Protobuf messages as Arrow, one row each. Raises WireError."""
    try:
        return handler.list_to_record_batch(messages)
    except (ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
        raise WireError("malformed", str(error)) from None


class BatchView:
    """A decoded message whose columns are made when first asked for.

    `column(name)` gives numpy arrays of shape (span_count,); `to_arrow(rows)` the chosen
    rows in SPAN_SCHEMA. Raises WireError on anything malformed, in the constructor.

    `checked`: these very bytes made a view before, so that the checks can be left out. Of
    bytes that did not, such a view may raise anything or be wrong.
    """

    def __init__(self, data: bytes, checked: bool = False) -> None:
        self.header = read_header(data)
        self.count: int = self.header.span_count
        self._raw = parse(batch_handler(), [data])
        self._read: dict[str, Array] = {}
        self._cache: dict[str, Array] = {}
        self.strings: pa.StringArray = self._raw.column("strings").values
        self.trace_low: npt.NDArray[np.uint64] = self._values("trace_id_low")
        self.trace_high: npt.NDArray[np.uint64] = self._high_half("trace_id", self.trace_low)
        self._site_count = len(self._values("sites.name_delta"))
        if not checked:
            self._check()

    def _values(self, wire: str) -> Array:
        """A column as it is on the wire; `sites.` and `launches.` go before their columns."""
        if wire not in self._read:
            table, _, _ = wire.rpartition(".")
            if table:
                struct = self._raw.column(table)
                names = (f"{table}.{item.name}" for item in struct.type)
                self._read.update(zip(names, map(_list_values, struct.flatten()), strict=True))
            else:
                self._read[wire] = _list_values(self._raw.column(wire))
        return self._read[wire]

    def _high_half(self, prefix: str, low: Array) -> Array:
        high = self._values(f"{prefix}_high")
        if len(high) not in (0, len(low)):
            raise WireError("malformed", f"{prefix}_low and {prefix}_high differ in length")
        return high if len(high) else np.zeros(len(low), dtype=np.uint64)

    @cached_property
    def resource(self) -> dict[str, Any]:
        """Attributes of the process that the spans are of."""
        item = self._raw.column("resource")[0].as_py() or {}
        keys, values = item.get("keys") or [], item.get("values_json") or []
        if len(keys) != len(values):
            raise WireError("malformed", f"resource: {len(keys)} keys, {len(values)} values")
        try:
            resource = dict(zip(keys, map(json.loads, values), strict=True))
            if any("\\u" in value for value in values):
                # JSON can spell half a character, which nothing after this can write.
                json.dumps(resource, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise WireError("malformed", f"resource: {error}") from None
        return resource

    def _check(self) -> None:
        _ = self.resource
        for wire in SPAN_COLUMNS:
            col.check_length(wire, len(self._values(wire)), self.count)
        for wire in ("start_low_bits", "duration_low_bits"):
            size = len(self._raw.column(wire)[0].as_py())
            if size not in (0, self.count):
                raise WireError("malformed", f"{wire} has {size} bytes for {self.count} spans")
        self._check_sites()
        self._check_links()
        if self.count:
            col.check_below("trace_delta", self.trace_index, len(self.trace_low))
            col.check_below("attributes", self.column("attributes"), len(self.strings) + 1)
        buckets = bucket_of(self.trace_low, self.trace_high, self.header.bucket_count)
        if not (buckets == self.header.bucket).all():
            raise WireError(
                "wrong_bucket",
                f"a trace does not belong to bucket {self.header.bucket} of "
                f"{self.header.bucket_count}",
            )

    def _check_sites(self) -> None:
        sites = self._site_count
        for wire in (*SITE_COLUMNS.values(), "launch", "start_from_end"):
            col.check_length(f"sites.{wire}", len(self._values(f"sites.{wire}")), sites)
        for wire, limit in SITE_LIMITS.items():
            col.check_below(f"sites.{wire}", self._values(f"sites.{wire}"), limit)
        col.check_below("sites.name_delta", self.site_column("name"), len(self.strings))
        sizes = {len(self._values(f"launches.{name}")) for name in LAUNCH_COLUMNS} - {0}
        if len(sizes) > 1:
            raise WireError("malformed", "the launch table's columns differ in length")
        col.check_below("sites.launch", self._values("sites.launch"), self._launch_count + 1)
        if self.count:
            col.check_below("site_delta", self.site_index, sites)

    def _check_links(self) -> None:
        rows, targets = self._values("link_row_delta"), self._values("link_target")
        if len(rows) != len(targets):
            raise WireError("malformed", f"{len(rows)} link rows, {len(targets)} link targets")
        low, _, spans = self._linked
        if len(spans) != len(low):
            raise WireError("malformed", "the columns of linked spans differ in length")
        col.check_below("link_row_delta", self._link_rows[-1:], self.count)
        col.check_below("link_target", targets, len(low))

    @cached_property
    def _launch_count(self) -> int:
        return max(len(self._values(f"launches.{name}")) for name in LAUNCH_COLUMNS)

    @cached_property
    def _link_rows(self) -> npt.NDArray[np.int64]:
        # 32-bit steps, and fewer of them than a message has bytes: no overflow in 64 bits.
        return np.cumsum(self._values("link_row_delta"), dtype=np.int64)

    @cached_property
    def _linked(self) -> tuple[Array, Array, Array]:
        low = self._values("linked_trace_id_low")
        ids = np.cumsum(self._values("linked_span_id_delta").view(np.uint64), dtype=np.uint64)
        return low, self._high_half("linked_trace_id", low), ids

    @property
    def trace_index(self) -> npt.NDArray[np.uint64]:
        """Each span's row in `trace_low` / `trace_high`, shape (span_count,)."""
        return self.column("trace_index")

    @property
    def site_index(self) -> npt.NDArray[np.uint64]:
        """Each span's row in the site table, shape (span_count,)."""
        return self.column("site_index")

    def site_column(self, name: str) -> Array:
        """A column of the site table: `name`, `launch` or one that is the site's alone.

        Shape (sites,). `name` indexes `strings`, `launch` the rows of `launch_table`.
        """
        wire = SITE_COLUMNS.get(name, name)
        if name == "name":
            return np.cumsum(self._values("sites.name_delta"))
        values, sites = self._values(f"sites.{wire}"), self._site_count
        if name == "graph_node_id":
            return col.undelta(values, sites)
        if name in MINUS_ONE_IS_NONE:
            values = values.astype(np.uint64) - np.uint64(1) if len(values) else _MINUS_ONE
            values = values.view(np.int64)
        return col.expand(values, sites)

    def column(self, name: str) -> Array:
        """One column of SPAN_SCHEMA as numpy, shape (span_count,).

        Text is given by index: `name` into `strings`, `attributes` into `strings` plus 1
        (0: none), `launch` into the rows of `launch_table`. An array may be read-only, or
        one value seen `span_count` times (stride 0).
        """
        if name not in self._cache:
            self._cache[name] = self._make(name)
        return self._cache[name]

    def _make(self, name: str) -> Array:
        if name in SITE_COLUMNS or name in ("name", "launch"):
            return self._of_site(self.site_column(name))
        if name in LAUNCH_COLUMNS:
            return self._of_site(self.launch_table(name)[self.site_column("launch")])
        made: Array = _MAKERS[name](self)
        return made

    def _of_site(self, values: Array) -> Array:
        if col.is_constant(values):
            return np.broadcast_to(values[:1] if self.count else values[:0], (self.count,))
        return values.take(self.site_index.view(np.int64))

    def _start(self) -> Array:
        return col.decode_starts(
            self._joined("start_delta", "start_low_bits"),
            self.column("duration_ns"),
            self._of_site(self.site_column("start_from_end")),
            self.count,
        )

    def _joined(self, wire: str, low_bits: str) -> Array:
        low = self._raw.column(low_bits)[0].as_py()
        return col.join_low_bits(wire, self._values(wire), low, self.count)

    def _parent(self) -> Array:
        distance = col.undelta(self._values("parent_distance_delta"), self.count)
        return col.decode_parent(self.column("span_id"), distance)

    def launch_table(self, name: str) -> npt.NDArray[np.uint32]:
        """One launch column by the indexes of `column("launch")`; row 0 is "none"."""
        values = self._values(f"launches.{name}")
        return np.concatenate((_NO_CONFIG, col.expand(values, self._launch_count)))

    def to_arrow(self, rows: Array | None = None) -> pa.RecordBatch:
        """The spans, or those at `rows` (indexes or a mask), in SPAN_SCHEMA."""
        arrays = []
        for item in SPAN_SCHEMA:
            if item.name == "links":
                arrays.append(self.links(rows))
            elif item.name in ("name", "attributes"):
                arrays.append(self._text(item.name, rows))
            else:
                dtype = item.type.to_pandas_dtype()
                values = self.column(item.name)
                values = values if rows is None else values[rows]
                arrays.append(pa.array(np.ascontiguousarray(values, dtype=dtype)))
        return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)

    def _text(self, name: str, rows: Array | None) -> pa.DictionaryArray:
        """`name` or `attributes`, with a dictionary of no more than the range in use."""
        index = self.column(name) if rows is None else self.column(name)[rows]
        index = index.astype(np.int32)
        shift = 1 if name == "attributes" else 0
        none = index < shift
        some = index[~none] if shift else index
        low = int(some.min()) if len(some) else shift
        high = int(some.max()) if len(some) else low - 1
        words = self.strings.slice(low - shift, high + 1 - low)
        return pa.DictionaryArray.from_arrays(
            pa.array(index - np.int32(low), mask=none if shift else None), words
        )

    def link_table(self) -> tuple[Array, Array, Array, Array]:
        """Every link as (row of the span, trace_id_low, trace_id_high, span_id), shape (links,)."""
        low, high, span_id = (column[self._values("link_target")] for column in self._linked)
        return self._link_rows, low, high, span_id

    def links(self, rows: Array | None = None) -> pa.ListArray:
        """The `links` column, null where a span has none."""
        if len(self._link_rows) == 0:
            count = self.count if rows is None else len(_positions(rows))
            return pa.nulls(count, pa.list_(LINK_TYPE))
        counts = np.bincount(self._link_rows, minlength=self.count)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        targets = self._values("link_target")
        values = pa.StructArray.from_arrays(
            [pa.array(column[targets]) for column in self._linked], fields=list(LINK_TYPE)
        )
        null_where_none = np.append(counts == 0, False)
        links = pa.ListArray.from_arrays(pa.array(offsets, mask=null_where_none), values)
        return links if rows is None else links.take(pa.array(_positions(rows)))


def _list_values(column: pa.ListArray) -> Array:
    values: Array = column.values.to_numpy()
    return values


_MINUS_ONE = np.array([-1])
_MAKERS: dict[str, Callable[[BatchView], Array]] = {
    "trace_index": lambda view: col.undelta(view._values("trace_delta"), view.count),
    "site_index": lambda view: col.undelta(view._values("site_delta"), view.count),
    "trace_id_low": lambda view: view.trace_low.take(view.trace_index.view(np.int64)),
    "trace_id_high": lambda view: view.trace_high.take(view.trace_index.view(np.int64)),
    "span_id": lambda view: col.undelta(view._values("span_id_delta"), view.count),
    "parent_span_id": BatchView._parent,
    "start_ns": BatchView._start,
    "duration_ns": lambda view: view._joined("duration_ns", "duration_low_bits"),
    "attributes": lambda view: col.decode_sparse(view._values("attributes"), view.count),
    "correlation_id": lambda view: col.undelta(view._values("correlation_delta"), view.count),
}


def _positions(rows: Array) -> Array:
    return np.flatnonzero(rows) if rows.dtype == np.bool_ else rows


def decode_batch(data: bytes) -> Batch:
    """Decode a whole SpanBatch. Raises WireError, never anything else, on bad bytes."""
    view = BatchView(data)
    return Batch(view.header, view.to_arrow(), view.resource)
