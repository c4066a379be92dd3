"""Every number here can be checked by hand."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.timewindow import TimeWindow
from spanlite_analytics import Filters, build_report
from spanlite_analytics.report.build import Section
from spanlite_analytics.report.render import print_report

HOUR = 1_796_108_400_000_000_000
MS = 1_000_000


def step(number: int, *kernels: tuple[str, str, int, int], **common: Any) -> list[dict[str, Any]]:
    """A step of 100 us a kernel; `kernels`: (stage, name, duration, stream)."""
    start = HOUR + number * MS
    base = {"trace_id": f"{number + 1:032x}", "host": "h1", **common}
    rows = [
        base | {
            "span_id": 1, "kind": "step", "name": f"step {number}", "start_ns": start,
            "duration_ns": 100 * 1000 * len(kernels),
        }
    ]  # fmt: skip
    for i, (stage, name, duration, stream) in enumerate(kernels):
        at, span = start + i * 100_000, 10 * (i + 1)
        rows += [
            base | {
                "span_id": span, "parent_span_id": 1, "kind": "nvtx_range", "name": stage,
                "start_ns": at, "duration_ns": 50_000,
            },
            base | {
                "span_id": span + 1, "parent_span_id": span, "kind": "runtime_call",
                "name": "cudaLaunchKernel", "start_ns": at + 1000, "duration_ns": 5000,
            },
            base | {
                "span_id": span + 2, "parent_span_id": span + 1, "name": name, "device": 0,
                "stream": stream, "start_ns": at + 10_000, "duration_ns": duration,
            },
        ]  # fmt: skip
    return rows


def by(frame: pd.DataFrame, key: str) -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in frame.to_dict("records")}


def test_kernels_are_weighted(build: Any) -> None:
    build.spans(
        *step(0, ("ffn", "gemm", 30_000, 7), ("attention", "flash", 10_000, 7)),
        *step(1, ("ffn", "gemm", 50_000, 7), sampling_weight=9.0),
    )
    table = by(build_report(build.archive)["kernels"], "name")
    gemm = table["gemm"]
    assert (gemm["calls"], gemm["total_ns"], gemm["kept"]) == (10, 480_000, 2)
    assert gemm["mean_ns"] == 48_000
    assert (gemm["p50_ns"], gemm["p99_ns"]) == (50_000, 50_000)
    assert gemm["share"] == pytest.approx(480 / 490)
    assert table["flash"]["calls"] == 1


def test_roll_ups_give_exact_totals(build: Any) -> None:
    build.spans(*step(0, ("ffn", "gemm", 30_000, 7), sampling_weight=3.0))
    minute = {"minute_ns": HOUR, "name": "gemm", "min_ns": 20_000, "max_ns": 40_000}
    build.minutes(
        minute | {"spans": 2, "duration_ns": 70_000},
        minute | {"spans": 2, "duration_ns": 50_000},  # partial rows add up
        minute | {"spans": 1, "duration_ns": 5_000, "name": "rare"},
    )
    report = build_report(build.archive)
    table = by(report["kernels"], "name")
    assert (table["gemm"]["calls"], table["gemm"]["total_ns"]) == (4, 120_000)
    assert table["gemm"]["p50_ns"] == 30_000
    assert table["rare"]["calls"] == 1
    assert pd.isna(table["rare"]["p50_ns"])
    assert report.overview["device_ns"] == 125_000
    assert report.overview["estimated_device_ns"] == 90_000


def test_stages(build: Any) -> None:
    build.spans(
        *step(0, ("ffn 0", "gemm", 30_000, 7), ("attention", "flash", 10_000, 7)),
        *step(1, ("ffn 1", "gemm", 20_000, 7)),
        {
            "trace_id": f"{99:032x}", "span_id": 1, "name": "stray", "start_ns": HOUR,
            "duration_ns": 5_000, "device": 0,
        },
    )  # fmt: skip
    report = build_report(build.archive)
    table = by(report["stages"], "stage")
    assert table["ffn"]["device_ns"] == 50_000
    assert table["ffn"]["ranges"] == 2
    assert table["ffn"]["device_per_step_ns"] == 25_000
    assert table["ffn"]["host_mean_ns"] == 50_000
    assert table["attention"]["share"] == pytest.approx(10 / 65)
    assert table["(outside of any range)"]["device_ns"] == 5_000
    assert table["step"]["ranges"] == 2
    kernels = report["stage_kernels"]
    assert kernels[["stage", "name"]].iloc[0].tolist() == ["ffn", "gemm"]


def with_gpu_copies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As torch.profiler has it: each range once on its thread, once more of the GPU's side."""
    out = [row | {"thread_id": 42} for row in rows if "kind" in row]
    ranges = [row for row in out if row["kind"] != "runtime_call"]
    copies = [
        row | {
            "kind": "nvtx_range", "parent_span_id": row["span_id"], "thread_id": None,
            "span_id": row["span_id"] + 1000, "start_ns": row["start_ns"] + 10_000,
            "duration_ns": 30_000,
        }
        for row in ranges
    ]  # fmt: skip
    return [*out, *(row for row in rows if "kind" not in row), *copies]


