"""Rings in a folder, from their beginning to their end."""

import errno
import json
import os
import resource
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from ring_writer import RingWriter, write_recording
from spanlite.errors import InputError, ServiceError, UsageError
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite_collectors.agent import reader as reader_module
from spanlite_collectors.agent import ring as ring_module
from spanlite_collectors.agent import source as source_module
from spanlite_collectors.agent.layout import HEADER, START_END, Level, RecordType
from spanlite_collectors.agent.metrics import AgentMetrics
from spanlite_collectors.agent.ring import Ring
from spanlite_collectors.agent.source import RingOptions, RingSource, folders_of
from spanlite_collectors.sinks import MemorySink

T0 = 1_796_143_900_000_000_000


class Host:
    """A folder with a source on it."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.sink, self.said = folder, MemorySink(), []
        self.options = RingOptions([folder], **options)
        self.source = self.new_source()

    def new_source(self) -> RingSource:
        return RingSource(self.sink, self.options, say=self.said.append)

    def spans(self) -> list[dict]:
        return [row for batch, _ in self.sink.written for row in batch.to_pylist()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def one_step(
    writer: RingWriter, at: int = T0, window: int = 1, covered: int = 1, call: int = 5
) -> None:
    """A step with a layer, a launch in it and the kernel, as an agent tells them."""
    name = writer.text("step:7")
    writer.write(
        RecordType.API,
        start_ns=at + 300, end_ns=at + 400, thread_id=9, correlation_id=call, call=211, domain=1,
        window=window,
    )  # fmt: skip
    writer.write(
        RecordType.RANGE,
        start_ns=at + 200, end_ns=at + 500, id=2 * call, parent_id=2 * call - 1, thread_id=9,
        name=writer.text("layer_0"), depth=1,
    )  # fmt: skip
    writer.write(
        RecordType.RANGE,
        start_ns=at, end_ns=at + 1000, id=2 * call - 1, thread_id=9, name=name,
    )  # fmt: skip
    writer.write(
        RecordType.STEP,
        start_ns=at, end_ns=at + 1000, number=7, thread_id=9, name=name, window=window,
        covered=covered,
    )  # fmt: skip
    writer.write(
        RecordType.KERNEL,
        start_ns=at + 600, end_ns=at + 650, correlation_id=call, name=writer.text("gemm"),
        stream=7, grid_x=4, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1, window=window,
    )  # fmt: skip


def close_window(writer: RingWriter, steps: int = 1, seen: int = 50, partial: int = 0) -> None:
    writer.write(
        RecordType.WINDOW,
        open_ns=T0 - 1, close_ns=T0 + 2000, window=1, steps=steps, steps_since_last=seen,
        level=Level.WINDOWS, cost_ppm=4000, partial=partial,
    )  # fmt: skip


def test_a_kernel_hangs_under_its_call_range_and_step(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    close_window(writer)
    host.source.step()
    by_kind = {row["kind"]: row for row in host.spans()}
    step, layer = by_kind[SpanKind.STEP], by_kind[SpanKind.NVTX_RANGE]
    call, kernel = by_kind[SpanKind.RUNTIME_CALL], by_kind[SpanKind.KERNEL]
    assert (kernel["name"], call["name"], layer["name"]) == ("gemm", "cudaLaunchKernel", "layer_0")
    chain = [kernel, call, layer, step]
    assert [row["parent_span_id"] for row in chain] == [row["span_id"] for row in chain[1:]] + [0]
    assert len({(row["trace_id_low"], row["trace_id_high"]) for row in chain}) == 1
    assert json.loads(kernel["attributes"]) == {"stage": "layer_0"}
    assert json.loads(step["attributes"])["capture.covered"] is True
    assert (kernel["start_ns"], kernel["duration_ns"]) == (T0 + 600, 50)
    assert (kernel["grid_x"], kernel["block_x"], kernel["stream"]) == (4, 128, 7)


def test_spans_of_a_window_carry_its_weight_level_and_cost(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    close_window(writer, steps=2, seen=50)
    host.source.step()
    resources = {
        kind: resource
        for batch, resource in host.sink.written
        for kind in batch.column("kind").to_pylist()
    }
    of_kernel = resources[SpanKind.KERNEL]
    assert of_kernel["spanlite.capture.weight"] == 25
    assert of_kernel["spanlite.capture.level"] == "windows"
    assert of_kernel["spanlite.capture.cost_ppm"] == 4000
    assert "spanlite.capture.weight" not in resources[SpanKind.STEP]  # every step is seen
    assert resources[SpanKind.STEP]["spanlite.capture.level"] == "ranges"
    assert resources[SpanKind.STEP]["spanlite.capture.cost_ppm"] == 4000
    assert of_kernel["process.executable.name"] == "server"


def test_a_step_cut_by_a_window_is_partial_and_so_are_its_kernels(host):
    writer = RingWriter(host.folder)
    one_step(writer, covered=0)
    close_window(writer, steps=0, partial=1)
    host.source.step()
    partial = {row["kind"] for row in host.spans() if row["flags"] & SpanFlag.PARTIAL}
    assert partial == {SpanKind.STEP, SpanKind.KERNEL}


def test_whole_steps_stand_for_others_and_cut_ones_for_themselves(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    one_step(writer, at=T0 + 5000, covered=0, call=6)
    close_window(writer, steps=1, seen=50, partial=1)
    host.source.step()
    weights = {
        (row["kind"], row["start_ns"] >= T0 + 5000): resource.get("spanlite.capture.weight")
        for batch, resource in host.sink.written
        for row in batch.to_pylist()
    }
    assert weights[SpanKind.KERNEL, False] == weights[SpanKind.RUNTIME_CALL, False] == 50
    assert weights[SpanKind.KERNEL, True] is weights[SpanKind.RUNTIME_CALL, True] is None


def test_what_another_library_calls_work_is_said_of_its_call(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    writer.write(RecordType.EXTERNAL, correlation_id=5, kind=3, external_id=42)
    writer.write(RecordType.EXTERNAL, correlation_id=6, kind=3, external_id=43)
    close_window(writer)
    host.source.step()
    (call,) = [row for row in host.spans() if row["kind"] == SpanKind.RUNTIME_CALL]
    assert json.loads(call["attributes"]) == {"external.kind": "custom0", "external.id": 42}


def test_a_range_of_start_and_end_is_nobodys_parent(host):
    """It overlaps the steps of its thread and need not nest."""
    writer = RingWriter(host.folder)
    one_step(writer)
    writer.write(
        RecordType.RANGE,
        start_ns=T0 - 100, end_ns=T0 + 450, id=3, thread_id=9, name=writer.text("load"),
        head_flags=START_END,
    )  # fmt: skip
    close_window(writer)
    host.source.step()
    by_name = {row["name"]: row for row in host.spans()}
    assert by_name["layer_0"]["parent_span_id"] == by_name["step:7"]["span_id"]
    assert by_name["step:7"]["parent_span_id"] == 0
    assert by_name["load"]["kind"] == SpanKind.NVTX_RANGE


def test_odd_times_are_flagged_and_not_hidden(host):
    writer = RingWriter(host.folder)
    kernel = {"correlation_id": 1, "name": writer.text("k")}
    writer.write(RecordType.KERNEL, start_ns=0, end_ns=T0, **kernel)
    writer.write(RecordType.KERNEL, start_ns=T0, end_ns=T0 - 5, **kernel)
    writer.die()
    host.source.step()
    spans = sorted(host.spans(), key=lambda row: row["start_ns"])
    flags = [SpanFlag(row["flags"]) for row in spans]
    assert SpanFlag.ZERO_TIMESTAMP in flags[0]
    assert SpanFlag.NEGATIVE_DURATION in flags[1]
    assert all(SpanFlag.ORPHAN in flag for flag in flags)
    assert spans[1]["duration_ns"] == -5


def test_a_dead_process_is_read_to_the_end_and_its_file_removed(host):
    writer = RingWriter(host.folder)
    host.source.step()
    one_step(writer)
    writer.die()
    host.source.step()
    assert len(host.spans()) == 4
    assert list(host.folder.iterdir()) == []
    assert host.source.processes() == []


def test_a_living_process_keeps_its_file(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    host.source.start()
    host.source.stop()
    assert len(host.spans()) == 4
    assert writer.path.exists()


def test_a_daemon_that_starts_anew_goes_on_and_asks_for_the_texts(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    writer.drop(0, 12)
    host.source.step()
    host.source.stop()
    assert host.sink.dropped == {"ring_full": 12}
    epoch = writer.control_word(6)
    host.source = host.new_source()
    host.source.step()
    assert writer.control_word(6) == epoch + 1
    assert host.sink.dropped == {"ring_full": 12}  # not told twice
    writer.drop(0, 15)
    host.source.step()
    assert host.sink.dropped == {"ring_full": 15}


def test_one_daemon_at_a_time_reads_a_ring(host):
    """A second one waits until the first has ended, then goes on where that was."""
    writer = RingWriter(host.folder)
    one_step(writer)
    host.source.step()
    second = Host(host.folder)
    for _ in range(3):
        second.source.step()
    assert second.source.processes() == []
    assert sum("read by another daemon" in text for text in second.said) == 1
    host.source.stop()
    one_step(writer, T0 + 10_000, call=6)
    writer.die()
    second.source.step()
    assert (len(host.spans()), len(second.spans())) == (4, 4)


def test_a_ring_that_cannot_be_opened_keeps_no_other_from_being_read(host, monkeypatch):
    bad, good = RingWriter(host.folder, pid=1), RingWriter(host.folder, pid=2)
    claim = Ring.claim

    def claimed(ring: Ring) -> bool:
        if ring.process_id == 1:
            raise RuntimeError("no one foresaw this")
        return claim(ring)

    monkeypatch.setattr(Ring, "claim", claimed)
    one_step(bad)
    one_step(good)
    good.die()
    host.source.step()
    host.source.step()
    assert len(host.spans()) == 4
    assert sum("no one foresaw this" in text for text in host.said) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, r"of the user with id \d+; run this as that user or as root"),
        (errno.EROFS, "its file system is read-only here; mount it writable"),
        (errno.EMFILE, "Too many open files"),
        (errno.EPROTO, "is not a ring of layout 1"),
    ],
)
def test_why_a_ring_cannot_be_opened(host, monkeypatch, number, words):
    writer = RingWriter(host.folder)
    monkeypatch.setattr(ring_module.library(), "spanlite_ring_open", lambda path: None)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    with pytest.raises(InputError, match=words):
        Ring(writer.path)


@contextmanager
def no_files_left():
    """The process has all the files open that it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_keeps_rings_from_being_read_may_pass(host):
    """Too many open files: told once, told by /healthz, and over as soon as there are some."""
    assert host.source.healthy  # also where it is asked for before the start
    writer = RingWriter(host.folder)
    one_step(writer)
    with no_files_left():
        host.source.start()
        wait_for(lambda: not host.source.healthy)
        time.sleep(0.6)
    wait_for(lambda: host.source.healthy)
    wait_for(lambda: host.source.processes())
    host.source.stop()
    assert len(host.spans()) == 4
    assert sum("Too many open files" in text for text in host.said) == 1
    assert sum("read again" in text for text in host.said) == 1


