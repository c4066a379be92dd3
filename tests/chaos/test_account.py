"""The comparison itself: it must see each kind of fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chaos_account import Account, compare, content_hashes
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.generator import DecodeConfig, generate


@pytest.fixture(scope="module")
def sent() -> tuple[pa.RecordBatch, dict[str, Any]]:
    return next(iter(generate(DecodeConfig(spans=2000, layers=2))))


def account(spans: pa.RecordBatch, resource: dict[str, Any]) -> Account:
    out = Account()
    out.add(spans, resource)
    return out


def test_the_same_spans_in_another_order_agree(sent: Any) -> None:
    spans, resource = sent
    order = np.random.default_rng(1).permutation(spans.num_rows)
    found = compare(account(*sent), account(spans.take(pa.array(order)), resource))
    assert found.none and found.sent == found.found == spans.num_rows


def test_lost_twice_foreign_and_left_out(sent: Any) -> None:
    spans, resource = sent
    some = account(spans.slice(0, 10), resource)
    assert compare(account(*sent), some).lost == spans.num_rows - 10
    assert compare(some, account(*sent)).foreign == spans.num_rows - 10
    some.add(spans.slice(5, 1), resource)
    assert compare(account(spans.slice(0, 10), resource), some).twice == 1
    ids = np.sort(spans.column("span_id").to_numpy())
    none = np.zeros(len(ids), dtype=np.bool_)
    assert compare(account(*sent), account(*sent), none).foreign == spans.num_rows


@pytest.mark.parametrize("name", SPAN_SCHEMA.names)
def test_a_change_in_any_column_shows(sent: Any, name: str) -> None:
    spans, resource = sent
    values = spans.column(name).to_pylist()
    link = {"trace_id_low": 1, "trace_id_high": 2, "span_id": 3}
    text = {"name": "x", "attributes": "{}", "links": [link]}
    values[3] = text[name] if name in text else values[3] ^ 1
    column = pa.array(values, SPAN_SCHEMA.field(name).type)
    other = spans.set_column(spans.schema.get_field_index(name), SPAN_SCHEMA.field(name), column)
    changed = np.flatnonzero(content_hashes(spans, resource) != content_hashes(other, resource))
    assert changed.tolist() == [3]


def test_another_resource_shows(sent: Any) -> None:
    spans, resource = sent
    assert compare(account(*sent), account(spans, resource | {"a": 1})).changed == spans.num_rows
