"""`spanlite archive` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.cli import main
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb


def spans(count: int) -> pa.RecordBatch:
    columns = []
    for item in SPAN_SCHEMA:
        if item.name in ("span_id", "start_ns"):
            columns.append(pa.array(np.arange(1, count + 1), item.type))
        elif pa.types.is_dictionary(item.type):
            columns.append(pa.array(["k"] * count).dictionary_encode())
        elif pa.types.is_list(item.type):
            columns.append(pa.nulls(count, item.type))
        else:
            columns.append(pa.array(np.zeros(count), item.type))
    return pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An archive with two small files in one hour of 1970."""
    archive = Archive.create(tmp_path / "archive", 1)
    for number in range(2):
        header = pb.BatchHeader(bucket_count=1, producer="p")
        builder = SpanFileBuilder()
        builder.add(BatchView(encode_batch(Batch(header, spans(10)))), np.arange(5) + 5 * number)
        for hour, data, _ in builder.finish():
            folder = archive.root / INCOMING / hour / "bucket=0"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"part-{number}.parquet").write_bytes(data)
    return archive.root


def run(root: Path, capsys: Any, *words: str) -> tuple[int, str]:
    code = main(["archive", *words, "--archive", str(root)])
    return code, capsys.readouterr().out


def test_a_life(root: Path, capsys: Any) -> None:
    code, text = run(root, capsys, "ls")
    assert code == 0
    assert "10 spans in 2 files" in text
    assert run(root, capsys, "verify") == (
        0,
        "2 files, 10 spans; the ledger has no rows for the archive\nall is well\n",
    )
    code, text = run(root, capsys, "compact", "--keep", "0s", "--json")
    report = json.loads(text)
    assert (code, report["files_in"], report["files_out"], report["removed"]) == (0, 2, 1, 2)
    code, text = run(root, capsys, "ls", "--json")
    [item] = json.loads(text)["holdings"]
    assert (item["state"], item["files"], item["rows"]) == ("compacted", 1, 10)
    code, text = run(root, capsys, "retain", "--older-than", "1d")
    assert "would drop" in text
    assert "10 rows" in text
    code, text = run(root, capsys, "retain", "--older-than", "1d", "--apply")
    assert "dropped: 1 hour, 10 rows" in text
    code, text = run(root, capsys, "ls")
    assert "0 spans in 0 files" in text


def test_no_folder_is_cut(root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    code, text = run(root, capsys, "ls")
    assert (code, "date=1970-01-01/hour=00" in text, "…" in text) == (0, True, False)


def test_one_is_one(root: Path, capsys: Any) -> None:
    next(root.rglob("part-0.parquet")).unlink()
    assert "5 spans in 1 file," in run(root, capsys, "ls")[1]
    assert run(root, capsys, "verify")[1].startswith("1 file, 5 spans;")
    assert "1 file to 1 in 1 hour, 5 spans" in run(root, capsys, "compact", "--keep", "0s")[1]


def test_verify_says_what_is_wrong(root: Path, capsys: Any) -> None:
    path = next(root.rglob("part-0.parquet"))
    path.write_bytes(b"not parquet")
    code, text = run(root, capsys, "verify")
    assert code == 1
    assert "part-0.parquet" in text


def test_no_archive(tmp_path: Path, capsys: Any) -> None:
    assert main(["archive", "ls", "--archive", str(tmp_path)]) == 2
    assert "is not a SpanLite archive" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["archive", "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out
