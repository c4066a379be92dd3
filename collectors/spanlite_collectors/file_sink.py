"""FileSink: batches into a file, as they would go to Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from spanlite.codec import Batch, encode_batch
from spanlite.drafts import Draft
from spanlite.errors import InputError

from spanlite_collectors.batching import Batcher, Ready, hashes_of, split_by_bucket
from spanlite_collectors.delivery.file import varint
from spanlite_collectors.delivery.numbering import Numbering


class FileSink:
    """A SpanSink that writes SpanBatch messages, each after its length as a varint.

    That is protobuf's delimited form. Numbers and batch sizes are those of delivery. A
    reader sees the file only when `close` has put it in its place.
    """

    def __init__(self, path: Path, numbering: Numbering, batch_spans: int) -> None:
        self.messages = self.bytes = self.spans = 0
        self._numbering = numbering
        self._batcher = Batcher(batch_spans=batch_spans)
        try:
            self._draft = Draft(path)
            self._file = self._draft.path.open("wb")
        except OSError as error:
            raise InputError(f"'{path}' cannot be written: {error.strerror}") from None

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Take spans of one resource."""
        mask = np.uint64(self._numbering.bucket_count - 1)
        buckets = (hashes_of(spans) & mask).astype(np.int64)
        for bucket, rows in split_by_bucket(spans, buckets):
            self._batcher.add(bucket, rows, resource)
        self._write_all(self._batcher.take_full())

    def drop(self, reason: str, spans: int) -> None:
        """Count spans for the next header."""
        self._numbering.drop(reason, spans)

    def flush(self) -> None:
        """Write all that is pending."""
        self._write_all(self._batcher.take_all())
        self._file.flush()

    def close(self) -> None:
        """Write the rest and put the file in its place."""
        self.flush()
        self._file.close()
        self._draft.put()

    def __enter__(self) -> Self:
        """The sink."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; after an error leave no file."""
        if error is None:
            self.close()
        else:
            self._file.close()
            self._draft.discard()

    def _write_all(self, batches: Iterable[Ready]) -> None:
        for ready in batches:
            header = self._numbering.peek_header(ready.bucket, ready.spans.num_rows)
            payload = encode_batch(Batch(header, ready.spans, ready.resource))
            self._numbering.commit(header)
            self._file.write(varint(len(payload)) + payload)
            self.messages += 1
            self.spans += ready.spans.num_rows
            self.bytes += len(payload)
