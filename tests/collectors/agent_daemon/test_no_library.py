"""`spanlite collect` where the ring library was not built: it says so, or refuses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from spanlite.cli import main
from spanlite.errors import ServiceError
from spanlite_collectors.agent import ring
from spanlite_collectors.commands.gpu_host import GpuHost, add_gpu_arguments
from spanlite_collectors.sinks import MemorySink


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(ring.LIBRARY_VARIABLE, str(tmp_path / "libspanlite_ring.so"))
    ring.library.cache_clear()
    yield
    ring.library.cache_clear()


def host(*flags: str) -> tuple[GpuHost, list[str]]:
    parser = argparse.ArgumentParser()
    add_gpu_arguments(parser)
    said: list[str] = []
    args = parser.parse_args(["--no-nvml", *flags])
    return GpuHost(args, MemorySink(), CollectorRegistry(), said.append), said


def test_it_says_what_is_missing_and_what_to_do() -> None:
    gpu, said = host()
    assert gpu.sources == []
    (line,) = said
    for words in ("not read", "libspanlite_ring.so", "make agent", "--no-agent"):
        assert words in line


def test_it_is_silent_where_nobody_wants_rings() -> None:
    assert host("--no-agent")[1] == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--agent-dir", "rings"),
        ("--level", "ranges"),
        ("--queue-page", "http://127.0.0.1:1/metrics"),
        ("--queue-metric", "waiting"),
    ],
    ids=lambda flags: flags[0],
)
def test_who_asks_for_rings_is_refused(flags: tuple[str, str]) -> None:
    with pytest.raises(ServiceError, match="make agent"):
        host(*flags)


def test_capture_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Not that there is no process with an agent."""
    assert main(["capture", "--list", "--agent-dir", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "make agent" in told.err and told.out == ""


def test_the_command_ends_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ports = ("--otlp-port", "0", "--metrics-port", "0")
    spool = ("--no-spool", "--output", str(tmp_path / "spans.bin"))
    assert main(["collect", *ports, *spool, "--no-nvml", "--level", "ranges"]) == 2
    assert "make agent" in capsys.readouterr().err
