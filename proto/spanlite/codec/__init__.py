"""SpanBatch and SpanLite bytes to Arrow and back."""

from spanlite.codec.batch import (
    MAX_SPANS,
    SCHEMA_VERSION,
    Batch,
    BatchView,
    decode_batch,
    encode_batch,
    is_batch,
    read_header,
)

__all__ = [
    "MAX_SPANS",
    "SCHEMA_VERSION",
    "Batch",
    "BatchView",
    "decode_batch",
    "encode_batch",
    "is_batch",
    "read_header",
]