def test_the_gpu_copy_of_a_range_is_no_second_range(build: Any) -> None:
    rows = step(0, ("ffn", "gemm", 30_000, 7), ("attention", "flash", 10_000, 7))
    build.spans(*with_gpu_copies([*rows, *step(1, ("attention", "flash", 20_000, 7))]))
    table = by(build_report(build.archive)["stages"], "stage")
    assert [table[s]["ranges"] for s in ("ffn", "attention", "step")] == [1, 2, 2]
    assert table["ffn"]["host_mean_ns"] == 50_000
    assert table["ffn"]["gpu_mean_ns"] == 30_000
    assert table["step"]["host_mean_ns"] == 150_000
    # Per step where it occurs: ffn in one of the two.
    assert (table["ffn"]["steps"], table["ffn"]["device_per_step_ns"]) == (1, 30_000)
    assert (table["attention"]["steps"], table["attention"]["device_per_step_ns"]) == (2, 15_000)


def test_a_range_on_several_streams_is_one_on_the_gpu(build: Any) -> None:
    rows = with_gpu_copies(step(0, ("ffn", "gemm", 30_000, 7)))
    copy = rows[-1]
    other = copy | {"span_id": 77, "start_ns": copy["start_ns"] + 15_000, "duration_ns": 25_000}
    build.spans(*rows, other)
    ffn = by(build_report(build.archive)["stages"], "stage")["ffn"]
    assert (ffn["ranges"], ffn["host_mean_ns"], ffn["gpu_mean_ns"]) == (1, 50_000, 40_000)


def test_a_step_counts_once_for_all_kernels_of_a_stage(build: Any) -> None:
    build.spans(
        *step(0, ("ffn", "gemm", 30_000, 7), ("ffn", "act", 10_000, 7), sampling_weight=3.0)
    )
    (ffn,) = (r for r in build_report(build.archive)["stages"].to_dict("records") if r["device_ns"])
    assert (ffn["stage"], ffn["steps"], ffn["device_per_step_ns"]) == ("ffn", 3, 40_000)


def test_same_named_ranges_of_one_thread_are_two(build: Any) -> None:
    rows = step(0, ("step 0", "gemm", 30_000, 7))
    build.spans(*(row | {"thread_id": 42} for row in rows))
    assert by(build_report(build.archive)["stages"], "stage")["step"]["ranges"] == 2


