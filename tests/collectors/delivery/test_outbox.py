"""The invariant of delivery: no message of a bucket is overtaken, whatever fails.

The transport here is a model of what Kafka may do: deliver late, deliver and lose the
acknowledgement, stop and start over. Real brokers are in test_broker_away.py.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.codec import Batch, encode_batch, read_header
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.delivery.numbering import Numbering
from spanlite_collectors.delivery.outbox import Outbox
from spanlite_collectors.delivery.spool import DEFAULT_SPOOL_BYTES, Spool
from spanlite_collectors.delivery.transport import Listener, Message

NO_SPANS = pa.RecordBatch.from_pylist([], SPAN_SCHEMA)


class Broker:
    """What has arrived, in order, by bucket."""

    def __init__(self) -> None:
        self.log: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def take(self, message: Message) -> None:
        header = read_header(message.payload)
        self.log[header.bucket].append((header.epoch, header.seq))

    def kept(self) -> dict[int, list[tuple[int, int]]]:
        """What the job keeps: it takes a seq not above the last of its epoch for a repeat."""
        out: dict[int, list[tuple[int, int]]] = {}
        for bucket, log in self.log.items():
            last: dict[int, int] = {}
            for epoch, seq in log:
                if seq > last.get(epoch, -1):
                    last[epoch] = seq
                    out.setdefault(bucket, []).append((epoch, seq))
        return out


class ModelTransport:
    """Keeps the order of each bucket, as one producer does; may fail in between."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.up = broker, True
        self.queues: dict[int, list[Message]] = defaultdict(list)
        self.acks: list[Message] = []
        self.restart = False

    def ready(self) -> bool:
        return self.up

    def send(self, message: Message) -> None:
        if not self.restart:
            self.queues[message.bucket].append(message)

    def arrive(self, bucket: int) -> None:
        """The broker takes the oldest message of the bucket; its answer is on the way."""
        if self.queues[bucket]:
            message = self.queues[bucket].pop(0)
            self.broker.take(message)
            self.acks.append(message)

    def fail(self) -> None:
        """The producer stops: answers on the way are lost, and so is its queue."""
        self.queues.clear()
        self.acks.clear()
        self.restart = True

    def poll(self, listener: Listener) -> None:
        acks, self.acks = self.acks, []
        for message in acks:
            listener.delivered(message)
        if self.restart:
            self.restart = False
            listener.restarted()

    def close(self) -> None:
        self.queues.clear()


