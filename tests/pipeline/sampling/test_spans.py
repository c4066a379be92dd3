"""Conditions on spans, against a plain reading of the same spans one by one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite_pipeline.sampling import RuleSet


def rules_of(kind: str, body: str) -> RuleSet:
    return RuleSet.from_yaml(
        f"decision_wait: 1s\npolicies: [{{name: p, type: {kind}, {kind}: {body}}}]\n"
    )


def found(rules: RuleSet, view: Any) -> list[bool]:
    bits = rules.span_matches(view)
    assert bits.shape == (view.count,) and bits.dtype == np.uint64
    return [bool(bit) for bit in bits]


@pytest.mark.parametrize(
    ("kind", "body", "attributes", "matches"),
    [
        (
            "string_attribute",
            "{key: k, values: [a, b]}",
            [{"k": "a"}, {"k": "c"}, {"k": 1}, {}],
            [1, 0, 0, 0],
        ),
        ("string_attribute", "{key: k, values: ['']}", [{"k": ""}, {"k": "x"}], [0, 0]),
        (
            "string_attribute",
            "{key: k, values: ['^/he', 'z+'], enabled_regex_matching: true}",
            [{"k": "/health"}, {"k": "x/he"}, {"k": "azz"}, {"j": "z"}],
            [1, 0, 1, 0],
        ),
        (
            "numeric_attribute",
            "{key: k, min_value: 5, max_value: 9}",
            [{"k": 5}, {"k": 9}, {"k": 10}, {"k": "7"}, {"k": 7.5}, {"k": True}, {"k": None}],
            [1, 1, 0, 0, 1, 0, 0],
        ),
        ("numeric_attribute", "{key: k, max_value: 0}", [{"k": -5}, {"k": 1}], [1, 0]),
        (
            "boolean_attribute",
            "{key: k, value: true}",
            [{"k": True}, {"k": False}, {"k": 1}],
            [1, 0, 0],
        ),
        (
            "boolean_attribute",
            "{key: k, value: false}",
            [{"k": True}, {"k": False}, {"k": 0}],
            [0, 1, 0],
        ),
    ],
)
def test_attributes(
    make_view: Any, kind: str, body: str, attributes: list[dict[str, Any]], matches: list[int]
) -> None:
    view = make_view(attributes=[json.dumps(item) for item in attributes])
    assert found(rules_of(kind, body), view) == [bool(m) for m in matches]


def test_spans_without_attributes_and_odd_ones_match_nothing(make_view: Any) -> None:
    rules = rules_of("string_attribute", "{key: k, values: [a]}")
    assert found(rules, make_view(attributes=[None, None])) == [False, False]
    assert found(rules, make_view(attributes=["[1]", "{", None])) == [False, False, False]
    assert found(rules, make_view(attributes=["[" * 100_000])) == [False]


def test_resource_attributes_match_every_span(make_view: Any) -> None:
    rules = rules_of("string_attribute", "{key: service.name, values: [decoder]}")
    assert found(rules, make_view(resource={"service.name": "decoder"}, kind=[1, 2])) == [
        True,
        True,
    ]
    assert found(rules, make_view(resource={"service.name": "other"}, kind=[1, 2])) == [
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("kind", "body", "columns", "matches"),
    [
        (
            "string_attribute",
            "{key: spanlite.kind, values: [memcpy]}",
            {"kind": [1, 2, 2]},
            [0, 1, 1],
        ),
        (
            "string_attribute",
            "{key: spanlite.name, values: [gemm], enabled_regex_matching: true}",
            {"name": ["a_gemm_b", "x"]},
            [1, 0],
        ),
        ("string_attribute", "{key: gpu.copy_kind, values: [htod]}", {"copy_kind": [1, 8]}, [1, 0]),
        (
            "numeric_attribute",
            "{key: gpu.device, min_value: 0, max_value: 0}",
            {"device": [-1, 0, 1]},
            [0, 1, 0],
        ),
        (
            "numeric_attribute",
            "{key: spanlite.duration_ns, min_value: 10}",
            {"duration_ns": [10, 9]},
            [1, 0],
        ),
        (
            "numeric_attribute",
            "{key: gpu.dynamic_shared_bytes, min_value: 1}",
            {"dynamic_shared_bytes": [0, 4], "grid_x": [1, 1]},
            [0, 1],
        ),
        ("status_code", "{status_codes: [ERROR]}", {"status": [0, 1, 2]}, [0, 0, 1]),
        ("status_code", "{status_codes: [UNSET, OK]}", {"status": [0, 1, 2]}, [1, 1, 0]),
        ("status_code", "{status_codes: [UNSET]}", {"status": [0, 0]}, [1, 1]),
    ],
)
def test_columns(
    make_view: Any, kind: str, body: str, columns: dict[str, list[Any]], matches: list[int]
) -> None:
    assert found(rules_of(kind, body), make_view(**columns)) == [bool(m) for m in matches]


values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["a", "b", "ab", ""])
)
attribute_sets = st.one_of(st.none(), st.dictionaries(st.sampled_from(["j", "k", "ключ"]), values))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(attribute_sets, st.integers(0, 2)), min_size=1, max_size=20))
def test_many_conditions_at_once(
    make_view: Any, rows: list[tuple[dict[str, Any] | None, int]]
) -> None:
    rules = RuleSet.from_yaml("""
policies:
- {name: s, type: string_attribute, string_attribute: {key: k, values: [a, b]}}
- {name: n, type: numeric_attribute, numeric_attribute: {key: ключ, min_value: 0}}
- {name: b, type: boolean_attribute, boolean_attribute: {key: j, value: true}}
- {name: e, type: status_code, status_code: {status_codes: [ERROR]}}
""")
    view = make_view(
        attributes=[None if a is None else json.dumps(a, ensure_ascii=False) for a, _ in rows],
        status=[status for _, status in rows],
    )
    expected = []
    for attributes, status in rows:
        have = attributes or {}
        number = have.get("ключ")
        expected.append(
            (have.get("k") in ("a", "b"))
            + 2 * (type(number) is int and number >= 0)
            + 4 * (have.get("j") is True)
            + 8 * (status == 2)
        )
    assert rules.span_matches(view).tolist() == expected
