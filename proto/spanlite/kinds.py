"""Span kinds, statuses and copy kinds: numbers on the wire, words everywhere else."""

from __future__ import annotations

from enum import IntEnum


class SpanKind(IntEnum):
    """`spanlite.v1.SpanKind`."""

    UNSPECIFIED = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    SYNC = 4
    RUNTIME_CALL = 5
    DRIVER_CALL = 6
    NVTX_RANGE = 7
    OPERATOR = 8
    STEP = 9
    REQUEST = 10
    GRAPH_LAUNCH = 11
    OVERHEAD = 12
    HOST = 13


class SpanStatus(IntEnum):
    """OpenTelemetry's status codes."""

    UNSET = 0
    OK = 1
    ERROR = 2


class CopyKind(IntEnum):
    """CUPTI's `CUpti_ActivityMemcpyKind`."""

    UNSPECIFIED = 0
    HTOD = 1
    DTOH = 2
    HTOA = 3
    ATOH = 4
    ATOA = 5
    ATOD = 6
    DTOA = 7
    DTOD = 8
    HTOH = 9
    PTOP = 10


#: Calls into CUDA.
CALL_KINDS = (SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL)
#: Kinds whose time is spent on a device.
DEVICE_KINDS = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.GRAPH_LAUNCH)


def kind_word(kind: int) -> str:
    """The kind as written in the archive and in reports, such as `runtime_call`."""
    try:
        return SpanKind(kind).name.lower()
    except ValueError:
        return f"kind_{kind}"


#: Every word by number, for vectorised look-ups.
KIND_WORDS: tuple[str, ...] = tuple(k.name.lower() for k in SpanKind)
STATUS_WORDS: tuple[str, ...] = tuple(s.name.lower() for s in SpanStatus)
COPY_KIND_WORDS: tuple[str, ...] = tuple(c.name.lower() for c in CopyKind)
