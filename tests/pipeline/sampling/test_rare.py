"""The `rare` rule: first appearances of a kernel name in a minute."""

from __future__ import annotations

from typing import Any

import numpy as np
from spanlite_pipeline.sampling import Budget, RuleSet

MINUTE = 60_000_000_000
RULES = """
policies:
  - {name: seldom, type: rare, rare: {per_minute: 2}}
"""


def marked(make_view: Any, budget: Budget, **columns: list[Any]) -> list[bool]:
    columns.setdefault("kind", [1] * len(columns["name"]))
    return [bool(b) for b in RuleSet.from_yaml(RULES).span_matches(make_view(**columns), budget)]


def test_first_traces_of_each_name(make_view: Any) -> None:
    budget = Budget(1)
    rows = marked(make_view, budget, name=["a", "a", "a", "b", "a"], trace_id_low=[1, 1, 2, 2, 3])
    assert rows == [True, False, True, True, False]  # once a trace, two traces a name
    assert marked(make_view, budget, name=["b", "b"], trace_id_low=[4, 5]) == [True, False]
    assert marked(make_view, budget, name=["a", "b"], trace_id_low=[6, 7]) == [False, False]


def test_each_minute_starts_anew_and_late_batches_find_their_own(make_view: Any) -> None:
    budget = Budget(1)
    start = [5, MINUTE - 1, MINUTE, MINUTE + 1, 2 * MINUTE]
    rows = marked(make_view, budget, name=["a"] * 5, trace_id_low=[1, 2, 3, 4, 5], start_ns=start)
    assert rows == [True] * 5
    assert marked(make_view, budget, name=["a"], start_ns=[7]) == [False]
    assert marked(make_view, budget, name=["a"], start_ns=[2 * MINUTE + 9]) == [True]


def test_only_kernels_count(make_view: Any) -> None:
    assert marked(make_view, Budget(1), name=["a", "b"], kind=[5, 7]) == [False, False]


def test_a_budget_goes_on_after_a_restart(make_view: Any) -> None:
    budget = Budget(1)
    assert marked(make_view, budget, name=["a"]) == [True]
    budget = Budget.from_bytes(budget.to_bytes())
    assert marked(make_view, budget, name=["a", "a"], trace_id_low=[2, 3]) == [True, False]


def test_every_bucket_keeps_at_least_one(make_view: Any) -> None:
    rows = marked(make_view, Budget(64), name=["a", "a"], trace_id_low=[1, 2])
    assert rows == [True, False]


def test_without_a_budget_nothing_is_rare(make_view: Any) -> None:
    rules = RuleSet.from_yaml(RULES)
    assert not rules.span_matches(make_view(name=["a"], kind=[1])).any()


def test_a_rare_trace_is_kept_with_weight_one(make_view: Any, make_traces: Any) -> None:
    rules = RuleSet.from_yaml(
        RULES + "  - {name: p, type: probabilistic, probabilistic: {sampling_percentage: 1}}\n"
    )
    bits = rules.span_matches(make_view(name=["a"], kind=[1]), Budget(1))
    got = rules.decide(make_traces(1, matches=[np.bitwise_or.reduce(bits)]), Budget(1), 0)
    assert got.kept.all() and got.weight.tolist() == [1.0]
