"""Trace and span ids as people write them: lower-case hex, as in W3C Trace Context."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from spanlite.errors import UsageError

_HEX = re.compile(r"[0-9a-fA-F]{1,32}")
MASK64 = (1 << 64) - 1


def format_trace_id(low: int, high: int) -> str:
    """32 hex digits."""
    return f"{high:016x}{low:016x}"


def format_span_id(span_id: int) -> str:
    """16 hex digits."""
    return f"{span_id & MASK64:016x}"


def parse_trace_id(text: str) -> tuple[int, int]:
    """(low, high) of a trace id of up to 32 hex digits, dashes allowed."""
    digits = text.strip().replace("-", "")
    if not _HEX.fullmatch(digits):
        raise UsageError(f"'{text}' is not a trace id: give up to 32 hex digits")
    value = int(digits, 16)
    return value & MASK64, value >> 64


def trace_id_strings(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> list[str]:
    """Hex trace ids of a few distinct traces (one string each)."""
    raw = np.empty((len(low), 2), dtype=">u8")
    raw[:, 0], raw[:, 1] = high, low
    text = raw.tobytes().hex()
    return [text[i : i + 32] for i in range(0, len(text), 32)]
