"""The columns that all chunks of the same number of steps share, made once and kept."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.schema import LAUNCH_COLUMNS, SPAN_SCHEMA

from spanlite_collectors.generator.template import Template

Ints = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]
#: Layouts kept for each kind of step: about 2 MB each, and chunks differ little in size.
_KEPT = 24


class Layout(NamedTuple):
    """Output rows of a chunk: by track, then step. Arrays have shape (steps * rows,)."""

    step: Ints
    order: Ints  # where in (steps, rows) an output row comes from
    row: U64s
    parent: U64s  # row of the parent in its step
    rooted: npt.NDArray[np.bool_]  # has a parent
    correlation: Ints
    uncorrelated: npt.NDArray[np.bool_]
    fixed: dict[str, pa.Array]  # columns that no step changes


class Layouts:
    """Layouts of one template for one process; `of(steps)` gives that of a chunk."""

    def __init__(self, template: Template, first_device: int, first_thread: int) -> None:
        self._template = template
        self._first_device = first_device
        self._first_thread = first_thread
        self.of = lru_cache(_KEPT)(self._make)

    def _make(self, steps: int) -> Layout:
        template = self._template
        edges = zip(template.track_edges[:-1], template.track_edges[1:], strict=True)
        parts = [np.arange(steps)[:, None] * template.rows + np.arange(*edge) for edge in edges]
        order = np.concatenate([part.ravel() for part in parts])
        step, row = np.divmod(order, template.rows)
        parent = template.parent_row[row]
        correlation = template.correlation[row]
        return Layout(
            step=step,
            order=order,
            row=row.astype(np.uint64),
            parent=np.maximum(parent, 0).astype(np.uint64),
            rooted=parent >= 0,
            correlation=correlation,
            uncorrelated=correlation < 0,
            fixed={name: values.take(pa.array(row)) for name, values in self._columns().items()},
        )

    def _columns(self) -> dict[str, pa.Array]:
        """Columns that are the same in each step, one value a row of the template."""
        template = self._template
        on_device = template.device >= 0
        columns = {
            "kind": template.kind,
            "device": np.where(on_device, template.device + self._first_device, -1),
            "context": np.where(on_device, 1, -1),
            "stream": template.stream,
            "thread_id": np.where(template.thread < 0, 0, template.thread + self._first_thread),
            # One graph a process, whose number CUPTI happened to give.
            "graph_id": 3 * (template.node > 0),
            "graph_node_id": template.node,
            **{name: template.launch[:, i] for i, name in enumerate(LAUNCH_COLUMNS)},
            "bytes": template.bytes,
            "copy_kind": template.copy_kind,
            "flags": np.zeros(template.rows),
        }
        arrays = {
            name: pa.array(values.astype(SPAN_SCHEMA.field(name).type.to_pandas_dtype()))
            for name, values in columns.items()
        }
        names = pa.array(list(template.names))
        return arrays | {"name": pa.DictionaryArray.from_arrays(template.name, names)}
