"""What limits a kernel and what to try first, from its launch, its counters and its binary."""

from spanlite_analytics.lab.explain.case import Case
from spanlite_analytics.lab.explain.finding import Finding
from spanlite_analytics.lab.explain.rules import explain
from spanlite_analytics.lab.explain.sampled import Sampled, sampled
from spanlite_analytics.lab.resources import Resources, read_resources

__all__ = ["Case", "Finding", "Resources", "Sampled", "explain", "read_resources", "sampled"]
