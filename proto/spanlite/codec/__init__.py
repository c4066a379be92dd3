"""SpanBatch and SpanLite bytes to Arrow and back."""

from spanlite.codec.batch import MAX_SPANS, SCHEMA_VERSION, Batch, is_batch, read_header
from spanlite.codec.reader import BatchView, decode_batch
from spanlite.codec.writer import encode_batch

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
