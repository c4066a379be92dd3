"""The whole way from recordings to a report with causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spanlite_replay.bottlenecks.causes import Cause, find_causes, find_long_tail
from spanlite_replay.bottlenecks.compared import FEWEST, Comparison
from spanlite_replay.bottlenecks.groups import Group, group_of
from spanlite_replay.bottlenecks.picking import pick_slow
from spanlite_replay.bottlenecks.report import Analysis, Bottlenecks, analyse, summarise
from spanlite_replay.recording import Recording


@dataclass(frozen=True)
class Diagnosis:
    """A report, what was compared, and the causes of the difference."""

    report: Bottlenecks
    comparison: Comparison | None
    compared: str

    @property
    def causes(self) -> list[Cause]:
        """The one that explains most first."""
        return list(self.report.causes)

    @property
    def unexplained(self) -> float:
        """The share of the difference that no cause explains; 0 where there is no difference."""
        if self.comparison is None or not self.comparison.is_significant:
            return 0.0
        return max(0.0, 1.0 - sum(cause.share for cause in self.causes))


def diagnose(recording: Recording, baseline: Recording | None = None) -> Diagnosis:
    """Analyse a recording: against a baseline, else its slow windows against its usual ones.

    Raises InputError where either holds no device work.
    """
    analysis = analyse(recording)
    if baseline is None:
        comparison, compared = _within(analysis)
    else:
        comparison, compared = _against(analysis, analyse(baseline))
    causes = find_long_tail(analysis) + (find_causes(comparison) if comparison else [])
    causes.sort(key=lambda cause: -cause.explained_ns)
    return Diagnosis(summarise(analysis, causes), comparison, compared)


def _within(analysis: Analysis) -> tuple[Comparison | None, str]:
    usual, slow = pick_slow(analysis)
    unit = _plural(analysis)
    if not slow.any() and usual.sum() > FEWEST:
        return None, f"none of {int(usual.sum()):,} {unit} stands out"
    if slow.sum() < FEWEST or usual.sum() < FEWEST:
        return None, (
            f"{int(slow.sum()):,} slow {unit} and {int(usual.sum()):,} usual ones: too few to "
            f"compare ({FEWEST} of each; the first of each thread is left out as warm-up)"
        )
    comparison = Comparison(
        group_of(analysis, usual), group_of(analysis, slow), analysis.rec.windows.unit
    )
    return comparison, _said(comparison, f"slow {unit}", f"usual {unit}")


def _against(analysis: Analysis, baseline: Analysis) -> tuple[Comparison, str]:
    comparison = Comparison(_all(baseline), _all(analysis), analysis.rec.windows.unit)
    return comparison, _said(comparison, _plural(analysis), f"{_plural(baseline)} of the baseline")


def _plural(analysis: Analysis) -> str:
    return {"process": "processes"}.get(unit := analysis.rec.windows.unit, f"{unit}s")


def _all(analysis: Analysis) -> Group:
    return group_of(analysis, np.ones(len(analysis.rec.windows), np.bool_))


def _said(comparison: Comparison, these: str, those: str) -> str:
    slow, usual = comparison.slow, comparison.usual
    return (
        f"{slow.windows:,} {these} of {slow.length_ns / 1e6:,.3f} ms on average against "
        f"{usual.windows:,} {those} of {usual.length_ns / 1e6:,.3f} ms"
    )
