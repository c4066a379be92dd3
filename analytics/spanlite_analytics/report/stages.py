"""Tables made from the attribution: stages, operators, and slow traces against fast ones."""

from __future__ import annotations

import pandas as pd

from spanlite_analytics.report.attribution import DEVICE, GPU_COPY, RANGES
from spanlite_analytics.report.source import Source, weighted_quantiles

FAST, SLOW = 1, 2
#: Slow traces are those above this quantile of all of their kind, fast ones below the other.
SLOW_SHARE, FAST_SHARE = 0.95, 0.5
#: Of fewer traces of a kind, a slowest twentieth says nothing.
MIN_TRACES = 20


def _on_device(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["kind"].isin(DEVICE)]


def _share(values: pd.Series[float]) -> pd.Series[float]:
    total = values.sum()
    return values / total if total else values * 0.0


def stages(frame: pd.DataFrame) -> pd.DataFrame:
    """Device time of each stage: the innermost range around the launch, numbers cut off.

    `device_per_step_ns` is over the `steps` in which the stage ran; `host_mean_ns` is how long
    its ranges took on their threads, `gpu_mean_ns` from their first kernel's start to their
    last one's end, where the profiler recorded that.
    """
    sums = ["spans", "busy_ns", "step_ns", "steps"]
    device = _on_device(frame).groupby("stage", observed=True)[sums].sum()

    def ranges(*kinds: str) -> pd.DataFrame:
        rows = frame[frame["kind"].isin(kinds)]
        return rows.groupby("name", observed=True)[["spans", "wall_ns"]].sum()

    host, gpu = ranges(*RANGES), ranges(GPU_COPY)
    out = pd.DataFrame(
        {
            "device_ns": device["busy_ns"],
            "device_spans": device["spans"],
            "steps": device["steps"],
            "ranges": host["spans"],
            "host_ns": host["wall_ns"],
        }
    ).fillna(0.0)
    out.insert(1, "share", _share(out["device_ns"]))
    out.insert(2, "device_per_step_ns", device["step_ns"] / device["steps"].where(out["steps"] > 0))
    out["host_mean_ns"] = out["host_ns"] / out["ranges"].where(out["ranges"] > 0)
    out["gpu_mean_ns"] = gpu["wall_ns"] / gpu["spans"]
    out = out.rename_axis("stage").reset_index()
    return out.sort_values(["device_ns", "host_ns"], ascending=False, ignore_index=True)


def stage_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """Which kernels make up each stage."""
    keys = ["stage", "kind", "name"]
    out = _on_device(frame).groupby(keys, observed=True, as_index=False)[["spans", "busy_ns"]].sum()
    out = out.rename(columns={"busy_ns": "device_ns"})
    out["share"] = _share(out["device_ns"])
    out["mean_ns"] = out["device_ns"] / out["spans"]
    return out.sort_values("device_ns", ascending=False, ignore_index=True)


def operators(frame: pd.DataFrame) -> pd.DataFrame:
    """Device time by the framework operator that launched it; no rows where there are none."""
    device = _on_device(frame)
    if not (device["operator"] != "").any():
        return pd.DataFrame(columns=["operator", "device_ns", "share", "device_spans"])
    out = device.groupby("operator", observed=True, as_index=False)[["busy_ns", "spans"]].sum()
    out = out.rename(columns={"busy_ns": "device_ns", "spans": "device_spans"})
    out["operator"] = out["operator"].astype(object).replace("", "(no operator)")
    out.insert(2, "share", _share(out["device_ns"]))
    return out.sort_values("device_ns", ascending=False, ignore_index=True)


def classify(source: Source) -> pd.DataFrame:
    """`trace_id`, `root`, `trace_class`, `w`, `duration_ns`, `host` of slow and fast traces."""
    quantiles = weighted_quantiles(
        "r_ranked",
        "service, root_word, root",
        "duration_ns",
        "w",
        {"fast_ns": FAST_SHARE, "slow_ns": SLOW_SHARE},
    )
    return source.frame(f"""
        SELECT trace_id, service || ': ' || root AS root, host, duration_ns,
            r_ranked.kept, sampling_weight AS w,
            CASE WHEN duration_ns >= slow_ns AND duration_ns > fast_ns THEN {SLOW}
                 WHEN duration_ns <= fast_ns THEN {FAST} ELSE 0 END AS trace_class
        FROM r_ranked JOIN {quantiles} AS q USING (service, root_word, root)
        WHERE q.weight >= {MIN_TRACES}""")


def classes_of(traces: pd.DataFrame) -> dict[str, tuple[int, str]]:
    """What `attribute` wants: the class and root of each kept slow or fast trace."""
    chosen = traces[traces["kept"] & (traces["trace_class"] > 0)]
    pairs = zip(chosen["trace_class"].tolist(), chosen["root"].tolist(), strict=True)
    return dict(zip(chosen["trace_id"].tolist(), pairs, strict=True))


def slow_against_fast(frame: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """What takes longer in a slow trace than in a fast one, per trace, most first.

    `share`: of the difference between the two kinds' mean durations. A kernel and the call
    that waits for it both count, so shares may add up to more than 1.
    """
    kept = traces[traces["kept"] & (traces["trace_class"] > 0)]
    kept = kept.assign(weighted_ns=kept["w"] * kept["duration_ns"])
    totals = kept.groupby(["root", "trace_class"])[["w", "weighted_ns"]].sum()
    keys = ["root", "kind", "name", "stage"]
    columns = ["root", "stage", "kind", "name", "fast_ns", "slow_ns", "difference_ns", "share"]
    # The GPU's copy of a range would count its kernels a second time.
    rows = frame[(frame["trace_class"] > 0) & (frame["kind"] != GPU_COPY)]
    both = [r for r in rows["root"].unique() if all((r, c) in totals.index for c in (FAST, SLOW))]
    rows = rows[rows["root"].isin(both)]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    sums = rows.groupby([*keys, "trace_class"], observed=True)["busy_ns"].sum()
    wide = sums.unstack("trace_class", fill_value=0).reindex(columns=[FAST, SLOW], fill_value=0.0)
    out = wide.reset_index().rename(columns={FAST: "fast_ns", SLOW: "slow_ns"})
    for number, name in ((FAST, "fast_ns"), (SLOW, "slow_ns")):
        weight = totals.xs(number, level="trace_class")["w"]
        out[name] = out[name] / out["root"].astype(object).map(weight).astype(float)
    mean = totals["weighted_ns"] / totals["w"]
    gap = mean.xs(SLOW, level="trace_class") - mean.xs(FAST, level="trace_class")
    out["difference_ns"] = out["slow_ns"] - out["fast_ns"]
    out["share"] = out["difference_ns"] / out["root"].astype(object).map(gap).astype(float)
    out = out[out["difference_ns"] > 0].sort_values("share", ascending=False, ignore_index=True)
    return out[columns]


def slow_places(traces: pd.DataFrame) -> pd.DataFrame:
    """How many traces of each host are slow; a host that is like the others has 1 in 20."""
    if not len(traces):
        return pd.DataFrame(columns=["root", "host", "traces", "slow", "share"])
    slow = (traces["trace_class"] == SLOW).astype(int)
    out = (
        traces.assign(slow=slow)
        .groupby(["root", "host"], as_index=False)
        .agg(traces=("slow", "size"), slow=("slow", "sum"))
    )
    out["share"] = out["slow"] / out["traces"]
    return out.sort_values(["share", "slow"], ascending=False, ignore_index=True)
