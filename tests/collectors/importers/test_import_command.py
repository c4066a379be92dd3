"""`spanlite import` as a user meets it: counts, refusals, exit codes, delivery."""

import json
from pathlib import Path

import pytest
from spanlite.cli import main
from spanlite_collectors.importers import FORMATS, detect_format

TRACE = [
    {"ph": "X", "cat": "user_annotation", "name": "step 0", "pid": 1, "tid": 1, "ts": 0, "dur": 9},
    {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
    {"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1},
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": TRACE}))
    return path


def test_a_dry_run_prints_the_counts_of_each_kind(trace, capsys):
    assert main(["import", str(trace), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "trace.json (kineto)" in out
    assert "cpu_op" in out
    assert "instant (mark)" in out
    assert "2 spans in 1 traces" in out


def test_json_is_for_machines(trace, capsys):
    assert main(["import", str(trace), "--dry-run", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["spans"] == 2
    assert report["kinds"]["instant (mark)"] == {"read": 1, "kept": 0, "used": 0, "refused": 1}
    assert report["steps"] == 1


def test_a_bad_file_does_not_stop_the_others_but_sets_the_exit_code(trace, tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    empty = tmp_path / "empty.json"
    empty.touch()
    missing = tmp_path / "missing.json"
    files = [str(path) for path in (bad, empty, missing, tmp_path, trace)]
    assert main(["import", *files, "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert "2 spans in 1 traces" in captured.out
    for path, words in ((bad, "cut off"), (empty, "empty"), (missing, "No such file"),
                        (tmp_path, "a folder")):  # fmt: skip
        assert f"{path}: " in captured.err
        assert words in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--resource", "nothing"], "KEY=VALUE"),
        (["--step", "("], "pattern"),
        (["--bootstrap", "localhost:1", "--no-spool"], "no Kafka broker answers"),
    ],
)
def test_flags_that_cannot_be_meant_are_told(trace, capsys, flags, says):
    dry = [] if "--bootstrap" in flags else ["--dry-run"]
    assert main(["import", str(trace), *dry, *flags]) == 2
    assert says in capsys.readouterr().err


def test_help_names_every_format(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["import", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in FORMATS)
    assert "every duration is 0" in out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"schemaVersion": 1,\n "traceEvents": []}', "kineto"),
        (b"\xef\xbb\xbf[ ]", "kineto"),
        (b'{"resourceSpans":[]}', "otlp"),
        (b'{"t":"clock"}\n{"t":"api"}', "cupti"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 2}\n', "requests"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "requests"),
        (b"SQLite format 3\0...", "nsys"),
        (b"\x0a\x05\x12\x03\x12\x01\x00", "otlp"),
    ],
)
def test_the_content_tells_the_format(tmp_path, content, expected):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert detect_format(path) == expected


@pytest.mark.stack
def test_imported_spans_reach_kafka(trace, stack, new_topic, capsys):
    from confluent_kafka import Consumer
    from spanlite.codec import decode_batch

    topic = new_topic(2)
    assert main(["import", str(trace), "--bootstrap", stack.bootstrap, "--topic", topic,
                 "--no-spool"]) == 0  # fmt: skip
    assert "delivered 2 spans" in capsys.readouterr().err
    consumer = Consumer(
        {"bootstrap.servers": stack.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    names = []
    for _ in range(30):
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            names += decode_batch(message.value()).spans.column("name").to_pylist()
        if len(names) == 2:
            break
    consumer.close()
    assert sorted(names) == ["a", "step 0"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_broker_is_asked_where_no_file_is_there(tmp_path, monkeypatch, capsys, flags):
    def refuse(*_: object) -> None:
        raise AssertionError("the way out was opened")

    monkeypatch.setattr("spanlite_collectors.commands.import_.open_sink", refuse)
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(["import", *files, *flags]) == 2
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        f"spanlite: {path}: No such file or directory; check the path" for path in files
    ]
    assert told.out == ("[]\n" if flags else "")


def test_where_nothing_was_begun_nothing_is_said_to_be_delivered(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert main(["import", str(bad), "--output", str(tmp_path / "out.spans")]) == 2
    assert "delivered" not in capsys.readouterr().err


def test_a_failed_import_leaves_the_output_as_it_was(tmp_path, capsys):
    bad, out = tmp_path / "bad.json", tmp_path / "out.spans.zst"
    bad.write_text('{"traceEvents": [{')
    assert main(["import", str(bad), "--output", str(out)]) == 2
    assert sorted(tmp_path.iterdir()) == [bad]
    out.write_bytes(b"before")
    assert main(["import", str(bad), "--output", str(out)]) == 2
    assert out.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_and_a_device_is_not_replaced(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    assert main(["import", str(trace), "--output", "/dev/full"]) == 2
    said = capsys.readouterr().err
    assert "'/dev/full' cannot be written: No space left on device" in said
    assert Path("/dev/full").is_char_device()
