"""Weights make sums unbiased, whatever the rules: the reason why they exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite_pipeline.sampling import Budget, RuleSet

LATENCY = "type: latency, latency: {{threshold_ms: {}}}"
COUNT = "type: span_count, span_count: {{min_spans: {}}}"
CHANCE = "type: probabilistic, probabilistic: {{sampling_percentage: {}, hash_salt: s{}}}"
LIMIT = "type: rate_limiting, rate_limiting: {{spans_per_second: {}}}"

leaves = st.one_of(
    st.integers(1, 9).map(LATENCY.format),
    st.integers(1, 9).map(COUNT.format),
    st.tuples(st.sampled_from([15, 40, 80]), st.integers(0, 2)).map(lambda t: CHANCE.format(*t)),
    st.sampled_from([4000, 20000]).map(LIMIT.format),
)


def _named(bodies: list[str]) -> str:
    return ", ".join(f"{{name: s{i}, {body}}}" for i, body in enumerate(bodies))


groups = st.lists(leaves, min_size=1, max_size=2)
policies = st.one_of(
    leaves,
    groups.map(lambda g: f"type: and, and: {{and_sub_policy: [{_named(g)}]}}"),
    groups.map(
        lambda g: (
            "type: composite, composite: {max_total_spans_per_second: 9000, "
            f"composite_sub_policy: [{_named(g)}]}}"
        )
    ),
    leaves.map(lambda b: f"type: not, not: {{not_sub_policy: {{name: n, {b}}}}}"),
)


def _population(make_traces: Any, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    took_ms, spans = rng.integers(0, 10, count), rng.integers(1, 10, count)
    return make_traces(count, seed=seed, end_ns=took_ms * 1_000_000, spans=spans)


REPEATS = 12


def _check(make_traces: Any, rules: RuleSet, seed: int) -> None:
    """Sums over several kinds of traces, over fresh draws, within five standard errors."""
    traces = _population(make_traces, 6000, seed)
    rng = np.random.default_rng(seed)
    weights = np.zeros((REPEATS, len(traces)))
    for row in weights:
        traces.trace_low = rng.integers(0, 1 << 64, len(traces), dtype=np.uint64)
        got = rules.decide(traces, Budget(1), 0)
        row[:] = got.weight
        assert (row[got.kept] >= 1.0).all() and not row[~got.kept].any()
    # What the rules never keep, no weight can stand for; of all else the sums must agree.
    kind = traces.spans * 10 + traces.end_ns // 1_000_000
    covered = np.bincount(kind, weights.sum(axis=0))[kind] > 0
    for group in (traces.spans > 0, kind % 10 < 3, kind % 10 >= 7, traces.spans >= 7):
        chosen = weights[:, group & covered]
        error = np.sqrt((chosen**2).sum()) / REPEATS
        assert abs(chosen.sum() / REPEATS - chosen.shape[1]) <= 5 * error


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(policies, min_size=1, max_size=3), st.booleans(), st.integers(0, 3))
def test_sums_are_unbiased(make_traces: Any, bodies: list[str], first: bool, seed: int) -> None:
    text = f"sample_on_first_match: {str(first).lower()}\npolicies: [{_named(bodies)}]\n"
    _check(make_traces, RuleSet.from_yaml(text), seed)


def _rules(*bodies: str) -> RuleSet:
    return RuleSet.from_yaml(f"decision_wait: 1s\npolicies: [{_named(list(bodies))}]\n")


def test_a_trace_kept_for_its_kind_stands_for_itself(make_traces: Any) -> None:
    rules = _rules(CHANCE.format(10, 0), LATENCY.format(5))
    traces = make_traces(5000, end_ns=np.where(np.arange(5000) < 2500, 9_000_000, 0))
    got = rules.decide(traces, Budget(64), 0)
    assert got.kept[:2500].all()
    assert (got.weight[:2500] == 1.0).all()  # also where the dice would have kept it too
    np.testing.assert_allclose(got.weight[2500:][got.kept[2500:]], 10.0)


@pytest.mark.parametrize(("salts", "weight"), [((0, 0), 1 / 0.5), ((0, 1), 1 / (1 - 0.5 * 0.8))])
def test_two_chances_count_together(
    make_traces: Any, salts: tuple[int, int], weight: float
) -> None:
    rules = _rules(CHANCE.format(50, salts[0]), CHANCE.format(20, salts[1]))
    got = rules.decide(make_traces(1000), Budget(64), 0)
    np.testing.assert_allclose(got.weight[got.kept], weight)


def test_limits_are_unbiased_over_time_and_sizes(make_traces: Any) -> None:
    rules, budget = _rules(LIMIT.format(64_000)), Budget(64)
    weighted, spans, big_weighted, big, count = 0.0, 0, 0.0, 0, 0
    for tick in range(300):
        sizes = np.where(np.arange(200) % 10 == 0, 100, 3)
        load = 20 + 180 * (tick % 3 == 0)
        traces = make_traces(load, seed=tick, spans=sizes[:load])
        got = rules.decide(traces, budget, tick * 10**8)
        weighted += float((got.weight * traces.spans).sum())
        spans += int(traces.spans.sum())
        large = traces.spans == 100
        big_weighted += float(got.weight[large].sum())
        big += int(large.sum())
        count += int(got.kept.sum())
    assert count < 0.6 * 24_000  # it does limit
    assert abs(weighted / spans - 1) < 0.1
    assert abs(big_weighted / big - 1) < 0.1