def test_copies_add_nothing_to_what_made_traces_slow(build: Any) -> None:
    spans: list[dict[str, Any]] = []
    for i in range(40):
        rows = step(i, ("ffn", "gemm", 30_000, 7))
        if i in (7, 23):
            rows[0]["duration_ns"] += 500_000
            rows[1]["duration_ns"] += 500_000
        spans += with_gpu_copies(rows)
    build.spans(*spans)
    slow = build_report(build.archive)["slow"]
    (row,) = slow.to_dict("records")
    assert (row["kind"], row["name"], row["difference_ns"]) == ("nvtx_range", "ffn", 500_000)


def test_what_is_no_request_or_step_has_no_rank(build: Any, spanlite: Any) -> None:
    trace = {"start_ns": HOUR, "host": "h1"}
    roots = [
        ("step", "step 7", 5 * MS), ("request", "request 1", 9 * MS),
        ("host", "PyTorch Profiler (0)", 100 * MS), ("host", "GET /v1/completions", 20 * MS),
        ("overhead", "Activity Buffer Request", 30 * MS), ("runtime_call", "cudaFree", 40 * MS),
        (None, None, 8 * MS),
    ]  # fmt: skip
    build.traces(
        *(
            trace | {"trace_id": f"{i:032x}", "root_kind": kind, "root_name": name,
                     "end_ns": HOUR + ns}
            for i, (kind, name, ns) in enumerate(roots)
        )
    )  # fmt: skip
    span = {"span_id": 1, "start_ns": HOUR, "duration_ns": 100 * MS, "kind": "host"}
    # Only a profiler knows the thread of a root.
    build.spans(
        span | {"trace_id": f"{2:032x}", "name": "PyTorch Profiler (0)", "thread_id": 9},
        span | {"trace_id": f"{3:032x}", "name": "GET /v1/completions"},
    )
    report = build_report(build.archive)
    names = ["GET /v1/completions", "request 1", "", "step 7"]
    assert report["slowest"]["name"].tolist() == names
    assert set(report["latency"]["kind"]) == {"host", "request", "step", ""}
    assert report.overview["traces"] == 7
    _, text, _ = spanlite("report", "--archive", build.root)
    assert "3 traces left out that belong to no request or step" in text


def test_times_centuries_away_are_counted_and_left_out(build: Any, spanlite: Any) -> None:
    far = {"name": "k", "device": 0, "duration_ns": 5}
    hostile = [(-(2**63), 5), (2**63 - 1, 5), (HOUR, 2**63 - 1), (HOUR, -(2**63))]
    build.spans(
        *step(0, ("ffn", "gemm", 30_000, 7)),
        *(
            far | {"trace_id": f"{90 + i:032x}", "span_id": i + 1, "start_ns": s, "duration_ns": d}
            for i, (s, d) in enumerate(hostile)
        ),
    )
    build.traces({"trace_id": f"{90:032x}", "start_ns": -(2**63), "end_ns": 2**63 - 1})
    build.minutes(
        {"minute_ns": HOUR, "name": "gemm", "duration_ns": 30_000, "max_ns": 30_000},
        {"minute_ns": HOUR, "duration_ns": 2**63 - 1, "max_ns": 2**63 - 1},
        {"minute_ns": HOUR, "duration_ns": 2**63 - 1, "max_ns": 2**63 - 1},
    )
    code, text, err = spanlite("report", "--archive", build.root)
    assert (code, err) == (0, "")
    assert "4 spans and 1 trace" in text
    report = build_report(build.archive)
    (device,) = report["devices"].to_dict("records")
    assert device["observed_ns"] == 30_000
    assert report["kernels"]["total_ns"].tolist() == [30_000]
    assert report.overview["first_ns"] == HOUR
    sql = "SELECT count(start_time) AS a, count(end_time) AS b, max(end_ns) AS c FROM spans"
    _, out, _ = spanlite("query", sql, "--format", "csv", "--archive", build.root)
    assert out == f"a,b,c\n8,8,{2**63 - 1}\n"
    _, out, _ = spanlite(
        "query", "SELECT duration_ns FROM traces", "--format", "csv", "--archive", build.root
    )
    assert out.splitlines()[1] == str(2**63 - 1)


