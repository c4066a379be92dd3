"""Answers from the SpanLite archive.

`load` and `query` give pandas data frames; `build_report` computes what `spanlite report`
shows; `balance` sums the ledger up.
"""

from spanlite_analytics.frames import load, query
from spanlite_analytics.ledger import balance
from spanlite_analytics.report import Filters, Report, build_report

__all__ = ["Filters", "Report", "balance", "build_report", "load", "query"]
