"""The published fields keep their numbers and types, and the tool that guards it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from spanlite.codec import is_batch
from spanlite.kinds import CopyKind, SpanKind, SpanStatus
from spanlite.v1 import spanlite_pb2 as pb

ROOT = Path(__file__).parents[2]
PROTO = "spanlite/v1/spanlite.proto"
#: What producers outside of this repository were promised.
PUBLISHED = {
    "trace_id": (1, FieldDescriptor.TYPE_UINT64),
    "span_id": (2, FieldDescriptor.TYPE_UINT64),
    "start_time_ms": (3, FieldDescriptor.TYPE_INT64),
    "duration_ms": (4, FieldDescriptor.TYPE_INT32),
    "service": (5, FieldDescriptor.TYPE_STRING),
}


def test_the_five_published_fields() -> None:
    fields = pb.SpanLite.DESCRIPTOR.fields_by_name
    assert {name: (fields[name].number, fields[name].type) for name in PUBLISHED} == PUBLISHED
    # None is repeated: each has a single value by default.
    assert [getattr(pb.SpanLite(), name) for name in PUBLISHED] == [0, 0, 0, 0, ""]


def test_the_first_byte_tells_the_two_messages_apart() -> None:
    """Field 1 is a message in SpanBatch and a number in SpanLite; both come first."""
    assert pb.SpanBatch.DESCRIPTOR.fields_by_name["header"].number == 1
    assert is_batch(pb.SpanBatch(header=pb.BatchHeader(seq=1), strings=["a"]).SerializeToString())
    every = pb.SpanLite(span_id=1, name="a", links=[pb.SpanLink()], host="h")
    assert not is_batch(every.SerializeToString())
    # No field of a SpanLite can start with that byte: its field 1 is no message.
    tag = pb.SpanLite.DESCRIPTOR.fields_by_number[1]
    assert tag.type != FieldDescriptor.TYPE_MESSAGE


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (SpanKind, pb.SpanKind, "SPAN_KIND_"),
        (CopyKind, pb.CopyKind, "COPY_KIND_"),
        (SpanStatus, pb.SpanStatus, "SPAN_STATUS_"),
    ],
)
def test_enumerations_agree(ours: type, theirs: object, prefix: str) -> None:
    on_wire = {name.removeprefix(prefix): value for name, value in theirs.items()}  # type: ignore[attr-defined]
    in_code = {item.name: item.value for item in ours}  # type: ignore[attr-defined]
    # OpenTelemetry calls the status that nobody set UNSET.
    if ours is SpanStatus:
        on_wire["UNSET"] = on_wire.pop("UNSPECIFIED")
    assert in_code == on_wire


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("uint64 trace_id = 1;", "uint32 trace_id = 1;"),
        ("uint64 span_id = 2;", "uint64 span_id = 60;"),
        ("string service = 5;", ""),
        ("repeated sint64 start_delta = 19;", "repeated int64 start_delta = 19;"),
    ],
)
def test_the_guard_sees_a_broken_promise(tmp_path: Path, before: str, after: str) -> None:
    buf = Path(sys.executable).with_name("buf")
    if not buf.exists():
        pytest.skip("buf (PyPI buf-bin, in the dev group) is not installed")
    text = (ROOT / "proto" / PROTO).read_text()
    assert text.count(before) == 1
    copy = tmp_path / PROTO
    copy.parent.mkdir(parents=True)
    copy.write_text(text.replace(before, after))
    (tmp_path / "buf.yaml").write_text((ROOT / "proto/buf.yaml").read_text())
    command = [buf, "breaking", tmp_path, "--against", ROOT / "proto/baseline.binpb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 100, done.stdout + done.stderr
    copy.write_text(text)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