def test_an_empty_window_says_where_the_spans_are(build: Any, spanlite: Any) -> None:
    build.spans(*step(0, ("ffn", "gemm", 30_000, 7)))
    code, text, _ = spanlite("report", "--to", HOUR, "--archive", build.root)
    assert code == 0
    assert "Nothing was recorded in this window; the archive holds spans from 2026-12-01T07" in text


def test_spans_of_replays_are_told_apart(build: Any, spanlite: Any) -> None:
    rows = step(1, ("gemm", "mlp", 0, 5)) + step(2, ("gemm", "mlp", 0, 5), replay_id="r1")
    build.spans(*rows)
    replayed = sum(row.get("replay_id") == "r1" for row in rows)
    assert build_report(build.archive).overview["replayed_spans"] == replayed
    code, out, _ = spanlite("report", "--archive", build.root)
    assert code == 0 and f"{replayed} of the kept spans are of replays" in out


def test_names_that_are_cut_say_where_they_are_whole(build: Any, spanlite: Any) -> None:
    hint = "names cut at … are whole with --json and --csv"
    build.spans(*step(0, ("ffn", "g" * 60, 30_000, 7)))
    assert hint not in spanlite("report", "--archive", build.root)[1]
    build.spans(*step(1, ("ffn", "h" * 61, 30_000, 7)))
    assert hint in spanlite("report", "--archive", build.root)[1]
    assert "h" * 61 in spanlite("report", "--json", "--archive", build.root)[1]


def test_names_that_are_missing_say_so(build: Any, spanlite: Any) -> None:
    build.spans(*step(0, ("ffn", "gemm", 30_000, 7), host="", service=""))
    _, text, _ = spanlite("report", "--archive", build.root)
    assert "(no host)" in text and "(no service)" in text
    assert build_report(build.archive)["devices"]["host"].tolist() == [""]


def test_devices_unite_overlapping_streams(build: Any) -> None:
    kernel = {"trace_id": f"{1:032x}", "device": 0}
    rows = [
        (0, 100, 7, "kernel"),
        (50, 100, 8, "kernel"),
        (60, 10, 9, "memcpy"),
        (300, 50, 7, "kernel"),
    ]
    build.spans(
        *(
            kernel | {"span_id": i, "start_ns": HOUR + s, "duration_ns": d, "stream": q, "kind": k}
            for i, (s, d, q, k) in enumerate(rows, 1)
        ),
        kernel | {"span_id": 9, "device": 1, "start_ns": HOUR, "duration_ns": 5},
    )
    build.minutes({"minute_ns": HOUR, "spans": 8, "duration_ns": 520, "name": "k"})
    table = by(build_report(build.archive)["devices"], "device")
    first = table[0]
    assert (first["observed_ns"], first["busy_ns"], first["idle_ns"]) == (350, 200, 150)
    assert (first["overlap_ns"], first["copy_ns"], first["longest_gap_ns"]) == (60, 10, 150)
    assert (first["streams"], first["kept"], first["spans"]) == (3, 4, 8)
    assert first["covered_share"] == 0.5
    assert table[1]["busy_ns"] == 5


def test_latency_and_slowest_cover_traces_that_were_not_kept(build: Any) -> None:
    build.traces(
        *(
            {
                "trace_id": f"{i:032x}", "start_ns": HOUR, "end_ns": HOUR + i * MS, "kept": i > 90,
                "errors": int(i == 5), "root_name": f"step {i}",
            }
            for i in range(1, 101)
        )
    )  # fmt: skip
    report = build_report(build.archive)
    (row,) = report["latency"].to_dict("records")
    assert (row["name"], row["traces"], row["kept"], row["failed"]) == ("step", 100, 10, 1)
    quantiles = [row[c] for c in ("p50_ns", "p90_ns", "p99_ns", "max_ns")]
    assert quantiles == [50 * MS, 90 * MS, 99 * MS, 100 * MS]
    assert report["slowest"]["duration_ns"].tolist()[:2] == [100 * MS, 99 * MS]


