"""What one daemon learned of a process, the next one knows."""

import fcntl
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_writer import RingWriter, string_record
from spanlite_collectors.agent.graphs import GraphStages
from spanlite_collectors.agent.known import STAGES, TEXTS, Known, remove_strays
from spanlite_collectors.agent.layout import RecordType
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.agent.string_table import StringTable
from spanlite_collectors.sinks import MemorySink

T0 = 1_796_143_900_000_000_000


class Daemons:
    """One after the other, on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, []
        self.begin()

    def kill(self) -> None:
        """The end of its process closes its files."""
        for process in self.source._processes.values():
            process.ring.close()

    def begin(self) -> None:
        """Another one."""
        self.sink = MemorySink()
        options = RingOptions([self.folder])
        self.source = RingSource(self.sink, options, say=self.said.append)

    def names(self) -> set[str]:
        """Of the spans that this one wrote."""
        self.source.stop()
        return {row["name"] for batch, _ in self.sink.written for row in batch.to_pylist()}


@pytest.fixture
def daemons(tmp_path: Path) -> Daemons:
    return Daemons(tmp_path)


def work(writer: RingWriter, at: int) -> None:
    """A range that ends, and a kernel."""
    writer.write(RecordType.RANGE, start_ns=at, end_ns=at + 900, id=at, thread_id=9,
                 name=writer.text("request:7"))  # fmt: skip
    writer.write(RecordType.KERNEL, start_ns=at + 100, end_ns=at + 200, name=writer.text("gemm"))


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("dies", [False, True])
def test_names_come_back_that_the_agent_sent_to_an_earlier_daemon(
    daemons: Daemons, end: str, dies: bool
) -> None:
    """Also of work that was recorded while there was none, and of a process that has died since."""
    writer = RingWriter(daemons.folder)
    work(writer, T0)
    daemons.source.step()
    daemons.source.stop() if end == "stopped" else daemons.kill()
    work(writer, T0 + 1000)  # its texts are not sent again
    if dies:
        writer.die()
    daemons.begin()
    daemons.source.step()
    assert daemons.names() == {"request:7", "gemm"}
    left = {path.name for path in daemons.folder.iterdir()}
    assert left == (set() if dies else {writer.path.name, writer.path.name + TEXTS})


def test_names_survive_several_daemons_and_texts_that_begin_anew(daemons: Daemons) -> None:
    writer = RingWriter(daemons.folder)
    work(writer, T0)
    for number in range(1, 4):
        daemons.source.step()
        writer.forget()
        daemons.kill()
        daemons.begin()
        daemons.source.step()
        writer.write(RecordType.KERNEL, start_ns=T0, end_ns=T0 + 1, name=writer.text(f"k{number}"))
    writer.write(RecordType.KERNEL, start_ns=T0, end_ns=T0 + 1, name=2)
    assert daemons.names() == {"gemm", "k3"}


def test_the_file_of_texts_does_not_grow_without_end(daemons: Daemons) -> None:
    writer = RingWriter(daemons.folder, capacity=1 << 22)
    for number in range(40_000):
        if number % 2_000 == 0:
            writer.forget()
            daemons.source.step()
        writer.text(f"step:{number}" + "x" * 40)
    daemons.source.step()
    assert (daemons.folder / (writer.path.name + TEXTS)).stat().st_size < 1_200_000


KEYS = np.arange(1, 21, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_stages_of_graphs_are_known_again() -> None:
    first, second = GraphStages(), GraphStages()
    first.learn(KEYS, [f"layer_{i // 5}/attention" for i in range(20)])
    copies = [i in (0, 7) for i in range(12)]
    first.learn_capture([f"layer_{i // 6}/FFN" for i in range(12)], copies)
    second.restore(first.state())
    assert second.state() == first.state()
    for graph, keys in enumerate((KEYS[3:15], KEYS[::2])):
        nodes = np.arange(len(keys), dtype=np.uint64)
        for stages in (first, second):
            stages.match(graph, nodes, keys)
        assert second.stages_of(graph, nodes) == first.stages_of(graph, nodes)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"stages": 7}',
    '{"stages": ["a"], "eager": [["0011", [0]]], "captured": []}',
    '{"stages": [], "eager": [], "captured": [[[0, 0, 0, 0], [0, 0, 0, 0]]]}',
    '{"stages": ["a"], "eager": [], "captured": [[[0, 0, 0, 0], [0]]]}',
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_as_good_as_none(daemons: Daemons, text: str) -> None:
    writer = RingWriter(daemons.folder)
    work(writer, T0)
    daemons.source.step()
    path = daemons.folder / (writer.path.name + STAGES)
    path.write_text(text)
    daemons.kill()
    daemons.begin()
    daemons.source.step()
    work(writer, T0 + 1000)
    assert daemons.names() == {"request:7", "gemm"}
    assert not any("Error" in text for text in daemons.said)


@given(st.lists(st.text(max_size=20), max_size=8), st.integers(0, 400))
def test_a_table_reads_what_it_writes_however_short(texts: list[str], cut: int) -> None:
    """A daemon can be killed while it writes: what is whole counts."""
    texts = [text.encode(errors="replace").decode() for text in texts]
    table, again = StringTable(), StringTable()
    raw = b"".join(string_record(number + 1, text) for number, text in enumerate(texts))
    table.take(raw)
    again.take(table.records()[: len(raw) - min(cut, len(raw))])
    for number, text in enumerate(texts):
        assert table.text(number + 1) == text
        assert again.text(number + 1) in (text, "")
    if not cut:
        assert again.records() == table.records()


def test_only_files_of_our_own_are_read_or_written(tmp_path: Path) -> None:
    """Any user may write into the folder."""
    said: list[str] = []
    ring, target = tmp_path / "1-2.ring", tmp_path / "elsewhere"
    target.write_bytes(b"secret")
    (tmp_path / ("1-2.ring" + TEXTS)).symlink_to(target)
    os.mkfifo(tmp_path / ("1-2.ring" + STAGES))
    known = Known(ring, said.append)
    assert (known.texts(), known.stages()) == (b"", None)
    known.add_texts(b"more")
    known.add_texts(b"more")
    assert target.read_bytes() == b"secret"
    assert len(said) == 1 and "would lack names" in said[0]
    again = Known(ring)
    again.put_texts(b"all")
    assert (again.texts(), target.read_bytes()) == (b"all", b"secret")
    mode = (tmp_path / ("1-2.ring" + TEXTS)).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_folders_in_their_place_keep_no_ring_from_being_read(daemons: Daemons) -> None:
    writer = RingWriter(daemons.folder)
    for suffix in (TEXTS, STAGES):
        (daemons.folder / (writer.path.name + suffix)).mkdir()
    for at in (T0, T0 + 1000):
        work(writer, at)
        daemons.source.step()
        daemons.kill()
        daemons.begin()
    writer.text("other")
    daemons.source.step()
    assert not list(daemons.folder.glob("*.draft"))
    assert sum("would lack names" in text for text in daemons.said) == 3  # once a daemon


def test_another_users_file_is_let_be(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    known = Known(tmp_path / "1-2.ring")
    known.add_texts(b"theirs")
    os.chown(tmp_path / ("1-2.ring" + TEXTS), 12345, -1)
    known.add_texts(b"ours")
    assert known.texts() == b""
    assert (tmp_path / ("1-2.ring" + TEXTS)).read_bytes() == b"theirs"


def test_what_could_not_be_kept_is_kept_later(daemons: Daemons) -> None:
    """A full disk passes; the daemon after this one has every name all the same."""
    writer = RingWriter(daemons.folder)
    in_the_way = daemons.folder / (writer.path.name + TEXTS)
    in_the_way.mkdir()
    work(writer, T0)
    for _ in range(3):
        daemons.source.step()
    in_the_way.rmdir()
    daemons.source.step()
    writer.text("later")
    daemons.source.step()
    daemons.kill()
    work(writer, T0 + 1000)
    writer.write(RecordType.KERNEL, start_ns=T0, end_ns=T0 + 1, name=writer.text("later"))
    daemons.begin()
    daemons.source.step()
    assert daemons.names() == {"request:7", "gemm", "later"}
    assert sum("would lack names" in text for text in daemons.said) == 1


@pytest.mark.parametrize(
    ("age_s", "held", "stays"), [(0, False, True), (120, True, True), (120, False, False)]
)
def test_rings_that_were_never_finished_are_deleted(
    tmp_path: Path, age_s: int, held: bool, stays: bool
) -> None:
    """Of processes killed while they made one; not of one that is at it."""
    path = tmp_path / "1-2.ring.new"
    with path.open("wb") as file:
        if held:
            fcntl.flock(file, fcntl.LOCK_SH)
        then = time.time() - age_s
        os.utime(path, (then, then))
        remove_strays(tmp_path)
    assert path.exists() == stays


def test_what_is_left_of_a_ring_that_is_gone_is_deleted(tmp_path: Path) -> None:
    here, gone = Known(tmp_path / "1-1.ring"), Known(tmp_path / "2-2.ring")
    (tmp_path / "1-1.ring").touch()
    (tmp_path / ("2-2.ring" + TEXTS + ".draft")).touch()  # of a daemon that was killed
    for known in (here, gone):
        known.add_texts(b"x")
        known.put_stages({})
    remove_strays(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "1-1.ring", "1-1.ring" + TEXTS, "1-1.ring" + STAGES,
    }  # fmt: skip
