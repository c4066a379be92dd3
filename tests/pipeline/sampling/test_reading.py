"""Rule files: what is read, and what is said of what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from spanlite.errors import UsageError
from spanlite_pipeline import sampling
from spanlite_pipeline.sampling import RuleSet

DEFAULT = Path(sampling.__file__).parent.parent / "rules" / "default.yaml"

COLLECTOR = """
receivers: {otlp: {}}
processors:
  batch: {}
  tail_sampling/gpu:
    decision_wait: 1m30s
    num_traces: 100
    decision_cache: {sampled_cache_size: 100_000}
    policies:
      [
        {name: all, type: always_sample},
        {name: slow, type: latency, latency: {threshold_ms: 5000, upper_threshold_ms: 10000}},
        {name: num, type: numeric_attribute,
          numeric_attribute: {key: key1, min_value: 50, max_value: 100}},
        {name: some, type: probabilistic, probabilistic: {sampling_percentage: 10}},
        {name: bad, type: status_code, status_code: {status_codes: [ERROR, UNSET]}},
        {name: text, type: string_attribute, string_attribute: {key: key2, values: [value1, val*],
          enabled_regex_matching: true, cache_max_size: 10}},
        {name: rate, type: rate_limiting, rate_limiting: {spans_per_second: 35}},
        {name: bytes, type: bytes_limiting,
          bytes_limiting: {bytes_per_second: 1024, burst_capacity: 4096}},
        {name: count, type: span_count, span_count: {min_spans: 2, max_spans: 20}},
        {name: flag, type: boolean_attribute, boolean_attribute: {key: key4, value: true}},
        {name: both, type: and, and: {and_sub_policy: [
          {name: a, type: numeric_attribute, numeric_attribute: {key: key1, min_value: 50}},
          {name: b, type: not, not: {not_sub_policy:
            {name: c, type: string_attribute, string_attribute: {key: key2, values: [x]}}}}]}},
        {name: away, type: drop, drop: {drop_sub_policy: [
          {name: health, type: string_attribute,
           string_attribute: {key: url.path, values: [/health]}}]}},
        {name: mix, type: composite, composite: {max_total_spans_per_second: 1000,
          policy_order: [m2, m1],
          composite_sub_policy: [
            {name: m1, type: always_sample},
            {name: m2, type: numeric_attribute, numeric_attribute: {key: key1, min_value: 50}}],
          rate_allocation: [{policy: m2, percent: 25}]}},
        {name: seldom, type: rare, rare: {per_minute: 3}},
      ]
"""


def test_a_whole_collector_configuration_is_read() -> None:
    rules = RuleSet.from_yaml(COLLECTOR)
    assert rules.policy_names[:3] == ["all", "slow", "num"]
    assert len(rules.policies) == 14
    assert rules.decision_wait_s == 90.0
    assert rules.ignored_settings == ["num_traces", "decision_cache"]


def test_the_default_rules_are_valid() -> None:
    rules = RuleSet.from_yaml(DEFAULT)
    assert rules.policy_names == ["errors", "slow", "rare-kernels", "tenth"]
    assert len(rules.describe()) == 4


def test_composite_gives_what_is_left_to_those_not_named() -> None:
    rules = RuleSet.from_yaml(COLLECTOR)
    mix = next(p for p in rules.policies if p.name == "mix")
    assert [(n.name, n.rate) for n in mix.node.limits] == [  # type: ignore[attr-defined]
        ("limit:mix/m2", 250.0),
        ("limit:mix/m1", 750.0),
    ]


def _policy(body: str) -> str:
    return "decision_wait: 1s\npolicies:\n  - name: p1\n" + body


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_policy("    type: latencey\n"), ["line 4", "'p1'", "did you mean 'latency'", "rare"]),
        (
            _policy("    type: latency\n    latency: {threshold: 5}\n"),
            ["line 5", "'p1'", "did you mean 'threshold_ms'"],
        ),
        (_policy("    type: latency\n"), ["'p1'", "'latency' is missing"]),
        (_policy("    type: trace_state\n"), ["not supported", "trace state"]),
        (
            _policy("    type: status_code\n    status_code: {status_codes: [ERR]}\n"),
            ["'ERR'", "did you mean 'ERROR'"],
        ),
        (
            _policy("    type: probabilistic\n    probabilistic: {sampling_percentage: ten}\n"),
            ["line 5", "'ten'", "a number"],
        ),
        (
            _policy(
                "    type: string_attribute\n"
                "    string_attribute: {key: k, values: ['('], enabled_regex_matching: true}\n"
            ),
            ["line 5", "regular expression"],
        ),
        (
            _policy(
                "    type: string_attribute\n    string_attribute: {key: gpu.stream, values: [a]}\n"
            ),
            ["numeric_attribute"],
        ),
        (
            _policy(
                "    type: numeric_attribute\n"
                "    numeric_attribute: {key: gpu.steam, min_value: 1}\n"
            ),
            ["did you mean 'gpu.stream'"],
        ),
        (
            "policies:\n - {name: a, type: always_sample}\n - {name: a, type: always_sample}\n",
            ["two"],
        ),
        ("policys: []\n", ["did you mean 'policies'"]),
        ("decision_wait: soon\npolicies: [{name: a, type: always_sample}]\n", ["line 1", "30s"]),
        ("processors:\n  batch: {}\n", ["found none"]),
        ("- a\n- b\n", ["holds no rules"]),
        ("a: [\n", ["not YAML"]),
    ],
)
def test_complaints_name_the_place_and_what_is_known(text: str, says: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        RuleSet.from_yaml(text)
    for part in says:
        assert part in str(caught.value)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the rules"):
        RuleSet.from_yaml(tmp_path / "none.yaml")


def test_too_many_conditions_and_too_many_salts_are_refused() -> None:
    def many(count: int, body: str) -> str:
        return "policies:\n" + "".join(
            f"  - {{name: p{i}, {body.format(i)}}}\n" for i in range(count)
        )

    numbers = "type: numeric_attribute, numeric_attribute: {{key: k{}, min_value: 1}}"
    RuleSet.from_yaml(many(64, numbers))
    with pytest.raises(UsageError, match="more than 64"):
        RuleSet.from_yaml(many(65, numbers))
    salts = "type: probabilistic, probabilistic: {{sampling_percentage: 10, hash_salt: s{}}}"
    RuleSet.from_yaml(many(12, salts))
    with pytest.raises(UsageError, match="same hash_salt"):
        RuleSet.from_yaml(many(13, salts))
