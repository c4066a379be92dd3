from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite.ids import format_span_id, format_trace_id, parse_trace_id, trace_id_strings

U64 = st.integers(0, (1 << 64) - 1)


@given(U64, U64)
def test_trace_ids_come_back(low: int, high: int) -> None:
    text = format_trace_id(low, high)
    assert len(text) == 32
    assert parse_trace_id(text) == (low, high)
    assert trace_id_strings(np.array([low], np.uint64), np.array([high], np.uint64)) == [text]


def test_as_w3c_writes_them() -> None:
    w3c = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert parse_trace_id(w3c) == (0xA3CE929D0E0E4736, 0x4BF92F3577B34DA6)
    assert parse_trace_id(f" {w3c.upper()} ") == parse_trace_id(w3c)
    assert parse_trace_id("4bf92f35-77b3-4da6-a3ce-929d0e0e4736") == parse_trace_id(w3c)
    assert parse_trace_id("7") == (7, 0)


@pytest.mark.parametrize("text", ["", "xyz", "0x1f", "1" * 33, "12 34", "-"])
def test_what_is_no_trace_id_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="not a trace id"):
        parse_trace_id(text)


def test_signed_span_ids_have_the_same_digits() -> None:
    assert format_span_id(-1) == format_span_id((1 << 64) - 1) == "f" * 16
