"""Whose time it is: each device span goes to the innermost range around its launch.

A kernel's parent is the call that launched it, that call's parent the range or operator it
was made in; so walking up from the kernel finds the stage (NVTX range, step or request) and
the operator. One pass over the kept spans, bucket by bucket, gives sums by what ran, in
which stage and operator, where, and in which class of trace (slow, fast, neither).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
from spanlite.kinds import DEVICE_KINDS, kind_word

from spanlite_analytics.intervals import I64, ends_of
from spanlite_analytics.report.source import NUMBER_AT_END, Source
from spanlite_analytics.tree import (
    NO_ROW,
    Mask,
    copies_on_device,
    nearest_ancestor,
    parent_rows,
    self_times,
)
from spanlite_analytics.views import arrow_batches

#: Spans worked on at once: about 1 GB of memory. A bucket with more is read in parts.
CHUNK_SPANS = 4_000_000
NOWHERE = "(outside of any range)"
RANGES = ("nvtx_range", "step", "request")
#: The kind that the GPU's copy of a range gets here: see `copies_on_device`.
GPU_COPY = "gpu_range"
#: Kinds whose names may end in a running number; a kernel's name is left as it is.
_NUMBERED = (*RANGES, GPU_COPY, "operator", "host")
DEVICE = tuple(kind_word(kind) for kind in DEVICE_KINDS)
_COLUMNS = (
    "trace_id, span_id, coalesce(parent_span_id, 0) AS parent, start_ns, duration_ns, kind, name, "
    "service, host, coalesce(device, -1) AS device, thread_id IS NULL AS threadless, "
    "sampling_weight"
)
#: Columns by which the pass sums up.
KEYS = ("trace_class", "root", "service", "host", "device", "kind", "name", "stage", "operator")
SUMS = ("spans", "kept", "busy_ns", "wall_ns", "step_ns", "steps")


def attribute(source: Source, classes: dict[str, tuple[int, str]]) -> pd.DataFrame:
    """Weighted sums by KEYS: `spans`, `kept`, `busy_ns`, `wall_ns`, `step_ns` and `steps`.

    `busy_ns` is a device span's duration or a host span's self time (so that what a trace
    waits for adds up once), `wall_ns` the whole duration; `step_ns` what of a device span's
    `busy_ns` lies in a step, `steps` the steps in which its stage ran (each counted in one of
    the stage's rows). The GPU's copy of a range has the kind GPU_COPY. `classes` maps a trace id to
    its class (1 fast, 2 slow) and root; other traces are class 0.
    """
    parts = [_summed(_attributed(table, classes)) for table in _chunks(source)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame(columns=[*KEYS, *SUMS])
    return _summed(pd.concat(parts, ignore_index=True))


def _summed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(list(KEYS), observed=True, as_index=False, sort=False).sum()


def _chunks(source: Source) -> Iterator[pa.Table]:
    """Whole traces, at most about CHUNK_SPANS spans at once."""
    counts = source.frame("SELECT bucket, count(*) AS n FROM r_spans GROUP BY 1 ORDER BY 1")
    for bucket, count in zip(counts["bucket"].tolist(), counts["n"].tolist(), strict=True):
        parts = -(-count // CHUNK_SPANS)
        for part in range(parts):
            where = f"bucket = {bucket}"
            if parts > 1:
                where += f" AND hash(trace_id) % {parts} = {part}"
            rows = arrow_batches(source.con, f"SELECT {_COLUMNS} FROM r_spans WHERE {where}")
            assert rows is not None
            yield rows.read_all()


def _integers(table: pa.Table, name: str) -> I64:
    return np.asarray(table.column(name).to_numpy(), np.int64)


def _coded(table: pa.Table, name: str) -> tuple[I64, list[str]]:
    """(code of each row, words)."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # pyarrow keeps no rows as no chunks
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    coded = column.dictionary_encode()
    return np.asarray(coded.indices.to_numpy(), np.int64), coded.dictionary.to_pylist()


def _is(codes: I64, words: list[str], wanted: tuple[str, ...]) -> Mask:
    return np.array([word in wanted for word in words], bool)[codes]


def _category(codes: I64, words: list[str]) -> pd.Categorical[str]:
    return pd.Categorical.from_codes(codes, categories=pd.Index(words))


def without_numbers(words: list[str]) -> list[str]:
    """Names without the number at their end, unless nothing else is left."""
    short = pd.Series(words, dtype=object).str.replace(NUMBER_AT_END, "", regex=True)
    return [s or word for s, word in zip(short.tolist(), words, strict=True)]


def _attributed(table: pa.Table, classes: dict[str, tuple[int, str]]) -> pd.DataFrame:
    """One row a span, with its stage, operator and class."""
    traces, trace_ids = _coded(table, "trace_id")
    kinds, kind_words = _coded(table, "kind")
    names, name_words = _coded(table, "name")
    starts, durations = _integers(table, "start_ns"), _integers(table, "duration_ns")
    parents = parent_rows(_integers(table, "span_id"), _integers(table, "parent"), traces)
    threadless = table.column("threadless").to_numpy()
    copies = copies_on_device(parents, _is(kinds, kind_words, RANGES), names, threadless)
    counted, durations = _one_copy_a_range(copies, parents, starts, durations)
    parents[copies] = NO_ROW  # a copy's time is not its range's
    on_device = _is(kinds, kind_words, DEVICE)
    weight = table.column("sampling_weight").to_numpy()
    wall = np.maximum(durations, 0)
    busy = np.where(on_device, wall, self_times(parents, starts, durations))
    kinds = np.where(copies, len(kind_words), kinds)
    kind_words = [*kind_words, GPU_COPY]
    tidy = without_numbers(name_words)
    words = list(dict.fromkeys([*name_words, *tidy, NOWHERE, ""]))
    code_of = {word: code for code, word in enumerate(words)}
    raw_codes = np.array([code_of[word] for word in name_words], np.int64)[names]
    tidy_codes = np.array([code_of[word] for word in tidy], np.int64)[names]
    known = [classes.get(trace, (0, "")) for trace in trace_ids]
    roots = list(dict.fromkeys(root for _, root in known))
    root_code = {root: code for code, root in enumerate(roots)}

    numbered = _is(kinds, kind_words, _NUMBERED)

    def above(wanted: tuple[str, ...], none: str) -> I64:
        rows = nearest_ancestor(parents, _is(kinds, kind_words, wanted))
        return np.where(rows == NO_ROW, code_of[none], tidy_codes[rows])

    stage = above(RANGES, NOWHERE)
    step = nearest_ancestor(parents, _is(kinds, kind_words, ("step",)))
    in_step = on_device & (step != NO_ROW)
    return pd.DataFrame(
        {
            "trace_class": np.array([number for number, _ in known], np.int64)[traces],
            "root": _category(np.array([root_code[r] for _, r in known], np.int64)[traces], roots),
            "service": _category(*_coded(table, "service")),
            "host": _category(*_coded(table, "host")),
            "device": _integers(table, "device"),
            "kind": _category(kinds, kind_words),
            "name": _category(np.where(numbered, tidy_codes, raw_codes), words),
            "stage": _category(stage, words),
            "operator": _category(above(("operator",), ""), words),
            "spans": np.where(counted, weight, 0.0),
            "kept": np.ones(len(weight), np.int64),
            "busy_ns": weight * busy,
            "wall_ns": weight * wall,
            "step_ns": np.where(in_step, weight * busy, 0.0),
            "steps": np.where(_first_of_each(stage, step, in_step), weight, 0.0),
        }
    )


def _one_copy_a_range(copies: Mask, parents: I64, starts: I64, durations: I64) -> tuple[Mask, I64]:
    """(rows that count, durations): a range has a copy on each stream, here one over all."""
    rows = np.flatnonzero(copies)
    counted, durations = np.ones(len(copies), bool), durations.copy()
    if len(rows) == 0:
        return counted, durations
    above, first, place = np.unique(parents[rows], return_index=True, return_inverse=True)
    begin = np.full(len(above), np.iinfo(np.int64).max)
    end = np.full(len(above), np.iinfo(np.int64).min)
    np.minimum.at(begin, place.reshape(-1), starts[rows])
    np.maximum.at(end, place.reshape(-1), ends_of(starts[rows], durations[rows]))
    counted[rows], durations[rows] = False, 0
    counted[rows[first]], durations[rows[first]] = True, end - begin
    return counted, durations


def _first_of_each(stage: I64, step: I64, mask: Mask) -> Mask:
    """Of the rows in the mask the first of each (stage, step)."""
    rows = np.flatnonzero(mask)
    pairs = np.stack((stage[rows], step[rows]), 1)
    first = np.zeros(len(mask), bool)
    first[rows[np.unique(pairs, axis=0, return_index=True)[1]]] = True
    return first
