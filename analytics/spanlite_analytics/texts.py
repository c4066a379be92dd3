"""Columns that Python cannot hold, or shows in its own way, as text that DuckDB made.

Python's dates end in the year 9999 and know no infinity; its intervals and bytes print as
constructor calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

_TIMES = ("date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns")
_ZONED = ("timestamp with time zone", "time with time zone")
_AS_TEXT = (*_TIMES, *_ZONED, "interval", "bit")
_NESTED = ("list", "array", "struct", "map", "union")


def _leaves(kind: DuckDBPyType) -> Iterator[str]:
    name = kind.id
    if name not in _NESTED:
        yield name
        return
    for _, child in kind.children:
        if not isinstance(child, (int, list)):  # an array's length, an enum's words
            yield from _leaves(child)


def _text_of(column: str, kind: DuckDBPyType, json: bool) -> str | None:
    """SQL for the column as text; None where it may stay as it is."""
    name = kind.id
    if name == "blob":
        return f"lower(hex({column}))"
    if name in _NESTED:
        odd = any(leaf in _AS_TEXT or leaf == "blob" for leaf in _leaves(kind))
        return f"CAST(to_json({column}) AS VARCHAR)" if odd else None
    if name not in _AS_TEXT:
        return None
    text = f"CAST({column} AS VARCHAR)"
    return f"replace({text}, ' ', 'T')" if json and name.startswith("timestamp") else text


def readable(relation: duckdb.DuckDBPyRelation, json: bool) -> duckdb.DuckDBPyRelation:
    """The same rows and names. `json`: timestamps as ISO 8601 has them, with a T."""
    columns = []
    odd = False
    for number, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1):
        text = _text_of(f"#{number}", kind, json)
        odd |= text is not None
        quoted = name.replace('"', '""')
        columns.append(f'{text or f"#{number}"} AS "{quoted}"')
    return relation.project(", ".join(columns)) if odd else relation
