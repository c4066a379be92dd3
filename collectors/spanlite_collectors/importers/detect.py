"""Which importer a file is for, from its first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from spanlite.codec import read_header
from spanlite.errors import InputError, WireError

from spanlite_collectors.importers._delimited import ZSTD_MAGIC, first_message
from spanlite_collectors.importers._files import peek
from spanlite_collectors.importers._json_text import load_json

FORMATS = ("kineto", "nsys", "otlp", "cupti", "requests", "spanbatch")
_SQLITE = b"SQLite format 3\0"
_BOM = b"\xef\xbb\xbf"
#: How files begin that people may take for traces, and what to say about them.
_OTHERS: tuple[tuple[str, str], ...] = (
    (
        r"==(PROF|WARNING|ERROR)==|\"ID\",\"Process ID\"",
        "Nsight Compute output: metrics of single kernels, not spans in time",
    ),
    (r"={9} COMPUTE-SANITIZER", "compute-sanitizer output, not spans"),
    (
        r"start_ns,end_ns,\w+__",
        "samples of device counters, not spans; they have no place in a span archive",
    ),
)


def detect_format(path: Path) -> str:
    """One of FORMATS. Raises InputError where it is none, and says what it is if it can."""
    head = peek(path).removeprefix(_BOM)
    if head.startswith(_SQLITE):
        return "nsys"
    if head.startswith(ZSTD_MAGIC) or _is_ours(head):
        return "spanbatch"
    start = head.lstrip()
    if start[:1] in (b"{", b"["):
        return _of_json(start)
    text = start.decode("utf-8", "replace")
    for pattern, what in _OTHERS:
        if re.match(pattern, text):
            raise InputError(f"{path}: {what}; `spanlite import` takes {', '.join(FORMATS)}")
    if text.lower().startswith("timestamp,contexttokens"):
        return "requests"
    if path.suffix == ".nsys-rep":
        raise InputError(
            f"{path}: an Nsight Systems report; export it first: "
            f"nsys export --type sqlite {path.name}"
        )
    if _maybe_protobuf(head):
        return "otlp"
    raise InputError(
        f"{path}: not a trace that can be told by its content; name it with --format if it is "
        f"one of {', '.join(FORMATS)}"
    )


def _of_json(head: bytes) -> str:
    if b'"resourceSpans"' in head or b'"resource_spans"' in head:
        return "otlp"
    try:
        record = load_json(head.split(b"\n", 1)[0])
    except ValueError:
        return "kineto"
    if isinstance(record, dict) and "t" in record:
        return "cupti"
    if isinstance(record, dict) and {"timestamp", "input_length"} <= set(record):
        return "requests"
    return "kineto"


def _maybe_protobuf(head: bytes) -> bool:
    """Control characters that no text has, and the first field's tag within a delimiter."""
    return b"\x0a" in head[:5] and re.search(rb"[\x00-\x08\x0e-\x1f]", head) is not None


def _is_ours(head: bytes) -> bool:
    try:
        read_header(first_message(head))
    except WireError:
        return False
    return True
