"""What a user sees when something is missing or wrong: one line, exit code 2."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from spanlite.archive.layout import Archive
from spanlite.cli import main
from spanlite.errors import ArchiveError, UsageError
from spanlite_pipeline import preflight
from spanlite_pipeline.config import JobConfig, flink_settings
from spanlite_pipeline.options import add_job_arguments, duration_ms, job_config, job_flags
from spanlite_pipeline.recovery import newest_checkpoint
from spanlite_stack import StackInfo


def parse(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_job_arguments(parser)
    return parser.parse_args(args)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("10s", 10_000), ("1.5m", 90_000), ("2h", 7_200_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "10", "0s", "-1s", "1 week", "s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        duration_ms(text)


def test_flags_become_a_config(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("decision_wait: 7s\npolicies:\n  - {name: all, type: always_sample}\n")
    archive = str(tmp_path / "a")
    config = job_config(
        parse("--archive", archive, "--rules", str(rules), "--buckets", "16", "-D", "a.b=c=d")
    )
    assert config.bucket.decision_wait_ms == 7000
    assert config.bucket.bucket_count == 16
    assert config.checkpoint_dir == f"{archive}/_job"
    assert flink_settings(config)["a.b"] == "c=d"
    assert preflight.make_archive(archive, 16) == 16
    # The archive's own number of buckets holds from then on.
    assert job_config(parse("--archive", archive)).bucket.bucket_count == 16
    assert job_config(parse("--archive", archive)).group == config.group
    assert job_config(parse("--archive", str(tmp_path / "b"))).group != config.group


def test_flags_can_be_handed_on(tmp_path: Path) -> None:
    args = parse("--archive", str(tmp_path), "--parallelism", "3", "-D", "a=b", "-D", "c=d")
    assert parse(*job_flags(args)) == args


def test_without_restarts_a_failure_ends_the_job() -> None:
    config = JobConfig("a", "b", "c", restart_attempts=0)
    assert flink_settings(config)["restart-strategy.type"] == "none"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--buckets", "3"], "not a power of two"),
        (["--buckets", "0"], "not a power of two"),
        (["--parallelism", "0"], "--parallelism 0"),
        (["--restarts", "-1"], "--restarts -1"),
        (["--rules", "/no/such/rules.yaml"], "/no/such/rules.yaml"),
        (["--flush-interval", "soon"], "not a duration"),
        (["-D", "novalue"], "give KEY=VALUE"),
    ],
)
def test_bad_flags(
    args: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "run", "--archive", str(tmp_path / "a"), *args]) == 2
    assert says in capsys.readouterr().err


def test_no_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    args = ["--archive", str(tmp_path / "a"), "--bootstrap", address]
    assert main(["pipeline", "run", *args]) == 2
    assert f"no Kafka broker answers at {address}" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()  # whose bucket count would be fixed


def test_one_job_an_archive(tmp_path: Path) -> None:
    archive = str(tmp_path)
    refused = pytest.raises(ArchiveError, match="another `spanlite pipeline run`")
    with preflight.only_job(archive), refused, preflight.only_job(archive):
        pass
    with preflight.only_job(archive), preflight.only_job("s3://bucket/archive"):
        pass


def test_other_bucket_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Archive.create(tmp_path / "a", 16)
    assert main(["pipeline", "run", "--archive", str(tmp_path / "a"), "--buckets", "8"]) == 2
    assert "was made with 16 buckets, not 8" in capsys.readouterr().err


def test_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["pipeline", "run", "--archive", str(tmp_path / "a")]) == 2
    assert "apt-get install openjdk-17" in capsys.readouterr().err


@pytest.mark.stack
def test_missing_topic(
    stack: StackInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--archive", str(tmp_path / "a"), "--bootstrap", stack.bootstrap]
    assert main(["pipeline", "run", *args, "--topic", "no.such.topic"]) == 2
    assert "has no topic no.such.topic" in capsys.readouterr().err


@pytest.mark.stack
def test_spans_without_a_checkpoint(
    stack: StackInfo,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Archive.create(tmp_path / "a")
    (tmp_path / "a" / "incoming" / "date=2026-12-01" / "hour=08").mkdir(parents=True)
    args = ["--archive", str(tmp_path / "a"), "--bootstrap", stack.bootstrap]
    assert main(["pipeline", "run", *args, "--topic", new_topic(1)]) == 2
    assert "--from-start" in capsys.readouterr().err


def test_the_newest_whole_checkpoint_wins(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None
    for at, name in enumerate(("job1/chk-9", "savepoints/savepoint-1", "job2/chk-1")):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "_metadata").write_bytes(b"x")
        os.utime(folder / "_metadata", ns=(at, at))
    (tmp_path / "job2" / "chk-2").mkdir()  # cut short: no _metadata
    assert newest_checkpoint(tmp_path) == tmp_path / "job2" / "chk-1"


def test_check_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("policies:\n  - {name: all, type: always_sample}\n")
    assert main(["pipeline", "check-rules", str(rules)]) == 0
    assert "all" in capsys.readouterr().out