def test_a_ring_that_could_not_be_opened_once_is_tried_again(host, monkeypatch):
    writer = RingWriter(host.folder)
    one_step(writer)
    why = [OSError(errno.EMFILE, "Too many open files")] * 3
    describe = reader_module.describe

    def described(*args: object) -> dict:
        if why:
            raise why.pop()
        return describe(*args)

    monkeypatch.setattr("spanlite_collectors.agent.reader.describe", described)
    for _ in range(4):
        host.source.step()
    host.source.stop()
    assert len(host.spans()) == 4
    assert sum("Too many open files; trying again" in text for text in host.said) == 1
    assert not any("another daemon" in text for text in host.said)


def test_an_error_that_no_one_foresaw_does_not_end_the_thread(host, monkeypatch):
    strays = source_module.remove_strays
    bad = [RuntimeError("no one foresaw this")] * 3

    def removed(folder: Path) -> None:
        if bad:
            raise bad.pop()
        strays(folder)

    monkeypatch.setattr(source_module, "remove_strays", removed)
    writer = RingWriter(host.folder)
    one_step(writer)
    host.source.start()
    wait_for(lambda: not bad and host.source.healthy)
    host.source.stop()
    assert len(host.spans()) == 4
    assert sum("RuntimeError: no one foresaw this" in text for text in host.said) == 1


