"""`spanlite counters` but for the GPU: what the program gets, and what is said of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spanlite_collectors.commands import counters

#: Writes what the injected library would: a head, units, a row for each launch.
PROGRAM = """
import os
path, count = os.environ["SPANLITE_COUNTERS_FILE"], int(os.environ["SPANLITE_COUNTERS_LAUNCHES"])
assert os.environ["CUDA_INJECTION64_PATH"].endswith("libspanlite_counters.so")
assert os.environ["SPANLITE_COUNTERS_KERNEL"] == "gemm"
with open(path, "w") as file:
    print('"ID","Kernel Name"\\n"",""', file=file)
    for number in range(count):
        print(f'"{number}","gemm<a, ""b"">"', file=file)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "libspanlite_counters.so"
    path.touch()
    monkeypatch.setattr(counters, "library_path", lambda: path)
    return path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spanlite.cli", "counters", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def in_process(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    from spanlite.cli import main

    code = main(["counters", *map(str, words)])
    return code, capsys.readouterr().err


def test_counts_what_the_program_wrote(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "counters.csv"
    wish = ("--kernel", "gemm", "--launches", 2, "--output", out, "--")
    code, said = in_process(capfd, *wish, sys.executable, "-c", PROGRAM)
    assert (code, said) == (0, f"spanlite: 2 launches counted: {out}\n")
    assert counters.rows_in(out) == 2


@pytest.mark.parametrize(
    ("program", "expected"), [("", 1), ("raise SystemExit(7)", 7), ("import os; os.abort()", 134)]
)
def test_the_exit_code_is_the_programs(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str, expected: int
) -> None:
    out = tmp_path / "counters.csv"
    out.write_text("of a run before\n\n\n\n")
    code, said = in_process(capfd, "--output", out, "--", sys.executable, "-c", program)
    assert code == expected
    assert said.endswith(f"spanlite: 0 launches counted: {out}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--output", "{folder}/no/such.csv", "--", sys.executable), "no file can be written"),
        (("--output", "{folder}", "--", sys.executable), "no file can be written"),
        (("--output", "{folder}/a.csv", "--", "no-such-program"), "no such program"),
    ],
)
def test_what_cannot_be_is_said(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...],
    expected: str,
) -> None:  # fmt: skip
    code, said = in_process(capfd, *(word.format(folder=tmp_path) for word in words))
    assert code == 2
    assert expected in said


def test_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counters, "library_path", lambda: tmp_path / "none.so")
    code, said = in_process(capfd, "--output", tmp_path / "a.csv", "--", sys.executable)
    assert code != 0
    assert "run `make agent`" in said


@pytest.mark.parametrize("launches", ["0", "-1", "x", "10000000"])
def test_launches_are_some(launches: str, tmp_path: Path) -> None:
    done = run("--launches", launches, "--output", tmp_path / "a.csv", "--", os.devnull)
    assert done.returncode == 2
    assert "is not a number of launches" in done.stderr
