"""A set of sampling rules, ready to decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.codec import BatchView
from spanlite.errors import UsageError

from spanlite_pipeline.sampling import _draws, _rare
from spanlite_pipeline.sampling import _nodes as nodes
from spanlite_pipeline.sampling._parse import Policy, Reader, find_rules
from spanlite_pipeline.sampling._predicates import Questions
from spanlite_pipeline.sampling._yaml import Section, parse_yaml
from spanlite_pipeline.sampling.budget import Budget
from spanlite_pipeline.sampling.summaries import TraceSummaries

#: Settings of the collector that have no meaning here; accepted so that its files work.
IGNORED = (
    "num_traces",
    "expected_new_traces_per_sec",
    "decision_cache",
    "decision_wait_after_root_received",
    "drop_pending_traces_on_shutdown",
    "block_on_overflow",
    "maximum_trace_size_bytes",
    "sampling_strategy",
    "tail_storage",
)
KNOWN = ("policies", "decision_wait", "sample_on_first_match", *IGNORED)


@dataclass
class Decisions:
    """What becomes of each trace; columns of shape (n,)."""

    kept: npt.NDArray[np.bool_]
    policy: npt.NDArray[np.int32]  # index into RuleSet.policy_names, -1: no policy took it
    weight: npt.NDArray[np.float64]  # how many such traces a kept one stands for; 0 if not kept


class RuleSet:
    """Rules in the words of the OpenTelemetry collector's `tail_sampling` processor."""

    def __init__(self, section: Section) -> None:
        section.check_keys(KNOWN)
        reader = Reader()
        self.policies: list[Policy] = []
        for item in section.sections("policies"):
            policy = reader.policy(item)
            if policy.name in self.policy_names:
                item.fail(f"two policies are named '{policy.name}'")
            self.policies.append(policy)
        self._questions: Questions = reader.questions
        self.source = section.source
        self.decision_wait_s: float | None = section.seconds("decision_wait")
        self.sample_on_first_match: bool = section.flag("sample_on_first_match", False)
        self.ignored_settings: list[str] = [name for name in IGNORED if name in section]
        self._check_cells()

    @classmethod
    def from_yaml(cls, source: str | Path) -> RuleSet:
        """Rules from a file (a Path, or a one-line string) or from YAML text. Raises UsageError."""
        if isinstance(source, str) and "\n" in source:
            return cls(find_rules(parse_yaml(source, "the rules")))
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the rules {path}: {error}") from None
        return cls(find_rules(parse_yaml(text, str(path))))

    @property
    def policy_names(self) -> list[str]:
        """Names by Decisions.policy."""
        return [policy.name for policy in self.policies]

    def _nodes(self) -> list[nodes.Node]:
        return [policy.node for policy in self.policies]

    def _check_cells(self) -> None:
        limits = {n.name: 0.5 for n in nodes.walk(self._nodes()) if isinstance(n, nodes.Limit)}
        each = nodes.thresholds(self._nodes(), limits)
        size = math.prod(len(set(values)) + 1 for values in each.values())
        if size > _draws.MAX_CELLS:
            raise UsageError(
                f"{self.source}: {len(each)} random policies and limits with salts of their own "
                f"are too many to weigh ({size} combinations, at most {_draws.MAX_CELLS}): "
                f"give probabilistic policies the same hash_salt, or use fewer limits"
            )

    def span_matches(self, view: BatchView, budget: Budget | None = None) -> npt.NDArray[np.uint64]:
        """Bits of each span, shape (span_count,), for TraceSummaries.matches (OR them a trace).

        `rare` rules count kernel names in `budget`, so call it once for each batch, in order;
        without a budget they match nothing. The result may be a read-only view with stride 0.
        """
        out = self._questions.answer(view)
        rare = self._questions.rare
        if budget is None or not rare:
            return out
        limits = [(max(1, math.ceil(t.per_minute * budget.share)), bit) for t, bit in rare]
        marked = _rare.mark(view, budget, limits)
        return out if marked is None else out | marked

    def decide(self, traces: TraceSummaries, budget: Budget, now_ns: int) -> Decisions:
        """Decide these traces, and charge the budget. `now_ns` refills rate limits only."""
        round_ = nodes.Round(traces, budget, now_ns)
        self._settle(round_)
        draws = _draws.TraceDraws(traces.trace_low, traces.trace_high)
        kept, policy = self._outcome(round_, draws)
        chance = round_.probability(self._nodes(), lambda c: self._outcome(round_, c)[0])
        weight = np.zeros(len(traces))
        weight[kept] = 1.0 / chance[kept]
        return Decisions(kept, policy, weight)

    def _settle(self, round_: nodes.Round) -> None:
        reach = np.ones(len(round_.traces))
        before: list[nodes.Node] = []
        for policy in self.policies:
            if nodes.has_limits(policy.node):
                first = tuple(before) if self.sample_on_first_match else ()
                open_ = round_.probability(first, partial(nodes.none, first, round_))
                policy.node.settle(round_, reach * open_)
            if policy.mode == "sample":
                before.append(policy.node)

    def _outcome(
        self, round_: nodes.Round, chance: _draws.Chance
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """The collector's way from each policy's answer to the last word, and whose it was."""
        tally = _Tally(len(round_.traces), self.sample_on_first_match)
        for index, policy in enumerate(self.policies):
            tally.add(index, policy.mode, policy.node.keeps(round_, chance))
        return tally.result()

    def describe(self) -> list[str]:
        """One line a policy, for `check-rules`."""
        effect = {"sample": "samples", "invert": "samples unless matched", "drop": "drops"}
        return [
            f"{index}  {p.name} (line {p.line}): {p.kind}, {effect[p.mode]}"
            for index, p in enumerate(self.policies)
        ]


class _Tally:
    """The answers of all policies, by what they mean for the last word."""

    def __init__(self, count: int, first_match: bool) -> None:
        self._first_match = first_match
        self._open = np.ones(count, dtype=np.bool_)
        words = ("drop", "not_inverted", "sample", "inverted")
        self._who = {word: np.full(count, -1, dtype=np.int32) for word in words}
        self._refused = np.zeros(count, dtype=np.bool_)

    def _note(self, word: str, index: int, hit: Any) -> None:
        who = self._who[word]
        who[hit & (who < 0)] = index

    def add(self, index: int, mode: str, answer: Any) -> None:
        """The answer of a policy for each trace."""
        yes, no = answer & self._open, np.logical_not(answer) & self._open
        if mode == "invert":
            self._note("inverted", index, yes)
            self._note("not_inverted", index, no)
            return
        self._note(mode, index, yes)
        self._refused |= no
        if mode == "sample" and self._first_match:
            self._open &= np.logical_not(yes)

    def result(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """(kept, index of the policy that had the last word or -1)."""
        dropped, refused = self._who["drop"] >= 0, self._who["not_inverted"] >= 0
        sampled = self._who["sample"] >= 0
        inverted = (self._who["inverted"] >= 0) & ~self._refused
        kept = ~dropped & ~refused & (sampled | inverted)
        policy = np.select(
            [dropped, refused, sampled, inverted],
            [self._who[word] for word in ("drop", "not_inverted", "sample", "inverted")],
            default=np.int32(-1),
        )
        return kept, policy.astype(np.int32)
