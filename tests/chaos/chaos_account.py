"""What was sent against what lies in the archive: ids and the content of every column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from spanlite.archive.convert import to_span_batches
from spanlite.archive.reader import ArchiveReader

U64 = npt.NDArray[np.uint64]


def content_hashes(spans: pa.RecordBatch, resource: Mapping[str, Any]) -> U64:
    """One hash a span over all its columns and its resource, shape (n,)."""
    plain = {name: spans.column(name) for name in spans.schema.names if name != "links"}
    frame = pa.table(plain).to_pandas()
    links = spans.column("links")
    some = np.flatnonzero(links.value_lengths().fill_null(0).to_numpy() > 0)
    text = np.full(spans.num_rows, "", dtype=object)
    text[some] = [json.dumps(links[int(row)].as_py()) for row in some]
    frame["links"] = text
    frame["resource"] = pd.Categorical([json.dumps(resource, sort_keys=True)] * spans.num_rows)
    hashes: U64 = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    return hashes


@dataclass
class Account:
    """Spans by id, with their content."""

    ids: list[U64] = field(default_factory=list)
    traces: list[U64] = field(default_factory=list)
    hashes: list[U64] = field(default_factory=list)

    def add(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Take note of these spans."""
        self.ids.append(spans.column("span_id").to_numpy())
        pair = (spans.column("trace_id_low").to_numpy(), spans.column("trace_id_high").to_numpy())
        self.traces.append(np.stack(pair, axis=1))
        self.hashes.append(content_hashes(spans, resource))

    def sorted(self) -> tuple[U64, U64, U64]:
        """(span ids, trace ids of shape (n, 2), hashes), by span id."""
        if not self.ids:
            return np.zeros(0, np.uint64), np.zeros((0, 2), np.uint64), np.zeros(0, np.uint64)
        ids = np.concatenate(self.ids)
        order = np.argsort(ids, kind="stable")
        traces, hashes = np.concatenate(self.traces), np.concatenate(self.hashes)
        return ids[order], traces[order], hashes[order]


@dataclass
class Difference:
    """How two accounts differ, in spans."""

    sent: int
    found: int
    lost: int
    twice: int
    foreign: int
    changed: int

    @property
    def none(self) -> bool:
        """Whether they agree."""
        return not (self.lost or self.twice or self.foreign or self.changed)


def compare(sent: Account, found: Account, kept: npt.NDArray[np.bool_] | None = None) -> Difference:
    """Compare; `kept` says which of the sent spans, by span id, should be there at all."""
    ids, _, hashes = sent.sorted()
    if kept is not None:
        ids, hashes = ids[kept], hashes[kept]
    assert len(np.unique(ids)) == len(ids), "the test's own span ids repeat"
    got, _, got_hashes = found.sorted()
    distinct, first = np.unique(got, return_index=True)
    both, at, got_at = np.intersect1d(ids, distinct, assume_unique=True, return_indices=True)
    return Difference(
        sent=len(ids),
        found=len(got),
        lost=len(ids) - len(both),
        twice=len(got) - len(distinct),
        foreign=len(distinct) - len(both),
        changed=int((hashes[at] != got_hashes[first[got_at]]).sum()),
    )


def read_archive(root: Path) -> Iterator[tuple[pa.RecordBatch, dict[str, Any], Any]]:
    """(spans, resource, weights) of everything in the archive."""
    reader = ArchiveReader(root)
    for rows in reader.scan():
        for part in to_span_batches(pa.Table.from_batches([rows])):
            yield part.spans, part.resource, part.weights