def test_a_folder_that_may_not_be_searched_is_told(host, monkeypatch):
    """A new start would not help, so /healthz asks for none; the metric says it."""
    RingWriter(host.folder)
    closed = [True]
    search = source_module.rings_in

    def rings_in(folder: Path) -> list[Path]:
        if closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return search(folder)

    monkeypatch.setattr(source_module, "rings_in", rings_in)
    registry = CollectorRegistry()
    registry.register(AgentMetrics(host.source))
    host.source.start()
    wait_for(lambda: len(host.source.troubles) == 1)
    assert host.source.healthy
    assert "spanlite_agent_reading_troubles 1.0" in generate_latest(registry).decode()
    closed.clear()
    wait_for(lambda: host.source.processes())
    host.source.stop()
    assert sum("cannot be searched for rings" in text for text in host.said) == 1


class Ended(MemorySink):
    """Delivery ends after so many spans."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, spans: pa.RecordBatch, resource: dict) -> None:
        if self.span_count >= self.most:
            raise ServiceError("delivery has stopped: the disk is full")
        super().write(spans, resource)


@pytest.mark.parametrize("how", ["running", "stopping"])
def test_when_delivery_ends_every_row_is_counted_and_rings_wait_for_another_daemon(host, how):
    host.sink = Ended(most=4 if how == "running" else 0)
    host.source = host.new_source()
    writer = RingWriter(host.folder)
    one_step(writer)
    if how == "running":
        close_window(writer)
        host.source.start()
        wait_for(lambda: host.source.account().spans == 4)
        for number in range(3):
            one_step(writer, T0 + 10_000 * number, call=7 + number)
        close_window(writer)
        wait_for(lambda: not host.source.healthy)
        one_step(writer, T0 + 90_000, call=20)
    else:
        host.source.step(flush=False)
    host.source.stop()
    account = host.source.account()
    assert account.rows == account.spans + account.dropped
    assert account.dropped == host.sink.dropped["undelivered"] > 0
    other = Host(host.folder)
    other.source.step()
    other.source.stop()
    made = 20 if how == "running" else 4
    assert len(other.spans()) + account.rows == made


def test_strays_that_cannot_be_removed_keep_no_ring_from_being_read(host, monkeypatch):
    def removed(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(source_module, "remove_strays", removed)
    writer = RingWriter(host.folder)
    one_step(writer)
    close_window(writer)
    host.source.start()
    wait_for(lambda: len(host.spans()) == 4)
    host.source.stop()


@pytest.mark.parametrize(("number", "healthy"), [(errno.EMFILE, False), (errno.EACCES, True)])
def test_a_ring_that_cannot_be_opened_is_a_trouble(host, monkeypatch, number, healthy):
    """Counted; and /healthz asks for a new start where that may help."""
    monkeypatch.setattr(ring_module.library(), "spanlite_ring_open", lambda path: None)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    host.source.start()
    wait_for(lambda: host.source.healthy)
    writer = RingWriter(host.folder)
    wait_for(lambda: host.source.troubles_now == 1)
    assert host.source.healthy == healthy
    writer.path.unlink()
    wait_for(lambda: host.source.troubles_now == 0)
    assert host.source.healthy
    host.source.stop()


@pytest.mark.parametrize("read_before", [True, False])
def test_a_ring_cut_short_is_read_as_far_as_it_is_there(host, read_before):
    writer = RingWriter(host.folder)
    if read_before:
        host.source.step()
    one_step(writer)
    os.truncate(writer.path, 4096 + writer.at + 8)
    one_step(writer, T0 + 10_000, call=6)
    writer.die()
    host.source.step()
    assert len(host.spans()) == 4
    assert [path.suffix for path in host.folder.iterdir()] == [".damaged"]
    assert host.source.damaged_rings == 1


def test_counts_of_drops_that_no_agent_makes_are_damage(host):
    """They must not reach a batch's header, which no reader would take."""
    writer = RingWriter(host.folder)
    one_step(writer)
    writer.drop(2, 2**64 - 1)
    writer.die()
    host.source.step()
    assert len(host.spans()) == 4
    assert host.sink.dropped == {}
    assert host.source.damaged_rings == 1


