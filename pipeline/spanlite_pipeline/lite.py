"""Messages of one span each, as batches of one span."""

from __future__ import annotations

from spanlite.codec import is_batch
from spanlite.errors import WireError


def as_batch(value: bytes, bucket_count: int) -> bytes:
    """The message as SpanBatch bytes. Raises WireError."""
    if not value:
        raise WireError("empty", "a message without a value")
    if is_batch(value):
        return value
    raise WireError("malformed", "not a SpanBatch")
