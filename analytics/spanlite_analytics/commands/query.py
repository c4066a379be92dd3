"""`spanlite query`: SQL over the archive."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
from spanlite.archive.layout import Archive
from spanlite.drafts import Draft
from spanlite.errors import UsageError
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.output import TEXT_WRITERS, write_parquet
from spanlite_analytics.statements import check_reads_only
from spanlite_analytics.texts import readable
from spanlite_analytics.views import batches_of, check_is_text, reading

_HELP = """views: spans, traces, kernel_minutes, ledger (and trace_rows, as written).
`spanlite query "DESCRIBE spans"` lists columns.

example:
  spanlite query --last 15m "SELECT host, device, sum(duration_ns) / 1e9 AS gpu_s
      FROM kernel_minutes WHERE kind = 'kernel' GROUP BY ALL ORDER BY gpu_s DESC"
"""


class QueryCommand:
    """Runs statements that read, and prints the rows of the last."""

    summary = "Ask the archive with SQL (DuckDB)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        parser.add_argument("sql", nargs="?", metavar="SQL", help="statements, or - for stdin")
        parser.add_argument("--file", dest="sql_file", metavar="PATH", help="read the SQL there")
        parser.add_argument(
            "--format",
            choices=[*TEXT_WRITERS, "parquet"],
            default="table",
            help="(default: %(default)s)",
        )
        parser.add_argument("--output", "-o", metavar="PATH", help="write there, not to stdout")
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or raises what `spanlite` shows with exit code 2."""
        sql = _sql_of(args)
        if args.format == "parquet" and not args.output:
            raise UsageError("--format parquet needs --output PATH")
        archive = Archive.open(archive_of(args))

        def work(con: duckdb.DuckDBPyConnection) -> None:
            reader = _run(con, sql, args.format)
            if reader is not None and reader.schema.names:
                _write(reader, args.format, args.output)

        reading(archive, window_of(args), work)
        return 0


def _sql_of(args: argparse.Namespace) -> str:
    if (args.sql is None) == (args.sql_file is None):
        raise UsageError("give the SQL as one argument, or - for stdin, or --file PATH")
    from_file = args.sql_file is not None
    where = args.sql_file if from_file else "standard input"
    try:
        if from_file:
            return Path(args.sql_file).read_text("utf-8")
        sql = sys.stdin.read() if args.sql == "-" else str(args.sql)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read '{where}': {error}") from None
    check_is_text(sql)
    return sql


def _run(con: duckdb.DuckDBPyConnection, sql: str, form: str) -> pa.RecordBatchReader | None:
    *before, last = check_reads_only(con, sql)
    for statement in before:
        con.execute(statement)
    relation = con.sql(last)
    if relation is None:
        return None
    return batches_of(relation if form == "parquet" else readable(relation, form == "json"))


def _write(reader: pa.RecordBatchReader, form: str, output: str | None) -> None:
    if output is None:
        TEXT_WRITERS[form](reader, sys.stdout)
        return
    # A run that fails or is interrupted leaves no half file behind.
    try:
        with Draft(Path(output)) as draft:
            if form == "parquet":
                write_parquet(reader, str(draft.path))
            else:
                with draft.path.open("w", newline="") as out:
                    TEXT_WRITERS[form](reader, out)
            draft.put()
    except OSError as error:
        raise UsageError(f"cannot write '{output}': {error}") from None


command = QueryCommand()
