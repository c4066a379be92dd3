"""Only statements that read: what `spanlite query` lets through.

`CREATE VIEW`, `CREATE MACRO` and `SET` are fine, as names and settings for the statements
after them; what writes rows or files, attaches another database or fetches code is not.
"""

from __future__ import annotations

import re

import duckdb
from spanlite.errors import UsageError

_READS = frozenset(
    {"SELECT", "EXPLAIN", "RELATION", "CREATE_FUNC", "MULTI", "PRAGMA", "SET", "VARIABLE_SET"}
)
_BLANK = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_NAMES = re.compile(
    rf"{_BLANK}create\b{_BLANK}(?:or{_BLANK}replace\b{_BLANK})?(?:temp(?:orary)?\b{_BLANK})?"
    r"(?:view|macro|function)\b",
    re.IGNORECASE | re.DOTALL,
)
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)


def _kind(statement: duckdb.Statement) -> str:
    return str(statement.type).rpartition(".")[2]


def check_reads_only(con: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The statements of `sql`, each as text. Raises UsageError where one would write.

    A syntax error comes out as duckdb.Error.
    """
    statements = con.extract_statements(sql)
    if not statements:
        raise UsageError("there is no SQL to run")
    for statement in statements:
        kind, text = _kind(statement), statement.query.strip()
        if kind not in _READS and not (kind == "CREATE" and _NAMES.match(text)):
            raise UsageError(
                f"{kind} statements are refused, since a query only reads: '{text[:60]}' "
                "(to save a result, use --format and --output; to name a step on the way, "
                "WITH or CREATE VIEW)"
            )
        if kind == "EXPLAIN":  # EXPLAIN ANALYZE runs what it explains
            check_reads_only(con, _EXPLAIN.sub("", text, count=1))
    return [statement.query for statement in statements]
