"""A real trace, imported and reported, against another tool's figures for the same file."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from spanlite_analytics import Report, build_report

KINETO = Path(__file__).parents[3] / "shared" / "data" / "kineto"
TRACE = KINETO / "h100_qwen1.5_0.5b.json.gz"
pytestmark = pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not in ../shared/data")

NAME, SUM = "Kernel name", "Kernel duration (µs)_sum"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, make_sink: Any) -> Report:
    from spanlite_collectors.importers.kineto import import_kineto
    from spanlite_collectors.importers.options import ImportOptions

    sink = make_sink(tmp_path_factory.mktemp("real") / "archive")
    import_kineto(TRACE, sink, ImportOptions())
    return build_report(sink.archive)


def expected(what: str) -> pd.DataFrame:
    return pd.read_csv(KINETO / f"h100_qwen1.5_0.5b.expected_{what}.csv")


def test_kernel_sums(report: Report) -> None:
    theirs = expected("kernel_summary").groupby(NAME)
    kernels = report["kernels"]
    ours = kernels[kernels["kind"] == "kernel"].set_index("name")
    assert set(ours.index) == set(theirs.groups)
    calls = theirs["Kernel duration (µs)_count"].sum()
    assert ours["calls"].to_dict() == calls.to_dict()
    # Theirs are sums of floats in microseconds, ours of whole nanoseconds.
    total_ns = (theirs[SUM].sum() * 1000).round().astype(int)
    assert ours["total_ns"].to_dict() == total_ns.to_dict()
    assert ours["min_ns"].to_dict() == (
        (theirs["Kernel duration (µs)_min"].min() * 1000).round().astype(int).to_dict()
    )


def device_events() -> list[tuple[int, int, bool]]:
    """(start, end, has an External id) of what ran on the GPU, in ns, from the file itself."""
    with gzip.open(TRACE) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    return sorted(
        (int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000), "External id" in e["args"])
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )


def busy_and_observed(events: list[tuple[int, int, bool]]) -> tuple[int, int]:
    busy, reached = 0, events[0][0]
    for start, end, _ in events:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return busy, reached - events[0][0]


def test_busy_and_idle(report: Report) -> None:
    events = device_events()
    busy, observed = busy_and_observed(events)
    (device,) = report["devices"].to_dict("records")
    assert (device["busy_ns"], device["observed_ns"]) == (busy, observed)
    assert device["idle_ns"] == observed - busy
    # Theirs are less, since they leave out what has no External id: 509 of 1,707 events.
    theirs = expected("gpu_timeline").set_index("type")["time ms"]
    busy, observed = busy_and_observed([event for event in events if event[2]])
    assert busy / 1e6 == pytest.approx(theirs["busy_time"], abs=0.001)
    assert observed / 1e6 == pytest.approx(theirs["total_time"], abs=0.001)


def test_operators(report: Report) -> None:
    theirs = expected("kernel_summary").groupby("Parent cpu_op")[SUM].sum() * 1000
    ours = report["operators"].set_index("operator")["device_ns"]
    assert len(theirs)
    # They know an operator only where the kernel has an External id; we go through the launch
    # call, so each operator has at least their time.
    for operator, total in theirs.items():
        assert ours.get(operator, 0.0) >= total - 1, operator
