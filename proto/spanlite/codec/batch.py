"""What a batch is, and its header read alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from spanlite.bucket import MAX_BUCKETS
from spanlite.errors import WireError
from spanlite.v1 import spanlite_pb2 as pb

SCHEMA_VERSION = 1
#: A column of one value stands for all spans, so a few hostile bytes can claim any
#: count. At this limit they cost at most some 200 MB, for one message.
MAX_SPANS = 1 << 20
#: Spans that a header may speak of, before it or dropped: sums of them fit 64 bits.
MAX_COUNTED = 1 << 53
#: A weight is 1 over it.
MIN_PROBABILITY = 1e-9
PROBABILITY_RULE = f"0, or from {MIN_PROBABILITY} to 1"
#: First byte of every SpanBatch: field 1, length-delimited.
BATCH_TAG = b"\x0a"


@dataclass(frozen=True)
class Batch:
    """A whole batch: who sent it, about what, and its spans in SPAN_SCHEMA."""

    header: pb.BatchHeader
    spans: pa.RecordBatch
    resource: Mapping[str, Any] = field(default_factory=dict)


def is_batch(data: bytes) -> bool:
    """Whether the message is a SpanBatch; otherwise it must be a SpanLite."""
    return data[:1] == BATCH_TAG


def read_header(data: bytes) -> pb.BatchHeader:
    """The header alone, without touching the columns. Raises WireError."""
    if not data:
        raise WireError("empty", "a message of no bytes")
    if not is_batch(data):
        raise WireError("malformed", "not a SpanBatch: it does not start with its header")
    size, at = _varint(data, 1)
    if size > len(data) - at:
        raise WireError("malformed", f"header claims {size} bytes of {len(data) - at}")
    try:
        header = pb.BatchHeader.FromString(data[at : at + size])
    except DecodeError as error:
        raise WireError("malformed", f"header: {error}") from None
    _check_header(header)
    return header


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError("malformed", "the header's length is cut off")


def _check_header(header: pb.BatchHeader) -> None:
    if header.schema_version != SCHEMA_VERSION:
        raise WireError(
            "unsupported_version",
            f"schema version {header.schema_version}; this reader knows {SCHEMA_VERSION}",
        )
    if header.span_count > MAX_SPANS:
        raise WireError("too_large", f"{header.span_count} spans; the limit is {MAX_SPANS}")
    count = header.bucket_count
    if not 1 <= count <= MAX_BUCKETS or count & (count - 1):
        raise WireError("malformed", f"bucket count {count}")
    if header.bucket >= count:
        raise WireError("malformed", f"bucket {header.bucket} of {count}")
    drops = (("drops.spans", drop.spans) for drop in header.drops)
    for name, spans in (("spans_before", header.spans_before), *drops):
        if spans > MAX_COUNTED:
            raise WireError("malformed", f"{name} {spans}; the limit is {MAX_COUNTED}")
    probability = header.sampling_probability
    if not is_probability(probability):
        raise WireError("malformed", f"sampling_probability {probability}: {PROBABILITY_RULE}")


def is_probability(value: Any) -> Any:
    """Whether a probability, or each of an array of them, is 0 (not sampled) or can be weighed."""
    return (value == 0) | ((value >= MIN_PROBABILITY) & (value <= 1))
