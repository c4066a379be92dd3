"""The parts of the report that are one SQL statement each."""

from __future__ import annotations

import pandas as pd

from spanlite_analytics.report.source import DEVICE_LIST, Source, weighted_quantiles


def kernels(source: Source) -> pd.DataFrame:
    """Each kernel and copy by name: calls and total of all spans, quantiles of the kept ones."""
    quantiles = weighted_quantiles(
        f"(SELECT * FROM r_spans WHERE kind IN ({DEVICE_LIST}))",
        "kind, name",
        "duration_ns",
        "sampling_weight",
        {"p50_ns": 0.5, "p99_ns": 0.99},
    )
    return source.frame(f"""
        WITH everything AS (
            SELECT kind, name, sum(spans) AS calls, sum(duration_ns)::DOUBLE AS total_ns,
                min(min_ns) AS min_ns, max(max_ns) AS max_ns, sum(bytes)::DOUBLE AS bytes
            FROM r_minutes WHERE kind IN ({DEVICE_LIST}) GROUP BY kind, name)
        SELECT kind, name, round(calls)::BIGINT AS calls,
            saturated(round(total_ns)::HUGEINT) AS total_ns,
            total_ns / nullif(sum(total_ns) OVER (), 0) AS share, total_ns / calls AS mean_ns,
            p50_ns, p99_ns, min_ns, max_ns, bytes / nullif(total_ns, 0) * 1e9 AS bytes_per_s,
            coalesce(kept, 0) AS kept
        FROM everything LEFT JOIN {quantiles} USING (kind, name)
        ORDER BY total_ns DESC, kind, name""")


def devices(source: Source) -> pd.DataFrame:
    """Each GPU: how long something ran on it (the union of its intervals), and what overlapped.

    Only of kept spans; `covered_share` is their part of all device time that was recorded.
    """
    return source.frame(f"""
        WITH work AS (
            SELECT host, device, stream, kind, start_ns AS begin,
                greatest(end_ns, start_ns) AS finish
            FROM r_spans WHERE kind IN ({DEVICE_LIST}) AND device IS NOT NULL),
        reach AS (
            SELECT *, max(finish) OVER (PARTITION BY host, device ORDER BY begin, finish
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM work),
        kept AS (
            SELECT host, device, count(*) AS kept, count(DISTINCT stream) AS streams,
                max(finish) - min(begin) AS observed_ns,
                saturated(sum(greatest(finish - greatest(begin, coalesce(reached, begin)), 0)))
                    AS busy_ns,
                saturated(sum(finish - begin)) AS device_ns,
                saturated(sum(finish - begin) FILTER (kind IN ('memcpy', 'memset'))) AS copy_ns,
                max(greatest(begin - reached, 0)) AS longest_gap_ns
            FROM reach GROUP BY host, device),
        everything AS (
            SELECT host, device, sum(duration_ns)::DOUBLE AS all_ns, sum(spans) AS spans
            FROM r_minutes WHERE kind IN ({DEVICE_LIST}) GROUP BY host, device)
        SELECT host, device, round(coalesce(spans, kept))::BIGINT AS spans, kept, streams,
            observed_ns, busy_ns, busy_ns / nullif(observed_ns, 0) AS busy_share,
            observed_ns - busy_ns AS idle_ns, device_ns - busy_ns AS overlap_ns,
            coalesce(copy_ns, 0) AS copy_ns, longest_gap_ns,
            least(device_ns / nullif(all_ns, 0), 1) AS covered_share
        FROM kept LEFT JOIN everything USING (host, device) ORDER BY host, device""")


def latency(source: Source) -> pd.DataFrame:
    """Durations of requests and steps, whole traces, kept or not, by service and root."""
    quantiles = weighted_quantiles(
        "r_ranked",
        "service, root_word, root",
        "duration_ns",
        "w",
        {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99},
    )
    return source.frame(f"""
        WITH counts AS (
            SELECT service, root_word, root, count(*) FILTER (kept) AS in_archive,
                sum(w) FILTER (errors > 0) AS failed, sum(w * device_ns) / sum(w) AS device_mean_ns
            FROM r_ranked GROUP BY ALL)
        SELECT service, root_word AS kind, root AS name, round(weight)::BIGINT AS traces,
            in_archive AS kept, round(coalesce(failed, 0))::BIGINT AS failed,
            p50_ns, p90_ns, p99_ns, longest_ns AS max_ns, device_mean_ns
        FROM counts JOIN {quantiles} USING (service, root_word, root)
        ORDER BY traces DESC, service, kind, name""")


def slowest(source: Source, count: int) -> pd.DataFrame:
    """The `count` longest requests and steps with device time, then the `count` longest without.

    A request that only links to its steps has no device time of its own, and its trace leads to
    no kernel. Those not kept have no spans to look at.
    """
    return source.frame(f"""
        SELECT trace_id, service, host, root_word AS kind, coalesce(root_name, '') AS name,
            start_ns, duration_ns, device_ns, spans, errors, kept, policy
        FROM r_ranked
        QUALIFY row_number() OVER (
            PARTITION BY coalesce(device_ns, 0) > 0 ORDER BY duration_ns DESC, trace_id) <= {count}
        ORDER BY coalesce(device_ns, 0) > 0 DESC, duration_ns DESC, trace_id""")


def errors(source: Source) -> pd.DataFrame:
    """Spans that failed, by what they are and where, with a kept trace to look at."""
    return source.frame("""
        WITH everything AS (
            SELECT service, host, kind, name, sum(errors) AS failed, sum(spans) AS spans
            FROM r_minutes GROUP BY ALL HAVING sum(errors) > 0),
        kept AS (
            SELECT service, host, kind, name, arg_max(trace_id, start_ns) AS example_trace
            FROM r_spans WHERE status = 'error' GROUP BY ALL)
        SELECT service, host, kind, name, round(failed)::BIGINT AS failed,
            round(spans)::BIGINT AS spans, failed / spans AS share,
            coalesce(example_trace, '') AS example_trace
        FROM everything LEFT JOIN kept USING (service, host, kind, name)
        ORDER BY failed DESC, service, host, kind, name""")


def outliers(source: Source) -> pd.DataFrame:
    """GPUs on which a kernel takes longer than on the median GPU of the same service.

    `excess_ns`: the time that would have been saved at the median's mean duration.
    """
    return source.frame(f"""
        WITH each AS (
            SELECT service, host, device, kind, name, sum(spans) AS calls,
                sum(duration_ns)::DOUBLE / sum(spans) AS mean_ns
            FROM r_minutes WHERE kind IN ({DEVICE_LIST}) AND device IS NOT NULL
            GROUP BY ALL HAVING sum(spans) > 0),
        fleet AS (
            SELECT service, kind, name, median(mean_ns) AS median_ns, count(*) AS devices
            FROM each GROUP BY ALL)
        SELECT service, host, device, kind, name, round(calls)::BIGINT AS calls, mean_ns,
            median_ns, mean_ns / median_ns AS slowdown, (mean_ns - median_ns) * calls AS excess_ns
        FROM each JOIN fleet USING (service, kind, name)
        WHERE devices > 1 AND median_ns > 0 AND mean_ns > 1.02 * median_ns
        ORDER BY excess_ns DESC""")
