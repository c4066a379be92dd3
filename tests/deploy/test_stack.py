"""The local stack against a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from spanlite.cli import main
from spanlite.errors import ServiceError, UsageError
from spanlite_stack import Stack, _config, _process
from spanlite_stack.stack import QUICK_START

pytestmark = pytest.mark.stack


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "s", partitions=3, jvm_options=QUICK_START)
    yield stack
    stack.remove()


def processes_of(data: Path) -> list[str]:
    """Command lines, of any running process, that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(data) in text and int(path.parent.name) != os.getpid():
            found.append(text)
    return found


def send(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce("spans.raw", value)
    assert producer.flush(60) == 0


def received(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "t", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["spans.raw"])
    try:
        messages = consumer.consume(count, timeout=60)
        assert all(m.error() is None for m in messages)
        return [m.value() for m in messages]
    finally:
        consumer.close()


def test_messages_and_port_survive_a_kill(own: Stack) -> None:
    first = own.up()
    assert first.topics == {"spans.raw": 3, "spans.dead": 1}
    send(first.bootstrap, b"before")
    assert own.kill9()
    assert processes_of(own.data) == []
    second = own.up()
    assert second.bootstrap == first.bootstrap
    assert second.pid != first.pid
    send(second.bootstrap, b"after")
    assert sorted(received(second.bootstrap, 2)) == [b"after", b"before"]


def test_an_id_that_reads_as_an_option_is_drawn_anew(
    own: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One id of 64 begins with "-", and Kafka's tool took it for an option of its own."""
    draws = [uuid.UUID(bytes=bytes([first]) + bytes(15)) for first in (0xF8, 0xFB, 0xFC)]
    drawn = iter(draws)
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert own.up().running
    properties = next(own.data.rglob("meta.properties")).read_text()
    assert "cluster.id=_AAAAAAAAAAAAAAAAAAAAA" in properties


def test_up_twice_changes_nothing_and_down_leaves_no_process(own: Stack) -> None:
    first = own.up()
    assert processes_of(own.data)
    assert own.up() == first
    assert own.down()
    assert processes_of(own.data) == []
    assert not own.down()


def test_topics_take_messages_of_ten_megabytes(own: Stack) -> None:
    info = own.up()
    producer = Producer({"bootstrap.servers": info.bootstrap, "message.max.bytes": 16 << 20})
    outcome: list[object] = []
    producer.produce("spans.raw", os.urandom(10 << 20), callback=lambda e, m: outcome.append(e))
    assert producer.flush(60) == 0
    assert outcome == [None]


def test_a_stale_pid_is_not_taken_for_the_broker(own: Stack) -> None:
    info = own.up()
    own.kill9()
    # The pid lives on as somebody else: same number, another start time.
    path = own.data / "stack.json"
    state = json.loads(path.read_text())
    mine = _process.mark_of(os.getpid())
    assert mine is not None
    state["process"]["pid"] = mine.pid
    assert state["process"]["started_ticks"] != mine.started_ticks
    path.write_text(json.dumps(state))
    status = own.status()
    assert status is not None and not status.running
    assert not own.down()  # and above all does not end this very process
    assert own.up().bootstrap == info.bootstrap


def test_a_taken_port_is_replaced(own: Stack) -> None:
    port = int(own.up().bootstrap.rpartition(":")[2])
    own.kill9()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import socket; s=socket.create_server(('127.0.0.1',{port})); print('up',flush=True); "
            "s.accept()",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
        assert not _config.is_free(port)
        assert own.up().bootstrap != f"127.0.0.1:{port}"
    finally:
        holder.kill()
        holder.communicate()


def test_commands_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path / "s")]
    assert main(["stack", "status", *data]) == 1
    assert main(["stack", "down", *data]) == 0
    try:
        assert main(["stack", "up", *data, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert shown["running"] and shown["topics"]["spans.raw"] == 8
        assert main(["stack", "status", *data]) == 0
        assert shown["bootstrap"] in capsys.readouterr().out
    finally:
        assert main(["stack", "down", *data]) == 0
    assert main(["stack", "status", *data]) == 1


def test_a_broker_that_cannot_start_says_why(own: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(log_dir: Path, port: int, controller_port: int) -> str:
        whole = _config_text(log_dir, port, controller_port)
        return whole + "log.cleaner.threads=none\n"

    _config_text = _config.server_properties
    own.data.mkdir()
    (own.data / "formatted").touch()
    monkeypatch.setattr(_config, "server_properties", broken)
    with pytest.raises(ServiceError, match=r"log\.cleaner\.threads"):
        own.up()


class TestWithoutABroker:
    """What goes wrong before Kafka is reached."""

    def test_no_java(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(ServiceError, match="apt-get install openjdk-17-jre-headless"):
            Stack(tmp_path / "s").up()

    def test_no_jars(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPANLITE_KAFKA_JARS", str(tmp_path))
        with pytest.raises(ServiceError, match="make setup"):
            Stack(tmp_path / "s").up()

    def test_damaged_state(self, tmp_path: Path) -> None:
        (tmp_path / "stack.json").write_text("{")
        with pytest.raises(UsageError, match=r"stack\.json is damaged"):
            Stack(tmp_path).status()

    def test_a_file_where_the_folder_should_be(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = ["--data", str(tmp_path / "file")]
        (tmp_path / "file").write_text("")
        assert main(["stack", "up", *data]) == 2
        assert "give --data a folder" in capsys.readouterr().err
        assert main(["stack", "status", *data]) == 1
        assert main(["stack", "down", *data]) == 0

    @pytest.mark.parametrize("flags", [["--partitions", "0"], ["--heap-mb", "1"]])
    def test_bad_flags(self, flags: list[str], tmp_path: Path) -> None:
        assert main(["stack", "up", "--data", str(tmp_path), *flags]) == 2
