"""`spanlite import`: recorded traces of other tools into the pipeline."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from spanlite.cli import DEBUG_VARIABLE
from spanlite.errors import InputError, SpanLiteError, UsageError

from spanlite_collectors.delivery import (
    UNDELIVERABLE,
    KafkaSink,
    add_delivery_arguments,
    open_sink,
)
from spanlite_collectors.importers import FORMATS, ImportOptions, ImportReport, import_file
from spanlite_collectors.importers.options import REQUEST_PATTERNS, STEP_PATTERNS
from spanlite_collectors.sinks import DiscardSink, SpanSink

_EPILOG = """\
formats, told by the content of a file:
  kineto    torch.profiler and other Chrome traces: .json, .json.gz
  nsys      nsys export --type sqlite
  otlp      OpenTelemetry: JSON (also one document a line), protobuf (also delimited)
  cupti     CUPTI records, one JSON object a line
  spanbatch what --output of collect, import and generate wrote, also with zstd
  requests  logs of LLM requests: Azure's CSV, Mooncake's JSON lines. They do not say how
            long a request took, so every duration is 0

Ranges whose whole name matches a step or request pattern (any case) open a trace of their
own; what belongs to none goes into a trace for each process and second.

examples:
  spanlite import trace.json.gz --dry-run       # count what is in it, send nothing
  spanlite import rank*.json.gz --service llama --step 'decode_\\d+'
"""


class ImportCommand:
    """The `import` subcommand."""

    summary = "Import recorded traces: our own, Kineto, nsys, OTLP, CUPTI, request logs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument(
            "files", nargs="+", metavar="FILE", type=Path, help="what another tool recorded"
        )
        parser.add_argument(
            "--format",
            choices=("auto", *FORMATS),
            default="auto",
            help="what the files are (default: auto, told by their first bytes)",
        )
        parser.add_argument("--dry-run", action="store_true", help="count, and send nothing")
        parser.add_argument("--json", action="store_true", help="the counts as JSON")
        group = parser.add_argument_group("names and traces")
        group.add_argument("--service", help="service.name of the spans (default: the file's)")
        group.add_argument("--host", help="host.name of the spans (default: the file's)")
        group.add_argument(
            "--resource", action="append", default=[], metavar="KEY=VALUE",
            help="one more resource attribute; may be repeated",
        )  # fmt: skip
        group.add_argument(
            "--step", action="append", metavar="REGEX",
            help=f"a range of such a name is a step (default: {_shown(STEP_PATTERNS)})",
        )  # fmt: skip
        group.add_argument(
            "--request", action="append", metavar="REGEX",
            help=f"a range of such a name is a request (default: {_shown(REQUEST_PATTERNS)})",
        )  # fmt: skip
        add_delivery_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Import each file; 2 where one could not be, or spans of it, after the others."""
        options = options_of(args)
        missing = [error for path in args.files if (error := _why_not(path))]
        if len(missing) == len(args.files):  # then no broker is asked, and no file made
            return _end(args, [], missing)
        with _open(args) as sink:
            reports, errors, sent = _import_all(args, options, sink)
            if args.output is not None and errors and not reports and not sent:
                assert isinstance(sink, KafkaSink)
                sink.abandon()  # nothing is to be kept, and what was there before stays
        if isinstance(sink, KafkaSink):
            errors += _say_delivered(sink, begun=bool(reports or sent))
        return _end(args, reports, errors)


def _why_not(path: Path) -> str:
    """Why a file cannot be looked at; empty where it can."""
    try:
        path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}; check the path"
    return ""


def _end(args: argparse.Namespace, reports: list[ImportReport], errors: list[str]) -> int:
    """Say what came of it; the exit code."""
    if args.json:
        print(json.dumps([report.to_dict() for report in reports], indent=1))
    for error in errors:
        print(f"spanlite: {error}", file=sys.stderr)
    return InputError.exit_code if errors else 0


def options_of(args: argparse.Namespace) -> ImportOptions:
    """The options that the flags ask for. Raises UsageError."""
    attributes = {}
    for text in args.resource:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--resource '{text}': write KEY=VALUE")
        attributes[key] = value
    options = ImportOptions(
        service=args.service,
        host=args.host,
        step_patterns=args.step or STEP_PATTERNS,
        request_patterns=args.request or REQUEST_PATTERNS,
        attributes=attributes,
    )
    options.kind_of_range("")  # Unreadable patterns are told before any file is read.
    return options


