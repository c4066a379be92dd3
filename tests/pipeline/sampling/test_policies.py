"""Each policy means what the collector's means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spanlite_pipeline.sampling import Budget, RuleSet


def rules_of(*policies: str, first_match: bool = False) -> RuleSet:
    head = f"sample_on_first_match: {str(first_match).lower()}\npolicies:\n"
    return RuleSet.from_yaml(head + "".join(f"  - {policy}\n" for policy in policies))


MS = 1_000_000
LATENCY = "{name: slow, type: latency, latency: {threshold_ms: 5, upper_threshold_ms: %d}}"


@pytest.mark.parametrize(
    ("upper", "took_ns", "kept"),
    [
        (0, [0, 5 * MS - 1, 5 * MS, 9 * MS], [False, False, True, True]),
        # With an upper bound the lower one is left out and the upper one is included.
        (8, [5 * MS, 6 * MS - 1, 6 * MS, 9 * MS - 1, 9 * MS], [False, False, True, True, False]),
    ],
)
def test_latency(make_traces: Any, upper: int, took_ns: list[int], kept: list[bool]) -> None:
    traces = make_traces(len(took_ns), end_ns=took_ns)
    found = rules_of(LATENCY % upper).decide(traces, Budget(1), 0)
    assert found.kept.tolist() == kept
    assert found.policy.tolist() == [0 if k else -1 for k in kept]


def test_span_count(make_traces: Any) -> None:
    traces = make_traces(4, spans=[1, 2, 20, 21])
    both = rules_of("{name: n, type: span_count, span_count: {min_spans: 2, max_spans: 20}}")
    assert both.decide(traces, Budget(1), 0).kept.tolist() == [False, True, True, False]
    least = rules_of("{name: n, type: span_count, span_count: {min_spans: 2}}")
    assert least.decide(traces, Budget(1), 0).kept.tolist() == [False, True, True, True]


def test_no_traces_at_all(make_traces: Any) -> None:
    found = rules_of("{name: a, type: always_sample}").decide(make_traces(0), Budget(1), 0)
    assert len(found.kept) == len(found.policy) == len(found.weight) == 0


KEYS = {
    "has": "{name: has, type: string_attribute, string_attribute: {key: k, values: [a]}}",
    "not_b": "{name: not_b, type: string_attribute, "
    "string_attribute: {key: k, values: [b], invert_match: true}}",
    "drop_c": "{name: drop_c, type: drop, drop: {drop_sub_policy: "
    "[{name: c, type: string_attribute, string_attribute: {key: k, values: [c]}}]}}",
    "all": "{name: all, type: always_sample}",
}


def kept_for(make_view: Any, make_traces: Any, rules: RuleSet, *values: str) -> tuple[bool, str]:
    """The decision for one trace whose spans have these values of `k`."""
    attributes = [f'{{"k": "{value}"}}' for value in values]
    bits = np.bitwise_or.reduce(rules.span_matches(make_view(attributes=attributes)))
    found = rules.decide(make_traces(1, matches=[bits]), Budget(1), 0)
    index = int(found.policy[0])
    return bool(found.kept[0]), rules.policy_names[index] if index >= 0 else ""


@pytest.mark.parametrize(
    ("policies", "values", "kept", "policy"),
    [
        (["has"], ["a"], True, "has"),
        (["has"], ["x", "a"], True, "has"),
        (["has"], ["x"], False, ""),
        # A drop wins over any yes, wherever it stands.
        (["all", "drop_c"], ["c"], False, "drop_c"),
        (["all", "drop_c"], ["a"], True, "all"),
        # An inverted policy alone: yes unless matched.
        (["not_b"], ["x"], True, "not_b"),
        (["not_b"], ["b", "x"], False, "not_b"),
        # An inverted no wins over a yes; an inverted yes loses against a plain no.
        (["has", "not_b"], ["a", "b"], False, "not_b"),
        (["has", "not_b"], ["x"], False, ""),
        (["has", "not_b"], ["a"], True, "has"),
        # A drop policy that does not drop is a plain no as well.
        (["not_b", "drop_c"], ["x"], False, ""),
    ],
)
def test_the_last_word(
    make_view: Any,
    make_traces: Any,
    policies: list[str],
    values: list[str],
    kept: bool,
    policy: str,
) -> None:
    rules = rules_of(*(KEYS[name] for name in policies))
    assert kept_for(make_view, make_traces, rules, *values) == (kept, policy)


def test_first_match_asks_nobody_after_a_yes(make_view: Any, make_traces: Any) -> None:
    order = [KEYS["all"], KEYS["drop_c"]]
    late_drop = rules_of(*order, first_match=True)
    assert kept_for(make_view, make_traces, late_drop, "c") == (True, "all")
    early_drop = rules_of(*reversed(order), first_match=True)
    assert kept_for(make_view, make_traces, early_drop, "c") == (False, "drop_c")


def test_and_takes_all_and_inverts_plainly(make_view: Any, make_traces: Any) -> None:
    rules = rules_of(
        "{name: both, type: and, and: {and_sub_policy: ["
        "{name: x, type: string_attribute, string_attribute: {key: k, values: [a]}},"
        "{name: y, type: string_attribute, "
        "string_attribute: {key: k, values: [b], invert_match: true}}"
        "]}}"
    )
    assert kept_for(make_view, make_traces, rules, "a") == (True, "both")
    assert kept_for(make_view, make_traces, rules, "a", "b") == (False, "")
    assert kept_for(make_view, make_traces, rules, "x") == (False, "")


def test_probabilistic_takes_its_share_in_every_bucket(make_traces: Any) -> None:
    from spanlite.bucket import bucket_of

    rules = rules_of("{name: p, type: probabilistic, probabilistic: {sampling_percentage: 20}}")
    traces = make_traces(200_000, seed=7)
    kept = rules.decide(traces, Budget(64), 0).kept
    buckets = bucket_of(traces.trace_low, traces.trace_high, 64)
    shares = np.bincount(buckets, kept) / np.bincount(buckets)
    # 3,125 traces a bucket: a standard deviation of 0.7 points; 64 buckets, so allow 4.5.
    assert np.abs(shares - 0.2).max() < 4.5 * 0.0072


def test_probabilistic_salts(make_traces: Any) -> None:
    policy = (
        "{name: p, type: probabilistic, probabilistic: {sampling_percentage: %s, hash_salt: %s}}"
    )
    traces = make_traces(20_000)

    def kept(share: object, salt: str) -> Any:
        return rules_of(policy % (share, salt)).decide(traces, Budget(1), 0).kept

    small, large, other = kept(10, "x"), kept(50, "x"), kept(50, "y")
    assert not (small & ~large).any()  # the same salt: the larger share holds the smaller
    assert abs(other[large].mean() - 0.5) < 0.03  # another salt: independent
    assert kept(100, "x").all() and kept(150, "x").all() and not kept(0, "x").any()


def test_the_same_trace_meets_the_same_fate_alone(make_traces: Any) -> None:
    rules = rules_of("{name: p, type: probabilistic, probabilistic: {sampling_percentage: 30}}")
    together = rules.decide(make_traces(500, seed=3), Budget(64), 0)
    again = RuleSet.from_yaml(
        "policies:\n- {name: q, type: probabilistic, probabilistic: {sampling_percentage: 30}}\n"
    ).decide(make_traces(500, seed=3), Budget(8), 99)
    np.testing.assert_array_equal(together.kept, again.kept)
    np.testing.assert_allclose(together.weight[together.kept], 1 / 0.3)


@pytest.mark.parametrize(
    ("policy", "unit"),
    [
        ("{name: r, type: rate_limiting, rate_limiting: {spans_per_second: 6400}}", "spans"),
        ("{name: r, type: bytes_limiting, bytes_limiting: {bytes_per_second: 6400}}", "wire_bytes"),
    ],
)
def test_limits_hold_the_rate_of_one_bucket(make_traces: Any, policy: str, unit: str) -> None:
    rules, budget = rules_of(policy), Budget(64)
    passed = 0
    for second in range(200):
        traces = make_traces(100, seed=second, **{unit: 10})
        passed += 10 * int(rules.decide(traces, budget, second * 10**9).kept.sum())
    # 100 a second for this bucket and 200 saved at the start; 1,000 a second are offered.
    expected = 200 * 100 + 200
    assert abs(passed - expected) < 0.05 * expected


def test_a_limit_within_and_sees_only_what_the_others_let_through(
    make_view: Any, make_traces: Any
) -> None:
    rules = rules_of(
        "{name: b, type: and, and: {and_sub_policy: ["
        "{name: l, type: rate_limiting, rate_limiting: {spans_per_second: 50}},"
        "{name: n, type: span_count, span_count: {min_spans: 10}}]}}"
    )
    traces = make_traces(1000, spans=np.where(np.arange(1000) < 10, 10, 1))
    found = rules.decide(traces, Budget(1), 0)
    assert found.kept[:10].all() and not found.kept[10:].any()  # 100 spans, 100 saved


def test_composite_stops_at_the_first_that_samples(make_traces: Any) -> None:
    rules = rules_of(
        "{name: mix, type: composite, composite: {max_total_spans_per_second: 1000,"
        "policy_order: [long, rest], composite_sub_policy: ["
        "{name: long, type: latency, latency: {threshold_ms: 1}},"
        "{name: rest, type: always_sample}],"
        "rate_allocation: [{policy: long, percent: 10}, {policy: rest, percent: 90}]}}"
    )
    long = np.arange(2000) < 1000
    found = rules.decide(make_traces(2000, end_ns=np.where(long, 2 * MS, 0)), Budget(1), 0)
    assert abs(int(found.kept[long].sum()) - 100) < 45  # its 100, and no fallback to the rest
    assert abs(int(found.kept[~long].sum()) - 900) < 45
    assert abs(found.weight.sum() - 2000) < 500
