"""What limits a kernel and what to try first, from its launch, its counters and its binary."""

from spanlite_analytics.lab.explain.case import Case, Resources, read_resources
from spanlite_analytics.lab.explain.rules import Finding, explain

__all__ = ["Case", "Finding", "Resources", "explain", "read_resources"]
