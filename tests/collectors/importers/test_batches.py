"""Our own files: what one command writes, `spanlite import` takes, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.cli import main
from spanlite.codec import decode_batch
from spanlite.drafts import draft_of
from spanlite.errors import InputError
from spanlite_collectors.delivery.file import varint
from spanlite_collectors.importers import ImportOptions, detect_format, import_file
from spanlite_collectors.importers._delimited import CutOffError, read_messages
from spanlite_collectors.sinks import MemorySink


def table(path: Path) -> pa.Table:
    batches = [decode_batch(message).spans for message in read_messages(path)]
    rows = pa.Table.from_batches(batches).unify_dictionaries()
    texts = {name: rows[name].cast(pa.string()) for name in ("name", "attributes")}
    for name, column in texts.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows.sort_by([("trace_id_low", "ascending"), ("span_id", "ascending")])


@pytest.mark.parametrize("name", ["again.spans", "again.spans.zst"])
def test_a_file_goes_through_import_unchanged(file: Path, tmp_path: Path, name: str) -> None:
    again = tmp_path / name
    assert main(["import", str(file), "--output", str(again)]) == 0
    assert table(again).equals(table(file))
    assert detect_format(file) == detect_format(again) == "spanbatch"
    assert sorted(tmp_path.iterdir()) == sorted([file, again])
    if name.endswith(".zst"):
        assert again.stat().st_size < file.stat().st_size / 3


def test_resources_weights_and_drops_stay(file: Path, tmp_path: Path) -> None:
    first = decode_batch(next(read_messages(file)))
    sink = MemorySink()
    report = import_file(file, sink, ImportOptions(service="other", attributes={"zone": "a"}))
    assert report.format == "spanbatch" and report.spans == sink.span_count
    assert report.spans == table(file).num_rows and report.steps > 0 and report.traces > 0
    _, resource = sink.written[0]
    assert resource == {**first.resource, "service.name": "other", "zone": "a"}


def test_what_was_dropped_before_is_told_again(tmp_path: Path) -> None:
    from spanlite_collectors.batching import Batcher
    from spanlite_collectors.delivery import KafkaSink, Numbering, Outbox
    from spanlite_collectors.delivery.file import FileTransport

    path = tmp_path / "drops.spans"
    with KafkaSink(Outbox(FileTransport(path)), Numbering("me"), Batcher(), block=True) as sink:
        sink.drop("ring_full", 7)
    kept = MemorySink()
    assert import_file(path, kept).spans == 0
    assert kept.dropped == {"ring_full": 7}


def test_head_sampling_is_told(file: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.spans"
    assert main(["import", str(file), "--head-sample", "0.5", "--output", str(half)]) == 0
    (note,) = import_file(half, MemorySink()).notes
    assert "--head-sample 0.5" in note


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_damaged_file_nothing_is_sent(file: Path, tmp_path: Path, packed: bool) -> None:
    bad = tmp_path / ("bad.spans.zst" if packed else "bad.spans")
    assert main(["import", str(file), "--output", str(bad)]) == 0
    whole = bad.read_bytes()
    for size in (len(whole) - 3, len(whole) // 2):
        bad.write_bytes(whole[:size])
        sink = MemorySink()
        with pytest.raises(InputError, match=r"bad\.spans"):
            import_file(bad, sink)
        assert sink.written == []


def test_output_goes_to_one_place(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--bootstrap", "b:9092"], ["--spool", "s"]):
        assert main(["import", str(file), "--output", "x.spans", *words]) == 2
    assert main(["import", str(file), "--output", "/"]) == 2
    assert main(["import", str(file), "--output", "/nowhere/x.spans"]) == 2
    assert capsys.readouterr().err.count("\n") == 4


def messages_of(path: Path) -> list[bytes]:
    """Those before a cut."""
    found = []
    with suppress(CutOffError):
        found.extend(read_messages(path))
    return found


@pytest.mark.parametrize("suffix", ["", ".zst"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_of_what_a_killed_writer_left_all_whole_messages_are_taken(
    file: Path, suffix: str, share: float
) -> None:
    whole = file.with_name("whole.spans" + suffix)
    main(["import", str(file), "--output", str(whole)])
    data, all_messages = whole.read_bytes(), messages_of(whole)
    draft = draft_of(file.with_name("host7.spans" + suffix))
    draft.write_bytes(data[: max(5, int(share * (len(data) - 1)))])
    left = messages_of(draft)
    assert left == all_messages[: len(left)]
    sink = MemorySink()
    if not left:
        with pytest.raises(InputError):
            import_file(draft, sink)
        return
    report = import_file(draft, sink)
    assert report.spans == sum(decode_batch(message).spans.num_rows for message in left)
    # A plain file that ends between two messages looks like a whole one.
    ends_between = not suffix and draft.stat().st_size == sum(
        len(varint(len(message))) + len(message) for message in left
    )
    assert any("did not finish" in note for note in report.notes) != ends_between
    # Of a copy that was cut short nothing is taken: there is a better one.
    copy = draft.rename(file.with_name("copy.spans"))
    with pytest.raises(CutOffError, match="copy it again"):
        import_file(copy, MemorySink())


_KILLED = """
import os, signal, sys, time
from pathlib import Path
from spanlite_collectors.delivery.file import FileTransport
from spanlite_collectors.delivery.transport import Message
from spanlite_collectors.importers._delimited import CutOffError, read_messages
class Nobody:
    def delivered(self, message): pass
transport = FileTransport(Path(sys.argv[2]))
for message in read_messages(Path(sys.argv[1])):
    transport.send(Message(bucket=0, payload=message, spans=0))
    transport.poll(Nobody())
end = time.monotonic() + 1.1
while time.monotonic() < end:
    transport.poll(Nobody())
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_kill_costs_the_last_second_alone(file: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / ("host7.spans" + suffix)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(file), str(out)])
    assert done.returncode == -9 and not out.exists()
    assert messages_of(draft_of(out)) == messages_of(file)
    again = tmp_path / "again.spans"
    assert main(["import", str(draft_of(out)), "--output", str(again)]) == 0
    assert table(again).equals(table(file))