class Rig:
    """An outbox over a model broker and a real spool, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder, self.broker = 0.0, folder, Broker()
        self.put_order: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.epoch = 0
        self.start()

    def start(self) -> None:
        self.epoch += 1
        self.numbering = Numbering("test", 4, epoch=self.epoch)
        self.transport = ModelTransport(self.broker)
        self.spool = Spool(self.folder, segment_bytes=400)
        self.outbox = Outbox(
            self.transport, self.spool, window_bytes=600, stall_s=5, clock=lambda: self.now
        )

    def put(self, bucket: int) -> None:
        if not self.outbox.has_room():
            return
        header = self.numbering.peek_header(bucket, 0)
        self.numbering.commit(header)
        payload = encode_batch(Batch(header, NO_SPANS))
        self.outbox.put(Message(bucket, 0, payload))
        self.put_order[bucket].append((self.epoch, header.seq))

    def settle(self) -> None:
        """All is well again: everything arrives."""
        self.transport.up = True
        for _ in range(10_000):
            for bucket in list(self.transport.queues):
                self.transport.arrive(bucket)
            self.outbox.step()
            if self.outbox.idle:
                return
        raise AssertionError("it never becomes idle")

    def check(self) -> None:
        assert self.broker.kept() == {b: log for b, log in self.put_order.items() if log}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2)),
        st.tuples(st.just("arrive"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["step", "wait", "fail", "down", "up", "restart"]), st.just(0)),
    ),
    max_size=80,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps)
def test_nothing_is_lost_or_overtaken(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    rig = Rig(tmp_path / str(len(list(tmp_path.iterdir()))))
    for step, bucket in steps:
        if step == "put":
            rig.put(bucket)
        elif step == "arrive":
            rig.transport.arrive(bucket)
        elif step == "step":
            rig.outbox.step()
        elif step == "wait":
            rig.now += 3
            rig.outbox.step()
        elif step == "fail":
            rig.transport.fail()
        elif step == "restart":
            # An orderly end: what is on its way goes to disk, a new run takes over.
            rig.outbox.spool_all()
            rig.outbox.close()
            rig.start()
        else:
            rig.transport.up = step == "up"
    rig.settle()
    rig.check()
    rig.outbox.close()


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps, crash_at=st.integers(0, 80))
def test_a_killed_process_loses_only_what_was_in_memory(
    tmp_path: Path, steps: list[tuple[str, int]], crash_at: int
) -> None:
    """What the spool took is delivered by the next run, in order, whatever arrived before."""
    rig = Rig(tmp_path / str(len(list(tmp_path.iterdir()))))
    for step, bucket in steps[:crash_at]:
        if step == "put":
            rig.put(bucket)
        elif step == "arrive":
            rig.transport.arrive(bucket)
        elif step in ("step", "wait"):
            rig.now += 3 * (step == "wait")
            rig.outbox.step()
    undelivered = rig.spool.live
    rig.spool.close()  # the kernel lets go of the lock of a killed process
    rig.start()
    assert rig.spool.unread >= undelivered
    rig.settle()
    for bucket, log in rig.broker.kept().items():
        assert log == sorted(log)
        assert set(log) <= set(rig.put_order[bucket])
    rig.outbox.close()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "spool")


def test_a_quiet_broker_sends_new_messages_to_disk(rig: Rig) -> None:
    rig.put(0)
    rig.outbox.step()
    assert not rig.outbox.spooling
    rig.now += 5
    rig.outbox.step()
    assert rig.outbox.spooling
    # The one on its way is on disk too, should this process be killed now.
    assert rig.spool.live == 1
    rig.put(0)
    assert rig.spool.live == 2
    assert rig.outbox.counts.spooled_messages == 2
    rig.settle()
    assert not rig.outbox.spooling
    assert rig.spool.live == 0
    rig.check()


def test_new_messages_wait_for_the_spool(rig: Rig) -> None:
    for _ in range(3):
        rig.put(0)
    rig.now += 5
    rig.outbox.step()
    for _ in range(30):
        rig.put(0)
    rig.transport.arrive(0)
    rig.outbox.step()  # the broker is back, the window is full again from the spool
    assert rig.outbox.spooling
    rig.put(0)
    assert rig.broker.log[0] == [(1, 0)]
    rig.settle()
    rig.check()


def test_memory_is_bounded(rig: Rig) -> None:
    while rig.outbox.has_room():
        rig.put(0)
    _, size = rig.outbox.on_way
    assert 600 <= size < 700


def test_without_a_spool_it_fills_up_and_goes_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "unused")
    rig.outbox = Outbox(rig.transport, None, window_bytes=600, clock=lambda: rig.now)
    while rig.outbox.has_room():
        rig.put(1)
    rig.now += 60
    rig.outbox.step()
    assert not rig.outbox.has_room() and rig.outbox.stalled
    rig.settle()
    assert rig.outbox.has_room() and not rig.outbox.stalled
    rig.check()
    rig.spool.close()


def test_a_broker_just_found_away_is_no_reason_to_refuse_where_the_spool_has_room(
    rig: Rig,
) -> None:
    """Also before the next step goes over to the spool: senders would be told 503 meanwhile."""
    rig.transport.up = False
    assert not rig.outbox.overloaded(0)
    rig.now += 5
    assert rig.outbox.stalled and not rig.outbox.spooling
    assert not rig.outbox.overloaded(0)
    assert rig.outbox.overloaded(DEFAULT_SPOOL_BYTES)  # what was taken would fill it
    rig.outbox.step()
    assert rig.outbox.spooling and not rig.outbox.overloaded(0)


def test_a_record_that_is_no_batch_is_skipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append(b"not a batch")
    spool.close()
    rig = Rig(tmp_path / "spool")
    rig.put(0)
    rig.settle()
    assert rig.outbox.counts.rejected_messages == 1
    rig.check()
    rig.outbox.close()
