"""Tail sampling: which whole traces to keep, and how many each kept one stands for.

No Flink here: numpy in, numpy out, so that rules can be tried and tested on their own.
"""

from spanlite_pipeline.sampling.budget import Budget
from spanlite_pipeline.sampling.rules import Decisions, RuleSet
from spanlite_pipeline.sampling.summaries import TraceSummaries

__all__ = ["Budget", "Decisions", "RuleSet", "TraceSummaries"]
