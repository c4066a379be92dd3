"""SpanBatch and SpanLite bytes to Arrow and back."""

from spanlite.codec.batch import MAX_SPANS, SCHEMA_VERSION, Batch, is_batch, read_header
from spanlite.codec.lite import DecodedLite, decode_lite, encode_lite
from spanlite.codec.reader import BatchView, decode_batch
from spanlite.codec.writer import encode_batch

__all__ = [
    "MAX_SPANS",
    "SCHEMA_VERSION",
    "Batch",
    "BatchView",
    "DecodedLite",
    "decode_batch",
    "decode_lite",
    "encode_batch",
    "encode_lite",
    "is_batch",
    "read_header",
]
