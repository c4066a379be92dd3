"""Into a file: what is told as delivered can be read, whatever becomes of process and disk."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from spanlite.cli import main
from spanlite.codec import decode_batch
from spanlite.drafts import Draft, draft_of
from spanlite.errors import InputError, ServiceError
from spanlite.v1.spanlite_pb2 import BatchHeader
from spanlite_collectors.batching import Batcher
from spanlite_collectors.delivery import KafkaSink, Numbering, Outbox
from spanlite_collectors.delivery.file import FileTransport
from spanlite_collectors.importers._delimited import read_messages


def sink_into(path: Path, **options: bool) -> KafkaSink:
    outbox = Outbox(FileTransport(path, **options))
    return KafkaSink(outbox, Numbering("p"), Batcher(batch_spans=20), block=True)


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_on_a_full_disk_every_span_that_was_taken_is_accounted_for(
    file: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / ("full" + suffix)
    path.symlink_to("/dev/full")
    sink = sink_into(path)
    with suppress(ServiceError):
        for message in read_messages(file):
            sink.write(decode_batch(message).spans, {})
    with pytest.raises(ServiceError, match=r"No space left on device; \d+ spans .* are lost"):
        sink.close(5)
    stats = sink.stats()
    assert not sink.alive
    assert stats.received_spans == stats.lost_spans > 0 == stats.delivered_spans


_FULL = """
import sys
from pathlib import Path
from spanlite.cli import main
sys.exit(main(["import", sys.argv[1], "--output", sys.argv[2]]))
"""


def test_a_full_disk_is_told_in_words_of_ours(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "full.zst"
    path.symlink_to("/dev/full")
    command = [sys.executable, "-c", _FULL, str(file), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr and "Error ignored" not in done.stderr


def test_a_daemon_replaces_no_file_and_no_draft(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "host7.spans.zst"
    draft_of(path).write_bytes(b"what a killed one left")
    said: list[str] = []
    first = FileTransport(path, keep=True, say=said.append)
    second = FileTransport(path, keep=True, say=said.append)
    assert [first.path.name, second.path.name] == ["host7.spans.1.zst", "host7.spans.2.zst"]
    first.close()
    third = FileTransport(path, keep=True, say=said.append)
    assert third.path.name == "host7.spans.3.zst"
    second.close()
    third.close()
    assert draft_of(path).read_bytes() == b"what a killed one left"
    assert len(said) == 3 and all("is there already" in text for text in said)


def test_what_is_read_is_not_written(file: Path, tmp_path: Path) -> None:
    """The nearest command for what a killed collector left must not destroy it."""
    path = tmp_path / "host7.spans"
    draft = draft_of(path)
    draft.write_bytes(file.read_bytes())
    assert main(["import", str(draft), "--output", str(path)]) == 0
    assert draft.read_bytes() == file.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(path)
    before = sum(decode_batch(message).spans.num_rows for message in read_messages(path))
    assert main(["import", str(path), "--output", str(link)]) == 0
    assert sum(decode_batch(message).spans.num_rows for message in read_messages(path)) == before


def test_a_pipe_that_nobody_reads_and_a_name_too_long(
    small: list[str], file: Path, tmp_path: Path, capsys
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe that nobody reads"):
        FileTransport(tmp_path / "pipe", keep=True)
    for command in (["import", str(file)], small):
        assert main([*command, "--output", str(tmp_path / ("b" * 300))]) == 2
        assert "ame too long" in capsys.readouterr().err


def test_a_file_that_another_process_writes_is_refused(file: Path, tmp_path: Path, capsys) -> None:
    running = Draft(tmp_path / "out")
    assert main(["import", str(file), "--output", str(tmp_path / "out")]) == 2
    assert "is being written by another process" in capsys.readouterr().err
    running.discard()


def test_no_header_has_more_drops_than_readers_take() -> None:
    numbering = Numbering("p")
    numbering.drop("ring_full", 2**55)
    told = 0
    while numbering.has_drops:
        header: BatchHeader = numbering.peek_header(0, 0)
        assert header.drops[0].spans <= 2**53
        told += header.drops[0].spans
        numbering.commit(header)
    assert told == 2**55