@pytest.mark.filterwarnings("error")
def test_noise_in_a_header_or_a_number_is_no_error(host):
    writer = RingWriter(host.folder)
    at = HEADER.fields["agent_version"][1]
    writer.map[at : at + 3] = [0xFF, 0xFE, 0xFD]
    at = HEADER.fields["executable"][1]
    writer.map[at : at + 8] = np.frombuffer(b"\x1b]0;a\x07\n/", np.uint8)
    name = writer.text("step:7")
    times = {"start_ns": T0, "end_ns": T0 + 1000, "thread_id": 9, "name": name}
    writer.write(RecordType.RANGE, id=1, **times)
    writer.write(RecordType.STEP, number=2**64 - 1, window=1, covered=1, **times)
    close_window(writer)
    writer.die()
    host.source.step()
    assert [row["kind"] for row in host.spans()] == [SpanKind.STEP]
    assert not any(ord(sign) < 32 for text in host.said for sign in text)


def test_a_folder_that_does_not_exist_yet_is_no_trouble(tmp_path):
    host = Host(tmp_path / "later")
    host.source.start()
    time.sleep(0.5)
    assert host.source.healthy and host.source.troubles_now == 0
    assert host.said == [f"{host.folder} does not exist yet; the first agent there makes it"]
    RingWriter(host.folder)
    wait_for(lambda: host.source.processes())
    host.source.stop()