def _import_all(
    args: argparse.Namespace, options: ImportOptions, sink: SpanSink
) -> tuple[list[ImportReport], list[str], int]:
    """Reports of the files that could be imported, what to say of the others, spans handed on."""
    sent = 0
    reports: list[ImportReport] = []
    errors: list[str] = []
    for path in args.files:
        counting = _CountingSink(sink)
        try:
            with _progress(path) as progress:
                report = import_file(path, counting, options, args.format, progress)
        except InputError as error:
            errors.append(str(error))
            continue
        except SpanLiteError:
            raise  # of the way out, which the next file would meet too
        except Exception as error:
            errors.append(_fault(path, error, progress.done, counting.spans))
            continue
        finally:
            sent += counting.spans
        reports.append(report)
        if not args.json:
            print(report.table(), flush=True)
    return reports, errors, sent


class _CountingSink:
    """Hands on, and knows how many spans of a file are gone when it fails after all."""

    def __init__(self, sink: SpanSink) -> None:
        self._sink, self.spans = sink, 0

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Count and hand on."""
        self.spans += spans.num_rows
        self._sink.write(spans, resource)

    def drop(self, reason: str, spans: int) -> None:
        """Hand on."""
        self._sink.drop(reason, spans)

    def flush(self) -> None:
        """Hand on."""
        self._sink.flush()


def _fault(path: Path, error: Exception, done: int, sent: int) -> str:
    """A file that no importer foresaw: which, how far it was read, where in our code."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    gone = f"{sent} spans of it were sent" if sent else "nothing of it was sent"
    return (
        f"{path}: cannot be imported: {type(error).__name__}: {str(error)[:200]} "
        f"({Path(at.filename).name}:{at.lineno}, after {done} bytes); {gone}; an importer should "
        f"say more than that, please report it (with {DEBUG_VARIABLE}=1)"
    )


@contextmanager
def _open(args: argparse.Namespace) -> Iterator[SpanSink]:
    if args.dry_run:
        yield DiscardSink()
    else:
        with open_sink(args, "import") as sink:
            try:
                yield sink
            except BaseException:
                if args.output is not None:
                    sink.abandon()
                raise


def _say_delivered(sink: KafkaSink, *, begun: bool) -> list[str]:
    """Say what became of the spans; what of them will never arrive comes back as errors."""
    stats = sink.stats()
    if not (begun or stats.delivered_messages or stats.spool_messages):
        return []  # no file could be read, and no earlier run had left anything
    kept = f", {stats.spool_messages} batches wait in the spool" if stats.spool_messages else ""
    dropped = "".join(f", {count} {why}" for why, count in stats.dropped_spans.items())
    print(
        f"delivered {stats.delivered_spans} spans in {stats.delivered_messages} batches, "
        f"{stats.delivered_bytes} bytes{kept}{dropped}",
        file=sys.stderr,
    )
    errors = []
    if stats.lost_spans:
        errors.append(f"{stats.lost_spans} spans were lost: the broker refused their batches")
    for reason, cure in UNDELIVERABLE.items():
        if stats.dropped_spans.get(reason):
            errors.append(f"{stats.dropped_spans[reason]} spans were dropped as {reason}: {cure}")
    return errors


class _Progress:
    """Bytes of a file read: a line that counts on a terminal, else one each 10 s."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._size = path.stat().st_size if path.is_file() else 0
        self.done = 0
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self._last = time.monotonic()
        self._shown = False

    def __call__(self, done: int) -> None:
        self.done = done
        now = time.monotonic()
        if now - self._last < self._every_s or not self._size:
            return
        self._last, self._shown = now, True
        share = min(100, 100 * done // self._size)
        text = f"{self._name}: {share} % of {self._size / 1e6:.1f} MB read"
        print(f"\r{text}" if self._terminal else text, end="" if self._terminal else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    def close(self) -> None:
        """Wipe the counting line."""
        if self._shown and self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress(path: Path) -> Iterator[_Progress]:
    progress = _Progress(path)
    try:
        yield progress
    finally:
        progress.close()


def _shown(patterns: Sequence[str]) -> str:
    return " | ".join(patterns).replace("%", "%%")


command = ImportCommand()
