"""The disk spool: order, bounds, and what a crash leaves."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
from collections import deque
from pathlib import Path

import pytest
import snappy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.errors import ServiceError
from spanlite_collectors.delivery.spool import Room, Spool, SpoolFullError

records = st.lists(st.binary(max_size=300), max_size=30)
anew = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def fresh(folder: Path, name: str = "") -> Path:
    """A folder of its own for each example."""
    number = len(list(folder.parent.iterdir()))
    return folder.parent / f"{folder.name}{name}{number}"


def drain(spool: Spool, acknowledge: bool = True) -> list[bytes]:
    out = []
    while (found := spool.pop()) is not None:
        out.append(found[1])
        if acknowledge:
            spool.done(found[0])
    return out


def reopen(spool: Spool) -> Spool:
    spool.close()
    return Spool(spool.folder)


@anew
@given(
    steps=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from(["pop", "done first", "done last", "restart"]),
        ),
        max_size=60,
    ),
    segment_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_it_is_a_queue_that_survives_restarts(
    folder: Path, steps: list[bytes | str], segment_bytes: int
) -> None:
    """Against a model: nothing undelivered is ever missing, and the order always holds."""
    path = fresh(folder)
    spool = Spool(path, segment_bytes=segment_bytes)
    unread: deque[tuple[int, bytes]] = deque()
    popped: list[tuple[int, bytes, object]] = []
    acked: set[int] = set()
    everything: list[bytes] = []
    for step in steps:
        if isinstance(step, bytes):
            spool.append(step)
            unread.append((len(everything), step))
            everything.append(step)
        elif step == "pop":
            found = spool.pop()
            assert (found is None) == (not unread)
            if found is not None:
                number, record = unread.popleft()
                assert found[1] == record
                popped.append((number, record, found[0]))
        elif step.startswith("done") and popped:
            number, _, entry = popped.pop(0 if step == "done first" else -1)
            spool.done(entry)  # type: ignore[arg-type]
            acked.add(number)
        elif step == "restart":
            # A crash differs only in what was never written: see the torn tail below.
            spool.close()
            probe = Spool(path, segment_bytes=segment_bytes)
            again = drain(probe, acknowledge=False)
            probe.close()
            must = [record for number, record in enumerate(everything) if number not in acked]
            assert is_subsequence(must, again)
            assert is_subsequence(again, everything)
            # Delivered ones may come again, so the model starts from what is there.
            spool = Spool(path, segment_bytes=segment_bytes)
            everything, acked, popped = again, set(), []
            unread = deque(enumerate(again))
    drain(spool)
    for _, _, entry in popped:
        spool.done(entry)  # type: ignore[arg-type]
    assert spool.live == 0
    assert spool.size_bytes == 0
    assert list(path.glob("*.spool")) == []
    spool.close()


def is_subsequence(part: list[bytes], whole: list[bytes]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in part)


@anew
@given(items=records.filter(bool), data=st.data())
def test_a_torn_tail_costs_only_the_torn_record(
    folder: Path, items: list[bytes], data: st.DataObject
) -> None:
    """A crash cuts the file anywhere: all whole records before the cut are there."""
    spool = Spool(fresh(folder))
    ends = []
    for item in items:
        entry = spool.append(item)
        ends.append(entry.offset + entry.size)
    path = next(spool.folder.glob("*.spool"))
    cut = data.draw(st.integers(0, ends[-1]))
    spool.close()
    os.truncate(path, cut)
    spool = Spool(spool.folder)
    whole = [item for item, end in zip(items, ends, strict=True) if end <= cut]
    assert drain(spool) == whole
    torn = cut - max([end for end in ends if end <= cut], default=0)
    assert spool.torn_bytes == torn
    assert spool.torn_records == (1 if torn else 0)
    # And it goes on after the damage.
    spool.append(b"later")
    assert drain(spool) == [b"later"]
    spool.close()


@anew
@given(items=st.lists(st.binary(max_size=80), min_size=3, max_size=8), data=st.data())
def test_a_flipped_byte_costs_one_record_and_is_counted(
    folder: Path, items: list[bytes], data: st.DataObject
) -> None:
    spool = Spool(fresh(folder))
    entries = [spool.append(item) for item in items]
    path = next(spool.folder.glob("*.spool"))
    spool.close()
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    spool = Spool(spool.folder)
    hit = next(i for i, e in enumerate(entries) if e.offset <= at < e.offset + e.size)
    out = drain(spool)
    assert out == [item for i, item in enumerate(items) if i != hit]
    assert spool.torn_records == 1
    assert spool.torn_bytes == entries[hit].size
    spool.close()


def test_a_segment_is_a_plain_snappy_framed_stream(folder: Path) -> None:
    spool = Spool(folder)
    spool.append(b"x" * 200_000)
    spool.append(b"y")
    plain = snappy.StreamDecompressor().decompress(next(folder.glob("*.spool")).read_bytes())
    assert plain == (200_000).to_bytes(4, "little") + b"x" * 200_000 + b"\1\0\0\0y"
    spool.close()


def test_old_records_come_before_new_ones(folder: Path) -> None:
    spool = Spool(folder)
    spool.append(b"1")
    spool.append(b"2", unread=False)  # on its way when the process ended
    spool = reopen(spool)
    spool.append(b"3")
    assert drain(spool) == [b"1", b"2", b"3"]
    spool.close()


def test_delivered_segments_go(folder: Path) -> None:
    spool = Spool(folder, segment_bytes=1)
    for i in range(5):
        spool.append(bytes([i]))
    assert len(list(folder.glob("*.spool"))) == 5
    entries = [found[0] for found in iter(spool.pop, None)]
    for entry in entries[:3]:
        spool.done(entry)
    spool = reopen(spool)
    assert drain(spool) == [b"\3", b"\4"]
    assert list(folder.glob("*.spool")) == []
    spool.close()


def test_a_record_that_waits_takes_a_few_bytes_of_memory(folder: Path) -> None:
    """While no broker answers the spool grows on disk, maybe for hours."""
    count = 4000
    spool = Spool(folder, segment_bytes=1 << 16)
    spool.append(b"first")
    tracemalloc.start()
    for _ in range(count):
        spool.append(b"a batch of some kind")
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spool.unread == spool.live == count + 1
    assert kept < 16 * count
    assert drain(spool) == [b"first", *[b"a batch of some kind"] * count]
    spool.close()


def test_records_on_their_way_are_left_out_wherever_they_lie(folder: Path) -> None:
    for segment_bytes in (1, 200, 1 << 20):
        spool = Spool(folder / str(segment_bytes), segment_bytes=segment_bytes)
        on_way = [spool.append(bytes([i]), unread=i % 3 != 1) for i in range(20)][1::3]
        assert spool.unread == 13
        assert drain(spool) == [bytes([i]) for i in range(20) if i % 3 != 1]
        spool.append(b"later")
        assert drain(spool) == [b"later"]
        assert spool.live == len(on_way)
        for entry in on_way:
            spool.done(entry)
        assert spool.size_bytes == 0
        spool.close()


def test_it_is_bounded(folder: Path) -> None:
    spool = Spool(folder, max_bytes=5_000)
    with pytest.raises(SpoolFullError):
        for _ in range(100):
            spool.append(os.urandom(500))
    assert 5_000 <= spool.size_bytes < 6_000
    assert not spool.has_room
    drain(spool)
    assert spool.has_room
    spool.close()


def test_a_full_disk_leaves_no_half_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(folder)
    spool.append(b"before")
    write = os.write

    def half(handle: int, data: bytes) -> int:
        write(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(SpoolFullError, match="disk"):
        spool.append(b"x" * 1000)
    monkeypatch.undo()
    spool.append(b"after")
    spool = reopen(spool)
    assert drain(spool) == [b"before", b"after"]
    assert spool.torn_records == 0
    spool.close()


def test_one_process_at_a_time(folder: Path) -> None:
    spool = Spool(folder)
    with pytest.raises(ServiceError, match="another process"):
        Spool(folder)
    spool.close()
    Spool(folder).close()


def test_a_full_disk_is_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a record fails: the sender is told to keep what there is no room for."""
    spool = Spool(folder)
    assert spool.has_room and "--spool-bytes" in spool.cure
    disk = os.statvfs(folder)
    free = [disk.f_bsize, disk.f_frsize, disk.f_blocks, 100, 100, *disk[5:]]
    monkeypatch.setattr("os.fstatvfs", lambda number: os.statvfs_result(free))
    assert not spool.has_room and "make room on the disk" in spool.cure
    assert spool.has(Room.RESERVED) and spool.has(Room.ANY)
    assert not spool.has(Room.RESERVED, 100 * disk.f_frsize)
    spool.append(b"taken already", room=Room.RESERVED)
    with pytest.raises(SpoolFullError, match="make room on the disk"):
        spool.append(b"new")
    spool.close()
