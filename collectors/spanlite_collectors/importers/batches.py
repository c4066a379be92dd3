"""Files of our own: what `spanlite collect --output` and `spanlite generate --output` write.

Spans keep their ids, traces and weights. What was dropped before goes into the ledger once more.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spanlite.codec import Batch, decode_batch, is_batch
from spanlite.drafts import is_draft, is_written
from spanlite.errors import InputError, WireError
from spanlite.flags import SpanFlag
from spanlite.kinds import KIND_WORDS, SpanKind

from spanlite_collectors.importers._delimited import CutOffError, read_messages
from spanlite_collectors.importers._files import Progress, no_progress
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink


def import_batches(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one file into the sink. All of it is decoded once before anything is sent.

    Of a draft, which a killed collector left, all whole messages are taken. Raises InputError.
    """
    report = ImportReport(str(path), "spanbatch")
    count = _check(path, report)
    reader = _Reader(sink, report, options)
    for message in islice(read_messages(path, progress), count):
        reader.add(_decoded(path, message))
    reader.close()
    return report


def _check(path: Path, report: ImportReport) -> int:
    """How many messages there are."""
    probabilities = set()
    count = 0
    try:
        for message in read_messages(path):
            if not is_batch(message):
                raise InputError(f"{path}: holds messages that are no SpanBatch")
            probabilities.add(_decoded(path, message).header.sampling_probability)
            count += 1
    except CutOffError:
        if not (is_draft(path) and count):
            raise
        report.notes.append(
            f"its writer still runs: the {count} messages so far are taken"
            if is_written(path)
            else f"its writer did not finish: its {count} whole messages are taken; spans "
            "that were on their way to it are missing and counted nowhere"
        )
    for share in sorted(probabilities - {0.0, 1.0}):
        report.notes.append(
            f"head sampling kept {share:g} of the traces; import with --head-sample {share:g}, "
            "which keeps the same ones, so that weights are right"
        )
    return count


def _decoded(path: Path, message: bytes) -> Batch:
    try:
        return decode_batch(message)
    except WireError as error:
        raise InputError(f"{path}: {error}") from None


class _Reader:
    """Hands batches on and counts them."""

    def __init__(self, sink: SpanSink, report: ImportReport, options: ImportOptions) -> None:
        self._sink, self._report, self._options = sink, report, options
        self._kinds: Counter[str] = Counter()
        self._traces: list[npt.NDArray[np.uint64]] = []

    def add(self, batch: Batch) -> None:
        """Take one."""
        for drop in batch.header.drops:
            self._sink.drop(drop.reason, drop.spans)
        spans = batch.spans
        if not spans.num_rows:
            return
        start, duration = (spans.column(c).to_numpy() for c in ("start_ns", "duration_ns"))
        self._report.see_times(int(start.min()), int((start + duration).max()))
        kinds, counts = np.unique(spans.column("kind").to_numpy(), return_counts=True)
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            self._kinds[KIND_WORDS[kind] if kind < len(KIND_WORDS) else str(kind)] += count
        flags = spans.column("flags").to_numpy()
        for flag in SpanFlag:
            if count := int((flags & np.uint32(flag) != 0).sum()):
                self._report.flags[str(flag.name).lower()] += count
        ids = (spans.column(f"trace_id_{half}").to_numpy() for half in ("low", "high"))
        self._traces.append(np.unique(np.stack(list(ids), axis=1), axis=0))
        self._sink.write(spans, self._options.named(batch.resource))

    def close(self) -> None:
        """The counts."""
        for kind, count in self._kinds.items():
            self._report.kept(kind, count)
        self._report.span_kinds.update(self._kinds)
        self._report.steps = self._kinds[KIND_WORDS[SpanKind.STEP]]
        self._report.requests = self._kinds[KIND_WORDS[SpanKind.REQUEST]]
        if self._traces:
            self._report.traces = len(np.unique(np.concatenate(self._traces), axis=0))
