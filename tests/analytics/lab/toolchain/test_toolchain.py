"""Finding the tools, and the cache of their answers."""

import time
from pathlib import Path

import pytest
from spanlite.errors import InputError, ServiceError, UsageError
from spanlite_analytics.lab import toolchain
from spanlite_analytics.lab.toolchain import (
    CACHE_VARIABLE,
    Compiler,
    find_tool,
    has_tools,
    run_tool,
)


def a_tool(folder: Path, body: str) -> None:
    """An executable named ptxas that counts its runs."""
    path = folder / "bin" / "ptxas"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\necho ran >> {folder}/runs\n{body}\n'
    )
    path.chmod(0o755)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "_places", lambda: iter([tmp_path / "bin"]))
    return tmp_path


def test_missing_tool_names_the_extra(fake: Path) -> None:
    with pytest.raises(ServiceError, match=r"spanlite-analytics\[lab\].*CUDA_HOME"):
        find_tool("nvcc")


def test_nvcc_without_a_host_compiler_is_no_tool(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tool(fake, "true")
    (fake / "bin" / "ptxas").rename(fake / "bin" / "nvcc")
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert not has_tools("nvcc")
    with pytest.raises(ServiceError, match=r"nvcc needs g\+\+.*apt-get install g\+\+"):
        find_tool("nvcc")


def test_answers_are_kept(fake: Path) -> None:
    a_tool(fake, 'cp "$1" "$3"; echo said')
    first = run_tool("ptxas", ("{in}", "-o", "{out}"), b"text", ".ptx")
    again = run_tool("ptxas", ("{in}", "-o", "{out}"), b"text", ".ptx")
    assert first == again and first.data == b"text" and first.words.strip() == "said"
    assert (fake / "runs").read_text().count("ran") == 1
    run_tool("ptxas", ("{in}", "-o", "{out}", "-O0"), b"text", ".ptx")
    run_tool("ptxas", ("{in}", "-o", "{out}"), b"other", ".ptx")
    assert (fake / "runs").read_text().count("ran") == 3


def test_a_refusal_is_bad_input_and_not_kept(fake: Path) -> None:
    a_tool(fake, 'echo "$1: line 3: unknown" >&2; exit 1')
    for _ in range(2):
        with pytest.raises(InputError, match=r"ptxas refuses it: input\.ptx: line 3"):
            run_tool("ptxas", ("{in}",), b"text", ".ptx")
    assert (fake / "runs").read_text().count("ran") == 2


def test_what_takes_too_long_is_ended_whole(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_tool(fake, f"sleep 600 & echo $! > {fake}/child; wait")
    find_tool("ptxas")
    monkeypatch.setattr(toolchain, "TIMEOUT_S", 1.5)
    monkeypatch.setattr(toolchain, "_version", lambda tool: "1")
    with pytest.raises(ServiceError, match="did not finish"):
        run_tool("ptxas", ("{in}",), b"text", ".ptx")
    child = fake / "child"
    if child.exists():  # on a very busy machine it may not have come so far
        state = Path(f"/proc/{int(child.read_text())}/stat")
        while state.exists() and state.read_text().split()[2] != "Z":
            time.sleep(
                0.05
            )  # dies when the machine comes to it; else the test's own limit ends this


def test_architecture_is_checked() -> None:
    with pytest.raises(UsageError, match="sm_90a"):
        Compiler("hopper")


def test_words_that_are_no_text_are_told_all_the_same(fake: Path) -> None:
    a_tool(fake, "printf 'line \\377 bad' >&2; exit 1")
    with pytest.raises(InputError, match="line \ufffd bad"):
        run_tool("ptxas", ("{in}", "-o", "{out}"), b"text", ".ptx")
