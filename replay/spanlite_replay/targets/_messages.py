"""The messages of a kafka replay: which spans each holds and when it is full."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.archive.convert import spans_of
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, encode_batch
from spanlite.kinds import DEVICE_KINDS, SpanKind
from spanlite.v1 import spanlite_pb2 as pb

from spanlite_replay.plan import Plan
from spanlite_replay.respan import REPLAY_ID_ATTRIBUTE, IdMap, respan

I64 = npt.NDArray[np.int64]
#: As collectors send: a batch is full at this many spans, or after this time.
BATCH_SPANS = 16_384
BATCH_NS = 1_000_000_000
_SENDER = ("resource", "clock_offset_ns", "clock_uncertainty_ns")
_GROUPS = np.array(
    [0 if kind in DEVICE_KINDS or kind == SpanKind.SYNC else 1 for kind in range(256)]
)


@dataclass(frozen=True)
class Message:
    """Spans that go out together: rows of `MessageSet.spans`, all of one bucket and sender."""

    bucket: int
    sender: int
    rows: I64  # sorted by event
    last_event: int  # position of the event that completes it


@dataclass
class MessageSet:
    """All messages of a replay, in the order in which they are completed.

    `spans` is in SPAN_SCHEMA, with the replay's ids and times; `event` (shape (spans,)) is
    the position of each span's event among the events to run.
    """

    spans: pa.RecordBatch
    event: I64
    due_ns: I64
    messages: list[Message]
    senders: list[Mapping[str, Any]]
    producer: str
    epoch: int
    bucket_count: int
    _seq: dict[int, int] = field(default_factory=dict)
    _sent: dict[int, int] = field(default_factory=dict)

    def encode(self, message: Message, rows: I64 | None = None) -> bytes:
        """The next message of its bucket; with `rows`, only these of its spans."""
        chosen = message.rows if rows is None else rows
        sender, bucket = self.senders[message.sender], message.bucket
        header = pb.BatchHeader(
            bucket=bucket,
            bucket_count=self.bucket_count,
            producer=self.producer,
            epoch=self.epoch,
            seq=self._seq.get(bucket, 0),
            created_ns=int(self.due_ns[self.event[chosen[-1]]]),
            clock_offset_ns=sender["clock_offset_ns"],
            clock_uncertainty_ns=sender["clock_uncertainty_ns"] % 2**64,
            spans_before=self._sent.get(bucket, 0),
        )
        part = self.spans.take(pa.array(chosen))
        data = encode_batch(Batch(header, part.take(pa.array(_by_track(part))), sender["resource"]))
        self._seq[bucket] = header.seq + 1
        self._sent[bucket] = header.spans_before + len(chosen)
        return data

    def rewind(self, bucket: int, seq: int, spans: int) -> None:
        """Number the bucket's next message `seq`, after `spans` spans."""
        self._seq[bucket], self._sent[bucket] = seq, spans


def make_messages(
    plan: Plan, events: I64, replay_id: str, epoch: int, bucket_count: int
) -> MessageSet:
    """Cut the spans of `events` into messages. Not encoded yet."""
    position = np.full(len(plan), -1, dtype=np.int64)
    position[events] = np.arange(len(events))
    event, row, start_ns, duration_ns = plan.span_rows(events)
    table = plan.recording.table.take(pa.array(row)).combine_chunks()
    spans = respan(spans_of(table), IdMap.of(replay_id), start_ns, duration_ns)
    sender, senders = _senders(table.select(_SENDER), replay_id)
    due_ns = plan.due_ns[events]
    at = position[event]
    messages = _cut(spans, at, due_ns, sender, bucket_count)
    return MessageSet(
        spans, at, due_ns, messages, senders, f"replay/{replay_id}", epoch, bucket_count
    )


def _cut(
    spans: pa.RecordBatch, event: I64, due_ns: I64, sender: I64, bucket_count: int
) -> list[Message]:
    if not len(event):
        return []
    low, high = (spans.column(f"trace_id_{half}").to_numpy() for half in ("low", "high"))
    bucket = bucket_of(low, high, bucket_count).astype(np.int64)
    interval = (due_ns - due_ns[0])[event] // BATCH_NS
    order = np.lexsort((event, bucket, sender, interval))
    keys = np.stack([interval[order], sender[order], bucket[order]])
    first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    messages = []
    for begin, end in zip(first, np.append(first[1:], len(order)), strict=True):
        for at in range(begin, end, BATCH_SPANS):
            rows = order[at : min(at + BATCH_SPANS, end)]
            one = rows[0]
            messages.append(Message(int(bucket[one]), int(sender[one]), rows, int(event[rows[-1]])))
    messages.sort(key=lambda message: (message.last_event, message.bucket, message.sender))
    return messages


def _senders(table: pa.Table, replay_id: str) -> tuple[I64, list[Mapping[str, Any]]]:
    """A number for each row's sender, and what the senders are."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for name in _SENDER:
        values = table.column(name).unify_dictionaries().combine_chunks()
        if not isinstance(values, pa.DictionaryArray):
            values = values.dictionary_encode()
        codes = codes * max(len(values.dictionary), 1) + values.indices.to_numpy()
        _, codes = np.unique(codes, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    senders = table.take(pa.array(first)).to_pylist()
    for sender in senders:
        resource = json.loads(sender["resource"])
        sender["resource"] = resource | {REPLAY_ID_ATTRIBUTE: replay_id}
    return codes, senders


def _by_track(spans: pa.RecordBatch) -> I64:
    """Order by kind group, device, stream, thread, start: columns stay nearly constant."""
    group = _GROUPS[spans.column("kind").to_numpy()]
    names = ("start_ns", "thread_id", "stream", "device")
    keys = [spans.column(name).to_numpy() for name in names]
    order: I64 = np.lexsort((*keys, group))
    return order


def encode_all(
    messages: MessageSet, on_progress: Callable[[int, int], None] | None = None
) -> list[bytes]:
    """Every message, in order."""
    done: list[bytes] = []
    for number, message in enumerate(messages.messages):
        done.append(messages.encode(message))
        if on_progress is not None:
            on_progress(number + 1, len(messages.messages))
    return done
