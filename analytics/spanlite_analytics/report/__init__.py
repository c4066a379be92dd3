"""The report: what ran, what took the time, and what made slow traces slow."""

from spanlite_analytics.report.build import Report, build_report
from spanlite_analytics.report.source import Filters

__all__ = ["Filters", "Report", "build_report"]
