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
from spanlite_pipeline.sampling._verdict import Verdict
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
        self._random = {
            index
            for index, policy in enumerate(self.policies)
            if any(
                isinstance(n, nodes.Probabilistic | nodes.Limit) for n in nodes.walk([policy.node])
            )
        }
        self._verdict = Verdict([p.mode for p in self.policies], self.sample_on_first_match)

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
        fixed = {
            index: policy.node.keeps(round_, _draws.NOTHING)
            for index, policy in enumerate(self.policies)
            if index not in self._random
        }
        draws = _draws.TraceDraws(traces.trace_low, traces.trace_high)
        kept, policy = self._verdict.full(self._answers(round_, fixed, draws), len(traces))
        weight = np.zeros(len(traces))
        weight[kept] = 1.0 / self._chance(round_, fixed)[kept]
        return Decisions(kept, policy, weight)

    def _answers(
        self, round_: nodes.Round, fixed: dict[int, Any], chance: _draws.Chance
    ) -> list[Any]:
        """Each policy's answer for each trace; `fixed` holds those that draw nothing."""
        return [
            fixed[index] if index in fixed else policy.node.keeps(round_, chance)
            for index, policy in enumerate(self.policies)
        ]

    def _chance(self, round_: nodes.Round, fixed: dict[int, Any]) -> npt.NDArray[np.float64]:
        """How probable it was, before the draw, that each trace is kept."""
        return round_.probability(
            [self.policies[index].node for index in sorted(self._random)],
            lambda chance: self._verdict.kept(
                self._answers(round_, fixed, chance), len(round_.traces)
            ),
        )

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

    def describe(self) -> list[str]:
        """One line a policy, for `check-rules`."""
        effect = {"sample": "samples", "invert": "samples unless matched", "drop": "drops"}
        return [
            f"{index}  {p.name} (line {p.line}): {p.kind}, {effect[p.mode]}"
            for index, p in enumerate(self.policies)
        ]
