"""From the collector's `tail_sampling` section to a tree of nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from spanlite.errors import UsageError
from spanlite.kinds import SpanStatus

from spanlite_pipeline.sampling import _nodes as nodes
from spanlite_pipeline.sampling._columns import BUILT_INS
from spanlite_pipeline.sampling._predicates import (
    BoolTest,
    NumberTest,
    Questions,
    RareTest,
    StatusTest,
    StringTest,
)
from spanlite_pipeline.sampling._yaml import Section, suggest

#: The collector's salt where none is given is another fixed text; ours differs from it, since
#: its hash differs as well.
DEFAULT_SALT = "spanlite"
STATUS_CODES = {"UNSET": SpanStatus.UNSET, "OK": SpanStatus.OK, "ERROR": SpanStatus.ERROR}
#: Known to the collector, but not to be had from GPU spans.
ELSEWHERE = {
    "trace_state": "spans here carry no trace state",
    "trace_flags": "spans here carry no trace flags",
    "ottl_condition": "OTTL is not built in; string_attribute, numeric_attribute, and, not help",
}


@dataclass
class Policy:
    """A top-level policy. `mode`: `sample`, `invert` (the collector's inverted match) or `drop`."""

    name: str
    kind: str
    node: nodes.Node
    mode: str
    line: int


@dataclass
class Reader:
    """Reads policies; collects the questions that they ask of spans."""

    questions: Questions = field(default_factory=Questions)

    def policy(self, section: Section) -> Policy:
        """A top-level policy. Raises UsageError."""
        name = section.text("name")
        node = self.node(section, name)
        kind = section.text("type")
        mode = "drop" if kind == "drop" else "sample"
        if isinstance(node, nodes.Matched) and node.invert:
            mode = "invert"
        return Policy(name, kind, node, mode, section.line)

    def node(self, section: Section, path: str) -> nodes.Node:
        """Any policy as a node; `path` names it among all. Raises UsageError."""
        kind = section.text("type")
        if kind in ELSEWHERE:
            section.fail(f"policy type '{kind}' is not supported: {ELSEWHERE[kind]}")
        if kind not in _TYPES:
            section.fail(
                f"unknown policy type '{kind}': {suggest(kind, _TYPES)}", section.line_of("type")
            )
        section.check_keys(["name", "type", kind])
        if kind == "always_sample":
            return nodes.Always()
        body = section.section(kind, where=section.where)
        return _TYPES[kind](self, body, path)

    def _latency(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["threshold_ms", "upper_threshold_ms"])
        low, high = body.number("threshold_ms"), body.number("upper_threshold_ms", 0)
        if high and high <= low:
            body.fail(f"upper_threshold_ms {high} is not above threshold_ms {low}")
        return nodes.Latency(low, high)

    def _status_code(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["status_codes"])
        codes = []
        for word in body.texts("status_codes"):
            if word not in STATUS_CODES:
                body.fail(f"unknown status code '{word}': {suggest(word, STATUS_CODES)}")
            codes.append(int(STATUS_CODES[word]))
        return nodes.Matched(self.questions.bit(StatusTest(tuple(sorted(set(codes))))))

    def _probabilistic(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["sampling_percentage", "hash_salt"])
        percentage = body.number("sampling_percentage", 0, whole=False)
        salt = body.text("hash_salt", "") or DEFAULT_SALT
        return nodes.Probabilistic(f"salt:{salt}", min(percentage / 100.0, 1.0))

    def _numeric(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["key", "min_value", "max_value", "invert_match"])
        key = _key(body, text=False)
        low = body.number("min_value", None, minimum=None, whole=False)
        high = body.number("max_value", None, minimum=None, whole=False)
        if low is None and high is None:
            body.fail("give 'min_value', 'max_value' or both")
        if low is not None and high is not None and high < low:
            body.fail(f"max_value {high} is below min_value {low}")
        bit = self.questions.bit(NumberTest(key, low, high))
        return nodes.Matched(bit, body.flag("invert_match", False))

    def _string(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(
            ["key", "values", "enabled_regex_matching", "cache_max_size", "invert_match"]
        )
        body.number("cache_max_size", 0)
        values = body.texts("values")
        regex = body.flag("enabled_regex_matching", False)
        if regex:
            _check_patterns(body, values)
        bit = self.questions.bit(StringTest(_key(body, text=True), tuple(values), regex))
        return nodes.Matched(bit, body.flag("invert_match", False))

    def _boolean(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["key", "value", "invert_match"])
        key = body.text("key")
        if key in BUILT_INS:
            body.fail(f"'{key}' is no boolean", body.line_of("key"))
        bit = self.questions.bit(BoolTest(key, body.flag("value", False)))
        return nodes.Matched(bit, body.flag("invert_match", False))

    def _span_count(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["min_spans", "max_spans"])
        low, high = body.number("min_spans", 0), body.number("max_spans", 0)
        if high and high < low:
            body.fail(f"max_spans {high} is below min_spans {low}")
        return nodes.SpanCount(low, high)

    def _rate(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["spans_per_second", "burst_capacity"])
        rate = body.number("spans_per_second", minimum=1)
        burst = body.number("burst_capacity", 0) or 2 * rate
        return nodes.Limit(f"limit:{path}", rate, burst, "spans")

    def _bytes(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["bytes_per_second", "burst_capacity"])
        rate = body.number("bytes_per_second", minimum=1)
        burst = body.number("burst_capacity", 0) or 2 * rate
        return nodes.Limit(f"limit:{path}", rate, burst, "wire_bytes")

    def _rare(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["per_minute"])
        return nodes.Matched(self.questions.bit(RareTest(body.number("per_minute", minimum=1))))

    def _and(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["and_sub_policy"])
        return self._all(body, "and_sub_policy", path)

    def _drop(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["drop_sub_policy"])
        return self._all(body, "drop_sub_policy", path)

    def _all(self, body: Section, key: str, path: str) -> nodes.Node:
        parts = self._parts(body, key, path)
        return nodes.All(tuple(parts.values()))

    def _parts(self, body: Section, key: str, path: str) -> dict[str, nodes.Node]:
        out: dict[str, nodes.Node] = {}
        for section in body.sections(key):
            name = section.text("name")
            if name in out:
                section.fail(f"two policies are named '{name}'")
            section.where = f"{body.where}, {section.where}"
            if section.text("type") == "drop":
                section.fail("a drop policy stands at the top level only")
            out[name] = self.node(section, f"{path}/{name}")
        return out

    def _not(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(["not_sub_policy"])
        section = body.section("not_sub_policy", where=f"{body.where}, not_sub_policy")
        return nodes.Not(self.node(section, f"{path}/not"))

    def _composite(self, body: Section, path: str) -> nodes.Node:
        body.check_keys(
            [
                "max_total_spans_per_second",
                "policy_order",
                "composite_sub_policy",
                "rate_allocation",
            ]
        )
        total = body.number("max_total_spans_per_second", minimum=1)
        parts = self._parts(body, "composite_sub_policy", path)
        order = body.texts("policy_order") if "policy_order" in body else list(parts)
        for name in order:
            if name not in parts:
                body.fail(f"policy_order names '{name}': {suggest(name, parts)}")
        for name in parts:
            if name not in order:
                body.fail(f"policy_order leaves out '{name}'")
        rates = _allocations(body, list(parts), total)
        limits = [
            nodes.Limit(f"limit:{path}/{name}", rates[name], rates[name], "spans") for name in order
        ]
        return nodes.Composite(tuple(parts[name] for name in order), tuple(limits))


_TYPES: dict[str, Callable[[Reader, Section, str], nodes.Node]] = {
    "always_sample": lambda reader, body, path: nodes.Always(),
    "latency": Reader._latency,
    "status_code": Reader._status_code,
    "probabilistic": Reader._probabilistic,
    "numeric_attribute": Reader._numeric,
    "string_attribute": Reader._string,
    "boolean_attribute": Reader._boolean,
    "span_count": Reader._span_count,
    "rate_limiting": Reader._rate,
    "bytes_limiting": Reader._bytes,
    "and": Reader._and,
    "not": Reader._not,
    "drop": Reader._drop,
    "composite": Reader._composite,
    "rare": Reader._rare,
}


def _key(body: Section, text: bool) -> str:
    key: str = body.text("key")
    built_in = BUILT_INS.get(key)
    if built_in is not None and built_in.is_text != text:
        wanted = "string_attribute" if built_in.is_text else "numeric_attribute"
        body.fail(f"'{key}' needs the policy {wanted}", body.line_of("key"))
    if built_in is None and key.startswith(("spanlite.", "gpu.")):
        close = suggest(key, BUILT_INS)
        if close.startswith("did you mean"):
            body.fail(f"unknown column '{key}': {close}", body.line_of("key"))
    return key


def _check_patterns(body: Section, values: list[str]) -> None:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            body.fail(f"'{value}' is no regular expression: {error}", body.line_of("values"))


def _allocations(body: Section, names: list[str], total: float) -> dict[str, float]:
    """Spans a second for each sub-policy; those not named share what the others leave."""
    rates: dict[str, float] = {}
    for item in body.sections("rate_allocation") if "rate_allocation" in body else []:
        item.check_keys(["policy", "percent"])
        name = item.text("policy")
        if name not in names:
            item.fail(f"rate_allocation names '{name}': {suggest(name, names)}")
        percent = item.number("percent", 0, maximum=100)
        rates[name] = total * (percent / 100 if percent else 1 / len(names))
    if sum(rates.values()) > total * (1 + 1e-9):
        body.fail("rate_allocation gives away more than 100 percent")
    rest = [name for name in names if name not in rates]
    left = total - sum(rates.values())
    rates.update({name: left / len(rest) for name in rest})
    return rates


def find_rules(root: Section) -> Section:
    """The tail_sampling section of a whole collector configuration, or the file itself."""
    if "processors" not in root:
        if "tail_sampling" in root:
            return root.section("tail_sampling", where="tail_sampling")
        return root
    processors = root.section("processors")
    names = [name for name in processors.names() if name.split("/")[0] == "tail_sampling"]
    if len(names) == 1:
        return processors.section(names[0], where=names[0])
    found = f"{len(names)} of them" if names else "none"
    raise UsageError(f"{root.source}: expected one tail_sampling processor, found {found}")
