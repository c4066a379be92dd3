"""Just enough of Thrift's compact protocol to write Parquet's metadata.

Each function gives the bytes of one field. `step` is how far its id lies from that of
the field before (or from 0). Numbers are never negative here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12
STOP = b"\0"
_ONE_BYTE = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _head(step: int, kind: int) -> bytes:
    return bytes((step << 4 | kind,))


def i32(step: int, value: int) -> bytes:
    """A field declared as i32 (or an enumeration)."""
    return _head(step, _I32) + varint(value << 1)


def i64(step: int, value: int) -> bytes:
    """A field declared as i64."""
    return _head(step, _I64) + varint(value << 1)


def boolean(step: int, value: bool) -> bytes:
    """A field declared as bool."""
    return _head(step, _TRUE if value else _FALSE)


def binary(step: int, value: bytes) -> bytes:
    """A field declared as binary or string."""
    return _head(step, _BINARY) + varint(len(value)) + value


def struct(step: int, *fields: bytes) -> bytes:
    """A field that is a struct of these fields."""
    return _head(step, _STRUCT) + b"".join(fields) + STOP


def _items(step: int, kind: int, items: Sequence[bytes]) -> bytes:
    size = len(items)
    head = bytes((size << 4 | kind,)) if size < 15 else bytes((0xF0 | kind,)) + varint(size)
    return _head(step, _LIST) + head + b"".join(items)


def structs(step: int, items: Iterable[bytes]) -> bytes:
    """A list of structs, each given as its fields."""
    return _items(step, _STRUCT, [item + STOP for item in items])


def i32s(step: int, values: Iterable[int]) -> bytes:
    """A list of i32."""
    return _items(step, _I32, [varint(value << 1) for value in values])


def binaries(step: int, values: Iterable[str]) -> bytes:
    """A list of strings."""
    texts = [value.encode() for value in values]
    return _items(step, _BINARY, [varint(len(text)) + text for text in texts])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value, shift = 0, 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def skip_struct(data: bytes, at: int) -> int:
    """Where the struct that starts at `at` ends. Its fields are numbers or structs."""
    while (head := data[at]) != 0:
        at += 1
        kind = head & 0x0F
        if kind == _STRUCT:
            at = skip_struct(data, at)
        elif kind in (_I32, _I64):
            at = read_varint(data, at)[1]
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"cannot skip a Thrift field of type {kind}")
    return at + 1
