"""Batch headers: who sends, which number in the row, what was dropped before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from spanlite.bucket import DEFAULT_BUCKETS, check_bucket_count
from spanlite.codec.batch import MAX_COUNTED
from spanlite.v1.spanlite_pb2 import BatchHeader

#: Of one reason in one header: more no reader takes.
_MOST_DROPS = MAX_COUNTED


@dataclass
class _Row:
    seq: int = 0
    spans: int = 0


@dataclass
class Numbering:
    """Counts batches per bucket for one run of one producer.

    The job takes a `seq` that is not above the last one of its (producer, epoch, bucket)
    for a repeat. So a number is given once, and only to a batch that will be sent.
    """

    producer: str
    bucket_count: int = DEFAULT_BUCKETS
    epoch: int = field(default_factory=time.time_ns)
    #: Probability with which head sampling keeps a trace.
    sampling_probability: float = 1.0
    #: Add to the spans' times to get UTC, and how far off that may be.
    clock_offset_ns: int = 0
    clock_uncertainty_ns: int = 0
    #: What is added to it at each batch: the error of a clock that runs.
    clock_error_ns: Callable[[], int] = lambda: 0

    def __post_init__(self) -> None:
        check_bucket_count(self.bucket_count)
        self._rows: dict[int, _Row] = {}
        self._drops: Counter[str] = Counter()

    def drop(self, reason: str, spans: int) -> None:
        """Count spans for the next header."""
        if spans > 0:
            self._drops[reason] += spans

    @property
    def has_drops(self) -> bool:
        """Whether drops wait for a header to carry them."""
        return bool(self._drops)

    def peek_header(self, bucket: int, spans: int, capture_probability: float = 0.0) -> BatchHeader:
        """The header that the next batch of that bucket has, with all drops so far."""
        row = self._rows.get(bucket, _Row())
        header = BatchHeader(
            bucket=bucket,
            bucket_count=self.bucket_count,
            producer=self.producer,
            epoch=self.epoch,
            seq=row.seq,
            span_count=spans,
            spans_before=row.spans,
            created_ns=time.time_ns(),
            clock_offset_ns=self.clock_offset_ns,
            clock_uncertainty_ns=self.clock_uncertainty_ns + self.clock_error_ns(),
            sampling_probability=self.sampling_probability,
            capture_probability=capture_probability,
        )
        for reason, count in sorted(self._drops.items()):
            # What is more than the field holds goes into the next header.
            header.drops.add(reason=reason, spans=min(count, _MOST_DROPS))
        return header

    def commit(self, header: BatchHeader) -> None:
        """That batch is sent: its number and its drops are used up."""
        row = self._rows.setdefault(header.bucket, _Row())
        row.seq += 1
        row.spans += header.span_count
        for drop in header.drops:
            self._drops[drop.reason] -= drop.spans
        self._drops = +self._drops