def test_slowest_has_those_with_device_time_first(build: Any, spanlite: Any) -> None:
    # A request that links to its steps is longer than each of them, and has no kernel.
    rows = [("request", i, (100 + i) * MS, 0) for i in range(3)]
    rows += [("step", 10 + i, (10 + i) * MS, MS) for i in range(3)]
    build.traces(
        *(
            {
                "trace_id": f"{i:032x}", "start_ns": HOUR, "end_ns": HOUR + duration,
                "root_kind": kind, "root_name": f"{kind} {i}", "device_ns": device,
            }
            for kind, i, duration, device in rows
        )
    )  # fmt: skip
    report = build_report(build.archive)
    names = ["step 12", "step 11", "step 10", "request 2", "request 1", "request 0"]
    assert report["slowest"]["name"].tolist() == names
    _, out, _ = spanlite("report", "--archive", build.archive.root, "--top", "2")
    table = out[out.index("Slowest traces") :]
    assert "step 12" in table and "request 1" not in table
    assert f"the longest without is request {2:032x}, 102 ms" in table


def test_slow_shows_a_kernel_below_many_calls(build: Any) -> None:
    section = _slow_section(calls=12, kernels=2)
    console = Console(width=200, file=io.StringIO())
    report = replace(build_report(build.archive), sections=(section,))
    print_report(report, console, top=10)
    out = console.file.getvalue()
    assert "call 9" in out and "call 10" not in out
    assert "kernel 12" in out and "kernel 13" not in out
    assert "... 3 more" in out
    assert "the last row is the first kernel, number 13 of all" in out


def test_slow_adds_nothing_where_a_kernel_is_among_the_first(build: Any) -> None:
    console = Console(width=200, file=io.StringIO())
    report = replace(build_report(build.archive), sections=(_slow_section(calls=9, kernels=2),))
    print_report(report, console, top=10)
    out = console.file.getvalue()
    assert "kernel 9" in out and "kernel 10" not in out and "the first kernel" not in out


def _slow_section(calls: int, kernels: int) -> Section:
    kinds = ["runtime_call"] * calls + ["kernel"] * kernels
    names = [f"{kind.removeprefix('runtime_')} {i}" for i, kind in enumerate(kinds)]
    frame = pd.DataFrame({"root": "llm: step", "kind": kinds, "name": names})
    return Section("slow", "Slow traces against fast ones", frame)


def test_slow_traces_name_the_kernel_and_the_host(build: Any) -> None:
    spans: list[dict[str, Any]] = []
    for i in range(40):
        slow = i in (7, 23)
        rows = step(i, ("ffn", "gemm", 10_000, 7), ("attention", "flash", 10_000, 7))
        if slow:
            rows[-1]["duration_ns"] += 300_000  # flash
            rows[0]["duration_ns"] += 300_000
            rows = [row | {"host": "h9"} for row in rows]
        spans += rows
    build.spans(*spans)
    report = build_report(build.archive)
    slow = report["slow"]
    first = slow[slow["kind"] == "kernel"].iloc[0]
    assert (first["stage"], first["name"], first["root"]) == ("attention", "flash", "llm: step")
    assert (first["fast_ns"], first["slow_ns"]) == (10_000, 310_000)
    assert first["share"] == pytest.approx(1.0)
    place = report["slow_places"].iloc[0]
    assert (place["host"], place["traces"], place["slow"]) == ("h9", 2, 2)
    outlier = report["outliers"].iloc[0]
    assert (outlier["host"], outlier["name"]) == ("h9", "flash")
    # the fleet's median of two hosts lies halfway between 10 and 310 us
    assert outlier["slowdown"] == pytest.approx(310 / 160)
    assert outlier["excess_ns"] == pytest.approx(2 * 150_000)


