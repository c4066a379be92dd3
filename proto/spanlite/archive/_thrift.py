"""Just enough of Thrift's compact protocol to write Parquet's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

#: What a struct's field may hold: a struct is (field id, value) pairs.
Value: TypeAlias = "bool | int | bytes | str | Struct | list[Value]"

_TRUE, _FALSE, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 6, 8, 9, 12
_I32 = 5


class Struct:
    """A Thrift struct: (field id, value) pairs in growing order of id; None is left out."""

    def __init__(self, *fields: tuple[int, Value | None]) -> None:
        self.fields = fields


class I64(int):
    """An integer that the Parquet definition declares as i64; plain int is i32."""


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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


def _zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _type(value: Value) -> int:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return _I64 if isinstance(value, I64) else _I32
    if isinstance(value, (bytes, str)):
        return _BINARY
    return _STRUCT if isinstance(value, Struct) else _LIST


def _body(value: Value) -> bytes:
    if isinstance(value, bool):
        return b""  # said by the type already
    if isinstance(value, int):
        return _zigzag(value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(len(value)) + value
    return serialise(value) if isinstance(value, Struct) else _list(value)


def _list(values: list[Value]) -> bytes:
    kind = _type(values[0]) if values else _STRUCT
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(map(_body, values))


def serialise(struct: Struct) -> bytes:
    """The struct's bytes."""
    return b"".join(_fields(struct.fields)) + b"\0"


def _fields(fields: Iterable[tuple[int, Value | None]]) -> Iterable[bytes]:
    last = 0
    for number, value in fields:
        if value is None:
            continue
        yield bytes([(number - last) << 4 | _type(value)])
        yield _body(value)
        last = number