def test_a_folder_that_is_given_twice_is_read_once(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    given = [str(tmp_path / "b"), str(tmp_path), str(tmp_path / "link"), f"{tmp_path}/."]
    assert folders_of(given) == [tmp_path / "b", tmp_path]
    with pytest.raises(UsageError, match="home directory"):
        folders_of(["~no-such-user/rings"])


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(UsageError, match="not a folder"):
        folders_of([str(path)])


def test_a_dead_ring_is_read_to_its_end_however_many_drains_that_takes(host):
    """Texts of 32 MiB and more: each drain has room for one."""
    writer = RingWriter(host.folder, capacity=64 << 20)
    for number in range(40):
        for part in range(17):
            writer.text(f"{number} {part} ".ljust(60_000, "."))
        name = writer.text(f"step:{number}")
        writer.write(
            RecordType.RANGE, start_ns=T0 + number, end_ns=T0 + number + 1, id=number + 1,
            thread_id=9, name=name,
        )  # fmt: skip
    writer.die()
    host.source.step()
    assert {row["name"] for row in host.spans()} == {f"step:{number}" for number in range(40)}
    assert not writer.path.exists()


@pytest.mark.parametrize("length", [0, 4096, 10_000])
def test_a_ring_cut_short_while_it_is_read_is_set_aside(host, length):
    """Its pages are gone; reading one of them without care ends the daemon by SIGBUS."""
    writer = RingWriter(host.folder)
    one_step(writer)
    host.source.step()
    os.truncate(writer.path, length)
    assert [status.pid for status in host.source.processes()] == [os.getpid()]
    host.source.capture(3)
    for _ in range(2):
        host.source.step()
    if length == 0:
        assert [path.suffix for path in host.folder.iterdir()] == [".damaged"]
    assert len(host.spans()) == 4


def test_a_ring_deleted_by_hand_needs_no_word(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    host.source.step()
    writer.path.unlink()
    writer.die()
    host.source.step()
    assert host.source.processes() == []
    assert not any("cannot be deleted" in text for text in host.said)


def test_rings_are_found_at_each_drain(host):
    """Short-lived processes come and go, and agents delete old rings."""
    host.source.step()
    RingWriter(host.folder)
    host.source.step(flush=False)
    assert len(host.source.processes()) == 1


def test_drops_reach_the_ledger_by_reason(host):
    writer = RingWriter(host.folder)
    writer.drop(1, 3)
    writer.drop(4, 2)
    host.source.step()
    assert host.sink.dropped == {"cupti_dropped": 3, "torn_record": 2}
    assert host.source.processes()[0].dropped == {"cupti_dropped": 3, "torn_record": 2}


def test_metrics_say_what_each_agent_does(host):
    writer = RingWriter(host.folder, pid=4711)
    writer.drop(0, 9)
    host.source.step()
    registry = CollectorRegistry()
    registry.register(AgentMetrics(host.source))
    text = generate_latest(registry).decode()
    assert 'spanlite_agent_dropped_records_total{pid="4711",reason="ring_full"} 9.0' in text
    assert 'spanlite_agent_steps_covered_total{pid="4711"} 0.0' in text
    assert 'spanlite_agent_detaches_total{pid="4711"} 0.0' in text
    assert 'spanlite_agent_attached{pid="4711"} 0.0' in text
    assert "spanlite_agent_damaged_rings 0.0" in text


def test_an_agent_that_records_no_kernels_is_told_once_and_has_a_series(host):
    writer = RingWriter(host.folder, pid=4711)
    registry = CollectorRegistry()
    registry.register(AgentMetrics(host.source))
    host.source.step()
    assert "spanlite_agent_disabled{" not in generate_latest(registry).decode()
    writer.disable("libcupti.so is not there")
    host.source.step()
    host.source.step()
    told = "process 4711 (/usr/bin/server): its agent records no kernels: libcupti.so is not there"
    assert host.said.count(told) == 1
    series = 'spanlite_agent_disabled{pid="4711",reason="libcupti.so is not there"} 1.0'
    assert series in generate_latest(registry).decode()


def test_a_damaged_ring_is_set_aside_and_what_came_before_it_is_kept(host):
    writer = RingWriter(host.folder)
    one_step(writer)
    writer.raw(b"\xff" * 64)
    host.source.step()
    host.source.step()
    assert len(host.spans()) == 4
    assert [path.suffix for path in host.folder.iterdir()] == [".damaged"]
    assert host.source.damaged_rings == 1
    assert any("damaged" in text for text in host.said)


def test_an_error_in_one_process_does_not_end_the_others(host, monkeypatch):
    bad, good = RingWriter(host.folder, pid=1), RingWriter(host.folder, pid=2)
    host.source.step()
    one_step(bad)
    one_step(good)
    broken = next(p for p in host.source._processes.values() if p.ring.process_id == 1)
    monkeypatch.setattr(broken.spans, "flush", lambda *_, **__: 1 / 0)
    host.source.step()
    assert len(host.spans()) == 4
    assert host.sink.dropped == {"daemon_error": 4}
    assert any("ZeroDivisionError" in text for text in host.said)
    one_step(bad, T0 + 10_000)
    host.source.step()
    host.source.stop()
    assert len(host.spans()) == 8


def test_a_file_of_another_layout_is_left_alone(host):
    writer = RingWriter(host.folder)
    writer.u32(8, 99)
    host.source.step()
    assert host.source.processes() == []
    assert writer.path.exists()


def test_level_and_slo_are_set_on_each_process_found(tmp_path):
    host = Host(tmp_path, level=Level.CONTINUOUS, step_slo_ns=50_000_000)
    writer = RingWriter(host.folder)
    host.source.step()
    assert writer.control_word(0) == Level.CONTINUOUS
    (process,) = host.source.processes()
    assert process.step_slo_ms == 50


@pytest.mark.parametrize("name", ["eager_s1", "eager_s4", "full_api_s1", "graph_node_s1"])
def test_real_recordings_lose_nothing(host, recording, name):
    records = recording(name)
    writer = RingWriter(host.folder)
    write_recording(writer, records)
    writer.die()
    host.source.step()
    table = pa.Table.from_batches([batch for batch, _ in host.sink.written])
    kinds = table.column("kind").to_pylist()
    count = {kind: sum(r["t"] == kind for r in records) for kind in ("kernel", "api", "nvtx")}
    assert kinds.count(SpanKind.KERNEL) == count["kernel"]
    calls = kinds.count(SpanKind.RUNTIME_CALL) + kinds.count(SpanKind.DRIVER_CALL)
    assert calls == count["api"]
    host_kinds = (SpanKind.NVTX_RANGE, SpanKind.STEP, SpanKind.REQUEST)
    assert sum(kinds.count(kind) for kind in host_kinds) == count["nvtx"]
    spans = table.select(["kind", "parent_span_id", "flags", "span_id"]).to_pylist()
    kernels = [row for row in spans if row["kind"] == SpanKind.KERNEL]
    calls_by_id = {
        row["span_id"]
        for row in spans
        if row["kind"] in (SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL)
    }
    assert all(row["parent_span_id"] in calls_by_id for row in kernels)
    assert len({row["span_id"] for row in spans}) == len(spans)
