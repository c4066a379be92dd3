"""`import_file`: any trace file into a sink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spanlite.errors import UsageError

from spanlite_collectors.importers._files import Progress, no_progress, peek
from spanlite_collectors.importers.batches import import_batches
from spanlite_collectors.importers.cupti import import_cupti
from spanlite_collectors.importers.detect import FORMATS, detect_format
from spanlite_collectors.importers.kineto import import_kineto
from spanlite_collectors.importers.nsys import import_nsys
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.otlp_file import import_otlp
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.importers.requests import import_requests
from spanlite_collectors.sinks import SpanSink

#: Refusals of what the source calls a span; the ledger hears of them. Anything else that
#: is refused (instants, counters, ...) never was one.
LOST_SPANS = (
    "duplicate",
    "invalid_id",
    "invalid_time",
    "unreadable_time",
    "unreadable_record",
    "end_without_begin",
)

_Importer = Callable[[Path, SpanSink, ImportOptions, Progress], ImportReport]
_IMPORTERS: dict[str, _Importer] = {
    "kineto": import_kineto,
    "nsys": import_nsys,
    "otlp": import_otlp,
    "cupti": import_cupti,
    "requests": import_requests,
    "spanbatch": import_batches,
}


def import_file(
    path: str | Path,
    sink: SpanSink,
    options: ImportOptions | None = None,
    source_format: str = "auto",
    progress: Progress = no_progress,
) -> ImportReport:
    """Read one file into the sink and flush it.

    `source_format` is one of FORMATS or "auto"; `progress` is called with the bytes of the
    file read so far. Raises InputError where the file is damaged or of another kind; nothing
    of it has been written to the sink then.
    """
    path = Path(path)
    if source_format == "auto":
        source_format = detect_format(path)
    elif source_format in _IMPORTERS:
        peek(path)
    else:
        raise UsageError(f"format '{source_format}': choose auto, {', '.join(FORMATS)}")
    report = _IMPORTERS[source_format](path, sink, options or ImportOptions(), progress)
    for reason in LOST_SPANS:
        if report.reasons[reason]:
            sink.drop(reason, report.reasons[reason])
    sink.flush()
    return report
