"""Columns to Parquet pages.

Why not leave it to pyarrow: it takes 8 ns for every null and 35 ns for every value of a
half-empty column, and most of a span's 41 columns are constant, empty or small
dictionaries, which numpy lays out in next to no time. Dictionary indexes are written 8 or
16 bits wide rather than as few bits as they need: zstd then sees the repetition of layers
and steps as repeating bytes, and files get smaller. Numbers are still encoded by pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spanlite.archive import _thrift as thrift
from spanlite.archive._columns import Array, Mask, is_constant
from spanlite.archive._thrift import read_varint, skip_struct, varint

PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
UNCOMPRESSED, ZSTD = 0, 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
#: Newer pyarrow begins a page every 20,000 rows unless told otherwise; older ones know no limit.
_ONE_PAGE = (
    {"max_rows_per_page": 1 << 30}
    if "max_rows_per_page" in signature(pq.ParquetWriter.__init__).parameters
    else {}
)
#: Below this many bytes a page is not worth a compressor's start-up.
_SMALL_BYTES = 64


@dataclass(frozen=True)
class Pages:
    """The pages of one column chunk, and what the footer must say about them."""

    data: bytes
    codec: int
    encodings: tuple[int, ...]
    dictionary_bytes: int  # where the data page starts; 0: no dictionary page
    plain_bytes: int  # size of all pages before compression, with their headers
    values: int


def run(value: int, count: int) -> bytes:
    """`count` times a value of up to 8 bits, run-length encoded."""
    return varint(count << 1) + bytes([value])


def packed(values: Array, bits: int) -> bytes:
    """Values of 1, 2, 8, 16 or 32 bits as one bit-packed run, padded to a multiple of 8."""
    groups = -(-len(values) // 8)
    head = varint(groups << 1 | 1)
    if bits >= 8:
        out = np.zeros(groups * 8, dtype=f"<u{bits // 8}")
        out[: len(values)] = values
        return head + bytes(out.data)
    if bits == 1:
        return head + np.packbits(values.astype(bool), bitorder="little").tobytes()
    padded = np.zeros(groups * 8, dtype=np.uint8)
    padded[: len(values)] = values
    quads = padded.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)
    return head + bytes(np.bitwise_or.reduce(quads, axis=1).data)


def levels(body: bytes) -> bytes:
    """Definition or repetition levels as they stand in a version 1 data page."""
    return len(body).to_bytes(4, "little") + body


def null_levels(valid: Mask | None, count: int) -> bytes:
    """Definition levels of a column that may be null. `valid` None: nothing is."""
    if valid is None:
        return levels(run(1, count))
    return levels(run(int(valid[0]), count) if is_constant(valid) else packed(valid, 1))


def plain(values: pa.StringArray | pa.Int64Array | Array) -> bytes:
    """PLAIN bytes of numbers, or of text without nulls: each length (4 bytes), then the text."""
    if not isinstance(values, np.ndarray) and not pa.types.is_string(values.type):
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values).tobytes()
    if len(values) == 0:
        return b""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    text = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    sizes = np.diff(offsets)
    at = (offsets[:-1] - offsets[0] + 4 * np.arange(len(sizes)))[:, None] + np.arange(4)
    out = np.empty(len(text) + 4 * len(sizes), np.uint8)
    is_text = np.ones(len(out), bool)
    is_text[at] = False
    out[at] = sizes.astype("<u4").view(np.uint8).reshape(-1, 4)
    out[is_text] = text
    return out.tobytes()


def delta(values: Array) -> bytes:
    """DELTA_BINARY_PACKED bytes of int32 or int64 values."""
    if len(values) == 0:
        return b"\x80\x01\x04\x00\x00"  # blocks of 128 in 4, no values, first value 0
    sink = pa.BufferOutputStream()
    field = pa.field("x", pa.from_numpy_dtype(values.dtype), nullable=False)
    table = pa.Table.from_arrays([pa.array(values)], schema=pa.schema([field]))
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="none",
        use_dictionary=False,
        column_encoding={"x": "DELTA_BINARY_PACKED"},
        write_statistics=False,
        store_schema=False,
        data_page_size=1 << 30,
        data_page_version="1.0",
        write_batch_size=1 << 16,
        **_ONE_PAGE,
    ) as writer:
        writer.write_table(table, row_group_size=len(values))
    return _first_page(sink.getvalue().to_pybytes())


def _first_page(file: bytes) -> bytes:
    """The body of the first page of a Parquet file; its header's second field is the size."""
    size = read_varint(file, 7)[0] >> 1
    start = skip_struct(file, 4)
    return file[start : start + size]


def _page(kind: int, detail: bytes, body: bytes, codec: pa.Codec | None) -> tuple[bytes, int]:
    """A page with its header, and its size before compression."""
    stored = codec.compress(body, asbytes=True) if codec else body
    sizes = thrift.i32(1, len(body)) + thrift.i32(1, len(stored))
    head = thrift.i32(1, kind) + sizes + detail + thrift.STOP
    return head + stored, len(head) + len(body)


def chunk(
    level_bytes: bytes,
    body: bytes,
    encoding: int,
    count: int,
    codec: pa.Codec | None,
    dictionary: tuple[bytes, int] | None = None,
) -> Pages:
    """One column chunk: perhaps a dictionary page (bytes, entries), and one data page."""
    if len(level_bytes) + len(body) + len(dictionary[0] if dictionary else b"") < _SMALL_BYTES:
        codec = None
    first, first_plain = b"", 0
    if dictionary is not None:
        detail = thrift.struct(4, thrift.i32(1, dictionary[1]), thrift.i32(1, PLAIN))
        first, first_plain = _page(_DICTIONARY_PAGE, detail, dictionary[0], codec)
    levels_are = thrift.i32(1, RLE) + thrift.i32(1, RLE)
    detail = thrift.struct(2, thrift.i32(1, count), thrift.i32(1, encoding), levels_are)
    second, second_plain = _page(_DATA_PAGE, detail, level_bytes + body, codec)
    encodings = (PLAIN, RLE, encoding) if dictionary is not None else (RLE, encoding)
    return Pages(
        first + second,
        ZSTD if codec else UNCOMPRESSED,
        encodings,
        len(first),
        first_plain + second_plain,
        count,
    )
