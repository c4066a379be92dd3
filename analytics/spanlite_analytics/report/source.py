"""What a report reads: the archive's views within a window, for some services and hosts.

`r_minutes` and `r_traces` are about all spans and traces. Where an archive has no roll-ups
or no traces (they come from the pipeline), they are estimated from the kept spans and their
sampling weights; `exact_minutes` and `exact_traces` say which.

Spans and traces whose times no clock can have shown (`beyond_time`) are left out and counted,
since one such time would stretch every window to centuries; so are the minutes that hold them.

`r_ranked` has those traces that are a request or a step: see `_BELONGS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
from spanlite.archive.layout import Archive
from spanlite.kinds import DEVICE_KINDS, kind_word
from spanlite.timewindow import ALL_TIME, TimeWindow

from spanlite_analytics.views import NS_PER_MINUTE, quote

#: SQL list of the kinds whose time is spent on a device.
DEVICE_LIST = ", ".join(quote(kind_word(kind)) for kind in DEVICE_KINDS)
#: "layer 12", "layer_12" and "ProfilerStep#12" are one thing twelve times.
NUMBER_AT_END = r"[\s_:#-]*\d+$"

#: 146 years to either side of 1970: within it, sums and differences of times fit 64 bits.
FAR_NS = 2**62
_IN_TIME = " AND ".join(
    f"{column} BETWEEN -{FAR_NS - 1} AND {FAR_NS - 1}"
    for column in ("start_ns", "end_ns", "duration_ns")
)
#: Importers gather what belongs to no request and no step (a profiler's own spans, calls
#: between steps) in one trace a second. Its root is of another kind; if it is `host`, it has
#: a thread, which spans that OpenTelemetry sent as roots do not.
_BELONGS = """coalesce(root_kind, '') IN ('', 'request', 'step') OR root_kind = 'host'
    AND (service, root_name) NOT IN (SELECT (service, name) FROM r_spans
        WHERE kind = 'host' AND parent_span_id IS NULL AND thread_id IS NOT NULL)"""

_ESTIMATED_MINUTES = f"""
SELECT start_ns // {NS_PER_MINUTE} * {NS_PER_MINUTE} AS minute_ns, service, host, device, kind,
    name, sum(sampling_weight) AS spans,
    sum(sampling_weight) FILTER (status = 'error') AS errors,
    sum(sampling_weight * duration_ns) AS duration_ns, min(duration_ns) AS min_ns,
    max(duration_ns) AS max_ns, sum(sampling_weight * coalesce(bytes, 0)) AS bytes
FROM r_spans GROUP BY ALL
"""
_MINUTES = f"""
SELECT * FROM kernel_minutes
WHERE abs(minute_ns::HUGEINT) < {FAR_NS} AND abs(min_ns::HUGEINT) < {FAR_NS}
    AND abs(max_ns::HUGEINT) < {FAR_NS}
"""
_ESTIMATED_TRACES = f"""
SELECT trace_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
    max(end_ns) - min(start_ns) AS duration_ns, count(*) AS spans,
    count(*) FILTER (status = 'error') AS errors,
    coalesce(sum(duration_ns) FILTER (kind IN ({DEVICE_LIST})), 0) AS device_ns,
    arg_min(name, start_ns) FILTER (parent_span_id IS NULL) AS root_name,
    arg_min(kind, start_ns) FILTER (parent_span_id IS NULL) AS root_kind,
    arg_min(service, start_ns) AS service, arg_min(host, start_ns) AS host, true AS kept,
    '' AS policy, max(sampling_weight) AS sampling_weight
FROM r_spans GROUP BY trace_id
"""


@dataclass(frozen=True)
class Filters:
    """Only these services and hosts; empty means all."""

    services: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def sql(self) -> str:
        """As a condition on the columns `service` and `host`."""
        parts = []
        for column, values in (("service", self.services), ("host", self.hosts)):
            if values:
                parts.append(f"{column} IN ({', '.join(map(quote, values))})")
        return " AND ".join(parts) or "true"


class Source:
    """A database with `r_spans`, `r_traces` (one weight `w` a row) and `r_minutes`."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        archive: Archive,
        window: TimeWindow = ALL_TIME,
        filters: Filters | None = None,
    ) -> None:
        self.con, self.archive, self.window = con, archive, window
        self.filters = filters or Filters()
        self._make_views(self.filters.sql())

    def _make_views(self, where: str) -> None:
        run = self.con.execute
        run(f"CREATE TEMP VIEW r_spans AS SELECT * FROM spans WHERE {where} AND {_IN_TIME}")
        self.exact_minutes = bool(self.value("SELECT count(*) FROM kernel_minutes"))
        self.exact_traces = bool(self.value("SELECT count(*) FROM traces"))
        minutes = f"FROM ({_MINUTES if self.exact_minutes else _ESTIMATED_MINUTES})"
        traces = "FROM traces" if self.exact_traces else f"FROM ({_ESTIMATED_TRACES})"
        weight = "1.0" if self.exact_traces else "sampling_weight"
        # Read several times, and small next to the spans: so they are kept as tables.
        run(f"CREATE TEMP TABLE r_minutes AS SELECT * {minutes} WHERE {where}")
        run(
            f"CREATE TEMP TABLE r_traces AS SELECT *, {weight} AS w, "
            f"regexp_replace(coalesce(root_name, '(no root)'), '{NUMBER_AT_END}', '') AS root, "
            f"coalesce(root_kind, '') AS root_word {traces} WHERE {where} AND {_IN_TIME}"
        )
        run(f"CREATE TEMP TABLE r_ranked AS SELECT * FROM r_traces WHERE {_BELONGS}")

    def beyond_time(self, table: str) -> int:
        """Rows of `spans` or `traces` that are left out because of their times."""
        where = f"{self.filters.sql()} AND NOT ({_IN_TIME})"
        return int(self.value(f"SELECT count(*) FROM {table} WHERE {where}"))

    def frame(self, sql: str) -> pd.DataFrame:
        """The rows of a query."""
        found: pd.DataFrame = self.con.execute(sql).df()
        return found

    def value(self, sql: str) -> Any:
        """The single value of a query."""
        row = self.con.execute(sql).fetchone()
        return None if row is None else row[0]


def weighted_quantiles(
    rows: str, by: str, value: str, weight: str, shares: dict[str, float]
) -> str:
    """SQL for quantiles of `value`, each row counting `weight` times, for each group of `by`.

    Also gives `longest`, `weight` and `kept` (rows). `rows` is what FROM takes; `shares` maps
    a column's name to a quantile, which is the least value that at least that share of the
    weight does not exceed.
    """
    # Equal durations are summed first: device clocks tick coarsely, so that leaves few rows.
    picks = ", ".join(
        f"min({value}) FILTER (below >= {share} * total * (1 - 1e-12)) AS {name}"
        for name, share in shares.items()
    )
    return f"""(
    WITH summed AS (SELECT {by}, {value}, sum({weight}) AS w, count(*) AS n
                    FROM {rows} GROUP BY ALL),
    ranked AS (SELECT *, sum(w) OVER (PARTITION BY {by} ORDER BY {value}) AS below,
                      sum(w) OVER (PARTITION BY {by}) AS total FROM summed)
    SELECT {by}, {picks}, max({value}) AS longest_ns, sum(w) AS weight, sum(n)::BIGINT AS kept
    FROM ranked GROUP BY ALL)"""
