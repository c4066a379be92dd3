import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from spanlite_analytics.lab import frame


def test_every_tool_declares_itself() -> None:
    found = dict(frame.tools())
    parser = argparse.ArgumentParser()
    frame.add_tools(parser)
    for name, tool in found.items():
        assert tool.summary
        with pytest.raises(SystemExit) as left:
            parser.parse_args([name, "--help"])
        assert left.value.code == 0


def test_help_names_every_tool(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "--help")
    assert code == 0
    assert all(name in out for name, _ in frame.tools())


def test_a_tool_is_required(spanlite: Any) -> None:
    code, _, err = spanlite("lab")
    assert code == 2
    assert "TOOL" in err


@dataclass
class Answer:
    blocks: np.int64
    limits: np.ndarray[Any, Any]


def test_json_holds_numpy_and_dataclasses(capsys: pytest.CaptureFixture[str]) -> None:
    frame.print_json({"answer": Answer(np.int64(3), np.array([1, 2]))})
    assert json.loads(capsys.readouterr().out) == {"answer": {"blocks": 3, "limits": [1, 2]}}


def test_table_shows_what_is_missing_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    frame.print_table(("name", "value"), [("a", 1234), ("b", None), ("c", 0.5)], "title")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "title"
    assert [line.split() for line in lines[2:]] == [["a", "1,234"], ["b"], ["c", "0.5"]]


def test_json_has_no_nan_and_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    frame.print_json({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with frame.Progress("scan") as progress:
        progress.told(1, 4)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(frame, "_EVERY_S", -1.0)
    with frame.Progress("scan") as progress:
        progress.told(1, 4)
        progress.told(2, 4, "transpose")
    assert capsys.readouterr().err == "scan: 1 of 4\nscan: transpose: 2 of 4\n"
