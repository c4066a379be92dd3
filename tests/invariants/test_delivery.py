"""Delivery's invariants D2 and D3: numbers without gaps, and nothing unaccounted for."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.codec import BatchView
from spanlite.errors import ServiceError
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.batching import Batcher
from spanlite_collectors.delivery import KafkaSink, Message, Numbering, Outbox, Spool
from spanlite_collectors.delivery.transport import Listener

COUNTER = itertools.count()


class InstantBroker:
    """Takes everything at once while it is up, and is not there while it is not."""

    def __init__(self, up: bool) -> None:
        self.up = up
        self.log: list[BatchView] = []
        self._new: list[Message] = []

    def ready(self) -> bool:
        return self.up

    def send(self, message: Message) -> None:
        self._new.append(message)

    def poll(self, listener: Listener) -> None:
        new, self._new = self._new, []
        for message in new:
            self.log.append(BatchView(message.payload))
            listener.delivered(message)

    def close(self) -> None:
        """Nothing to let go of."""


def spans(count: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    columns = []
    for field in SPAN_SCHEMA:
        if field.name in ("name", "attributes"):
            columns.append(pa.array(["a"] * count).dictionary_encode().cast(field.type))
        elif field.name == "links":
            columns.append(pa.nulls(count, field.type))
        elif field.name == "trace_id_low":
            columns.append(pa.array(rng.integers(0, 1 << 63, count).astype(np.uint64)))
        else:
            columns.append(pa.array(np.zeros(count, dtype=field.type.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)


def spooled(folder: Path) -> list[BatchView]:
    spool = Spool(folder)
    views = [BatchView(found[1]) for found in iter(spool.pop, None)]
    spool.close()
    return views


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    writes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=8),
    probability=st.sampled_from([1.0, 0.5, 0.01]),
    batch_spans=st.sampled_from([1, 7, 50, 10_000]),
    spool_bytes=st.sampled_from([1, 3000, 1 << 20]),
    up=st.booleans(),
)
def test_every_span_is_in_a_batch_or_told_as_dropped(
    tmp_path: Path,
    writes: list[tuple[int, int]],
    probability: float,
    batch_spans: int,
    spool_bytes: int,
    up: bool,
) -> None:
    folder = tmp_path / str(next(COUNTER))
    broker = InstantBroker(up)
    # A broker that is up must not look stalled because the machine was slow for a moment.
    stall_s = 600 if up else 0
    outbox = Outbox(broker, Spool(folder, max_bytes=spool_bytes), stall_s=stall_s)
    numbering = Numbering("p", 8, sampling_probability=probability)
    sink = KafkaSink(outbox, numbering, Batcher(batch_spans=batch_spans), block=False)
    written, dropped = 0, Counter[str]()
    for seed, (count, drops) in enumerate(writes):
        sink.write(spans(count, seed), {"service.name": "x"})
        sink.drop("ring_full", drops)
        written += count
        dropped["ring_full"] += drops
    # Away for good and without room: it says so, and all the same keeps its accounts.
    with nullcontext() if up else suppress(ServiceError):
        sink.close()
    stats = sink.stats()
    views = broker.log + spooled(folder)

    sent = sum(view.count for view in views)
    told = Counter[str]()
    rows: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for view in views:
        header = view.header
        assert (header.seq, header.spans_before) == rows[header.bucket]
        rows[header.bucket] = (header.seq + 1, header.spans_before + header.span_count)
        for drop in header.drops:
            told[drop.reason] += drop.spans
    counted = Counter(stats.dropped_spans)
    assert stats.received_spans == written
    assert written == sent + sum(counted.values()) - dropped["ring_full"]
    assert counted["ring_full"] == dropped["ring_full"]
    # Where not even the spool has room, the last drops are in the metrics only.
    assert told == counted or (not up and told <= counted)