def test_errors(build: Any) -> None:
    build.spans(
        *step(0, ("ffn", "gemm", 10_000, 7)), *step(1, ("ffn", "gemm", 10_000, 7), status="error")
    )
    table = build_report(build.archive)["errors"]
    row = table[table["name"] == "gemm"].iloc[0]
    assert (row["failed"], row["spans"], row["share"]) == (1, 2, 0.5)
    assert row["example_trace"] == f"{2:032x}"


def test_operators(build: Any) -> None:
    rows = step(0, ("aten::mm", "gemm", 10_000, 7))
    rows[1]["kind"] = "operator"
    build.spans(*rows)
    report = build_report(build.archive)
    assert report["operators"].to_dict("records")[0]["operator"] == "aten::mm"
    assert by(report["stages"], "stage")["step"]["device_ns"] == 10_000


def test_filters_and_window(build: Any) -> None:
    build.spans(
        *step(0, ("ffn", "gemm", 10_000, 7)),
        *step(1, ("ffn", "gemm", 10_000, 7), host="h2"),
        *step(2, ("ffn", "gemm", 10_000, 7), service="other"),
    )
    calls = lambda report: report["kernels"]["calls"].sum()  # noqa: E731
    assert calls(build_report(build.archive)) == 3
    assert calls(build_report(build.archive, filters=Filters(hosts=("h2",)))) == 1
    assert calls(build_report(build.archive, filters=Filters(services=("llm",)))) == 2
    assert calls(build_report(build.archive, TimeWindow(HOUR + MS, None))) == 2
    assert calls(build_report(build.archive, TimeWindow(HOUR, HOUR + MS))) == 1


def test_sections_can_be_chosen(build: Any) -> None:
    build.spans(*step(0, ("ffn", "gemm", 10_000, 7)))
    report = build_report(build.archive, only=["stages", "kernels"])
    assert [section.key for section in report.sections] == ["kernels", "stages"]
    with pytest.raises(UsageError, match="no section 'nonsense'"):
        build_report(build.archive, only=["nonsense"])


def test_empty_archive(build: Any, spanlite: Any) -> None:
    code, out, err = spanlite("report", "--archive", build.root)
    assert (code, err) == (0, "")
    assert "Nothing was recorded." in out
    code, out, _ = spanlite("report", "--json", "--archive", build.root)
    assert (code, json.loads(out)["kernels"]) == (0, [])


def test_command_forms_agree(decode_archive: Any, spanlite: Any, tmp_path: Any) -> None:
    args = ("report", "--archive", decode_archive)
    code, text, _ = spanlite(*args, "--top", "3")
    assert code == 0
    assert "Kernels and copies" in text and "Slow traces" in text
    _, out, _ = spanlite(*args, "--json")
    found = json.loads(out)
    code, out, _ = spanlite(*args, "--csv", tmp_path / "out")
    with (tmp_path / "out" / "kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["total_ns"]) for row in rows] == [k["total_ns"] for k in found["kernels"]]
    assert spanlite(*args, "--top", "0")[0] == 2
    assert spanlite(*args, "--only", "nonsense")[0] == 2


def test_sums_agree_with_each_other(decode_archive: Any) -> None:
    report = build_report(Archive.open(decode_archive))
    device_ns = report.overview["device_ns"]
    for key, column in (
        ("kernels", "total_ns"),
        ("stages", "device_ns"),
        ("stage_kernels", "device_ns"),
    ):
        assert report[key][column].sum() == device_ns
    devices = report["devices"]
    assert (devices["busy_ns"] + devices["overlap_ns"]).sum() == device_ns
    stages = set(report["stages"]["stage"])
    assert {"qkv", "attention", "output", "ffn", "graph_replay"} <= stages
    # The generator slows attention down in some steps.
    slow = report["slow"]
    kernels = slow[(slow["kind"] == "kernel") & slow["root"].str.contains("step")]
    assert "splitkv" in kernels.iloc[0]["name"]
