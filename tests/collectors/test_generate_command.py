from __future__ import annotations

from pathlib import Path

import pytest
from spanlite.cli import main
from spanlite.codec import decode_batch
from spanlite.errors import InputError
from spanlite_collectors.importers._delimited import read_messages


def test_a_file_of_batches(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spans.bin"
    assert main([*small, "--output", str(path)]) == 0
    batches = [decode_batch(message) for message in read_messages(path)]
    spans = sum(batch.spans.num_rows for batch in batches)
    assert f"generated {spans} spans" in capsys.readouterr().out
    assert spans >= 3000
    for bucket in {batch.header.bucket for batch in batches}:
        own = [batch.header for batch in batches if batch.header.bucket == bucket]
        assert [header.seq for header in own] == list(range(len(own)))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_cut_off(small: list[str], tmp_path: Path) -> None:
    path = tmp_path / "spans.bin"
    main([*small, "--output", str(path)])
    whole = path.read_bytes()
    for size in (len(whole) - 1, 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cut off"):
            list(read_messages(path))


def test_a_dry_run_needs_no_broker(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*small, "--dry-run"]) == 0
    assert "generated" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--hosts", "0"], ["--error-share", "2"], ["--start", "yesterday"], ["--output", "/"]]
)
def test_wrong_values_are_told(
    small: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*small, *([] if "--output" in words else ["--dry-run"]), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_rate_is_kept(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("spanlite_collectors.commands.generate.time.sleep", slept.append)
    assert main([*small, "--dry-run", "--rate", "1"]) == 0
    # At one span a second, 3,000 spans are due after 50 minutes.
    assert max(slept) > 2_000
