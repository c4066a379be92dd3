"""Bits of a span's `flags` column: what is odd about it. Nothing odd is ever hidden."""

from __future__ import annotations

from enum import IntFlag


class SpanFlag(IntFlag):
    """One bit an oddity."""

    NONE = 0
    #: A device span starts before the call that launched it (clock anomaly).
    STARTS_BEFORE_LAUNCH = 1
    #: The end lies before the start.
    NEGATIVE_DURATION = 2
    #: The source gave no timestamp.
    ZERO_TIMESTAMP = 4
    #: Cut by the edge of a capture window; never count it as whole.
    PARTIAL = 8
    #: Its launch or its parent was not in the input.
    ORPHAN = 16
    #: The parent was inferred from times, not recorded.
    PARENT_INFERRED = 32
