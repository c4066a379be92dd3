"""Our own files: what one command writes, `spanlite import` takes, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from spanlite.cli import main
from spanlite.codec import decode_batch
from spanlite.errors import InputError
from spanlite_collectors.importers import ImportOptions, detect_format, import_file
from spanlite_collectors.importers._delimited import read_messages
from spanlite_collectors.sinks import MemorySink

SMALL = ["generate", "--spans", "3000", "--layers", "2", "--seed", "4", "--start", "2026-12-01"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Some batches, as `spanlite generate` writes them."""
    path = tmp_path / "spans.bin"
    assert main([*SMALL, "--output", str(path)]) == 0
    return path


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
