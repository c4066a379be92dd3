"""From spans to requests: which are sent, when, and which cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.targets._http_requests import Requests, requests_of

MS = 1_000_000
Rows = Callable[[list[dict[str, Any]]], pa.Table]


def counted(inputs: object = 5, outputs: object = 2, **more: object) -> str:
    usage = {"gen_ai.usage.input_tokens": inputs, "gen_ai.usage.output_tokens": outputs}
    return json.dumps({**usage, **more})


def request(trace: int, at: int, attributes: str | None, **more: object) -> dict[str, Any]:
    row = {"trace": trace, "start_ns": at * MS, "duration_ns": MS, "kind": "request"}
    return {**row, "attributes": attributes, **more}


def found(make_rows: Rows, rows: list[dict[str, Any]]) -> tuple[Plan, Requests]:
    plan = build_plan(Recording.from_table(make_rows(rows)), PlanSettings(unit="request"))
    return plan, requests_of(plan, np.arange(len(plan)))


def test_arrivals_and_counts(make_rows: Rows) -> None:
    old = '{"gen_ai.usage.prompt_tokens":7,"gen_ai.usage.completion_tokens":3}'
    blocks = counted(1024, 4, hash_ids=[8, 9])
    plan, requests = found(
        make_rows, [request(1, 5, counted()), request(2, 9, old), request(3, 12, blocks)]
    )
    assert requests.supported.all() and requests.why_not == {}
    assert requests.due_ns.tolist() == [0, 4 * MS, 7 * MS]
    assert requests.input_tokens.tolist() == [5, 7, 1024]
    assert requests.output_tokens.tolist() == [2, 3, 4]
    assert requests.blocks == [[], [], [8, 9]]
    assert requests.bounds(len(plan)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (None, "without token counts"),
        ('{"gen_ai.usage.input_tokens":5}', "without token counts"),
        (counted("5"), "without token counts"),
        (counted(-1), "without token counts"),
        (counted(True), "without token counts"),
        (counted(0), "with an empty prompt"),
        (counted(5, 0), "with no output"),
        (counted(2**30), "with a prompt of more than 1,048,576 tokens"),
    ],
)
def test_what_cannot_be_sent_is_unsupported(
    make_rows: Rows, attributes: str | None, why: str
) -> None:
    _, requests = found(make_rows, [request(1, 0, attributes), request(2, 1, counted())])
    assert requests.supported.tolist() == [False, True]
    assert requests.why_not == {why: 1} and requests.event.tolist() == [1]


def test_several_requests_of_a_trace_keep_their_distance(make_rows: Rows) -> None:
    rows = [request(1, 0, counted(1)), request(1, 30, counted(3)), request(1, 20, counted(2))]
    plan, requests = found(make_rows, [*rows, request(2, 10, counted(4))])
    assert len(plan) == 2 and requests.supported.all()
    assert requests.input_tokens.tolist() == [1, 2, 3, 4]
    assert requests.due_ns.tolist() == [0, 20 * MS, 30 * MS, 10 * MS]
    assert requests.bounds(2).tolist() == [0, 3, 4]


def test_of_nested_requests_the_outermost_with_counts_is_sent(make_rows: Rows) -> None:
    rows = [
        request(1, 0, None),  # a gateway that counts nothing
        request(1, 1, counted(1), parent_span_id=1),
        {**request(1, 2, None, parent_span_id=2), "kind": "range"},
        request(1, 3, counted(2), parent_span_id=3),  # inside the second, through a range
        request(1, 9, counted(3), parent_span_id=1),
    ]
    _, requests = found(make_rows, rows)
    assert requests.supported.tolist() == [True] and requests.why_not == {}
    assert requests.input_tokens.tolist() == [1, 3]


def test_parents_in_a_ring_end(make_rows: Rows) -> None:
    rows = [request(1, 0, counted(), parent_span_id=2), request(1, 1, counted(), parent_span_id=1)]
    _, requests = found(make_rows, rows)
    assert len(requests) == 0 and requests.supported.tolist() == [False]
