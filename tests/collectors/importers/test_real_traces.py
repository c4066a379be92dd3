"""Every real trace through its importer: totals equal to the file itself, counted apart."""

import csv
import gzip
import json
import sqlite3
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

KINETO = (
    "a100_clock_anomaly_5streams", "h100_bert_small", "h100_qwen1.5_0.5b", "h100_timesformer",
    "h200_decode_eager_and_graph", "kineto_eager_s1", "kineto_eager_s4", "kineto_graph_s1",
    "ns_resolution", "vllm_decode_graph_capture", "vllm_decode_graph_execution",
)  # fmt: skip
CUPTI = (
    "compile", "eager_s1", "eager_s4", "eager_s8", "full_api_s1", "graph_node_s1",
    "graph_node_s4", "graph_trace_s1",
)  # fmt: skip
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
#: No spans in them; `spanlite import` must say so.
OTHERS = (
    "cupti/pm_sampling_1ms.csv.gz", "kineto/h100_qwen1.5_0.5b.expected_gpu_timeline.csv",
    "kineto/h100_qwen1.5_0.5b.expected_kernel_summary.csv", "ncu/ncu_full_samples.csv.gz",
    "ncu/ncu_full_torch.csv.gz", "ncu/ncu_min_samples.csv.gz", "sm90/racecheck_samples.txt.gz",
    "sm90/samples_kernels.cu", "sm90/samples_kernels.resusage.txt", "README.md",
)  # fmt: skip
OTHER_TRACES = (
    "nsys/h100_2gpu_1s.sqlite", "otlp/telemetrygen_duplicate_span.json",
    "requests/azure_llm_conv_2023.csv", "requests/mooncake_synthetic.jsonl",
)  # fmt: skip
#: (name, device, stream, start, duration): what the file and the spans must agree on.
Facts = Counter


@cache
def imported(path):
    sink = MemorySink()
    report = import_file(path, sink)
    spans = pa.Table.from_batches([spans for spans, _ in sink.written])
    assert report.spans == spans.num_rows
    check_ledger(report)
    check_tree(spans)
    return spans, report


def check_ledger(report):
    for name, count in report.kinds.items():
        assert count.read == count.kept + count.used + count.refused, name
    assert sum(report.span_kinds.values()) == report.spans
    assert sum(count.refused for count in report.kinds.values()) == sum(report.reasons.values())


def check_tree(spans):
    """Ids are unique, parents exist in the same trace, and there is no cycle."""
    ids = spans["span_id"].to_numpy()
    parents = spans["parent_span_id"].to_numpy()
    order = np.argsort(ids)
    assert len(np.unique(ids)) == len(ids)
    child = np.flatnonzero(parents != 0)
    at = order[np.searchsorted(ids[order], parents[child])]
    assert (ids[at] == parents[child]).all()
    for name in ("trace_id_low", "trace_id_high"):
        trace = spans[name].to_numpy()
        assert (trace[at] == trace[child]).all()
    up = np.arange(len(ids))
    up[child] = at
    for _ in range(len(ids).bit_length()):
        up = up[up]
    assert (parents[up] == 0).all()


def facts(spans, kinds):
    mask = np.isin(spans["kind"].to_numpy(), kinds)
    picked = spans.filter(pa.array(mask))
    names = ("name", "device", "stream", "start_ns", "duration_ns")
    return Facts(zip(*(picked[name].to_pylist() for name in names), strict=True))


@cache
def load(path):
    with gzip.open(path) as file:
        return json.load(file, parse_float=Decimal)


def ns(value):
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)


def test_every_file_is_looked_at(shared_data):
    known = {f"kineto/{name}.json.gz" for name in KINETO}
    known |= {f"cupti/{name}.jsonl.gz" for name in CUPTI} | set(OTHERS) | set(OTHER_TRACES)
    found = {str(path.relative_to(shared_data)) for path in shared_data.rglob("*")
             if path.is_file()}  # fmt: skip
    assert found == known


@pytest.mark.parametrize("name", KINETO)
def test_kineto_totals_are_those_of_the_file(shared_data, name):
    document = load(shared_data / f"kineto/{name}.json.gz")
    events, base = document["traceEvents"], document.get("baseTimeNanoseconds", 0)
    spans, report = imported(shared_data / f"kineto/{name}.json.gz")

    whole = [e for e in events if e["ph"] == "X"]
    expected = Counter(e["cat"] for e in whole)
    assert {kind: c.kept for kind, c in report.kinds.items() if c.kept} == expected
    assert sum(c.read for c in report.kinds.values()) == len(events)

    device = Facts(
        (e["name"], e["args"]["device"], e["args"]["stream"], base + ns(e["ts"]), ns(e["dur"]))
        for e in whole
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    assert facts(spans, (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)) == device
    # Every host event too, exactly.
    assert spans["duration_ns"].to_numpy().sum() == sum(ns(e["dur"]) for e in whole)
    assert sorted(spans["start_ns"].to_pylist()) == sorted(base + ns(e["ts"]) for e in whole)


@pytest.mark.parametrize("name", KINETO)
def test_kineto_device_spans_hang_on_their_launch(shared_data, name):
    events = load(shared_data / f"kineto/{name}.json.gz")["traceEvents"]
    calls = {e["args"]["correlation"] for e in events
             if e.get("cat") in ("cuda_runtime", "cuda_driver") and e["ph"] == "X"}  # fmt: skip
    device = [e for e in events if e["ph"] == "X" and e["cat"] in DEVICE]
    launched = sum(e["args"]["correlation"] in calls for e in device)
    spans, report = imported(shared_data / f"kineto/{name}.json.gz")

    assert report.placed["correlation"] == launched
    rows = spans.select(["span_id", "parent_span_id", "kind", "correlation_id"]).to_pylist()
    by_id = {row["span_id"]: row for row in rows}
    joined = 0
    for row in rows:
        if row["kind"] in (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET):
            parent = by_id.get(row["parent_span_id"])
            if parent and parent["kind"] in (SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL):
                assert parent["correlation_id"] == row["correlation_id"]
                joined += 1
    assert joined == launched


@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "h100_bert_small", "h100_timesformer"])
def test_python_functions_nest_as_the_profiler_recorded(shared_data, name):
    """The file names each Python function's parent; we find it from times alone."""
    document = load(shared_data / f"kineto/{name}.json.gz")
    base = document["baseTimeNanoseconds"]
    events = [e for e in document["traceEvents"] if e.get("cat") == "python_function"]
    by_python_id = {e["args"]["Python id"]: e for e in events}
    spans, _ = imported(shared_data / f"kineto/{name}.json.gz")
    rows = spans.select(["span_id", "parent_span_id", "name", "start_ns", "duration_ns",
                         "attributes", "links"]).to_pylist()  # fmt: skip
    by_id = {row["span_id"]: row for row in rows}
    by_time = {(row["start_ns"], row["duration_ns"], row["name"]): row for row in rows}

    def python_parent(row):
        while row:
            above = row["parent_span_id"] or next(
                (link["span_id"] for link in row["links"] or ()), 0
            )
            row = by_id.get(above)
            if row and row["attributes"] == '{"cat":"python_function"}':
                return row["name"]
        return None

    checked = agree = 0
    for e in events:
        above = by_python_id.get(e["args"]["Python parent id"])
        if above is None:
            continue
        row = by_time[base + ns(e["ts"]), ns(e["dur"]), e["name"]]
        checked += 1
        agree += python_parent(row) == above["name"]
    assert checked > 1000
    assert agree == checked


def test_the_kernel_summary_of_another_tool(shared_data):
    """Sums and counts by kernel name and stream, equal to the last digit they print."""
    spans, _ = imported(shared_data / "kineto/h100_qwen1.5_0.5b.json.gz")
    ours = Counter()
    counts = Counter()
    for (name, _, stream, _, duration), times in facts(spans, (SpanKind.KERNEL,)).items():
        ours[name, stream] += duration * times
        counts[name, stream] += times
    theirs, their_counts = Counter(), Counter()
    path = shared_data / "kineto/h100_qwen1.5_0.5b.expected_kernel_summary.csv"
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["Kernel name"], int(row["Kernel stream"])
            theirs[key] += float(row["Kernel duration (µs)_sum"])
            their_counts[key] += int(row["Kernel duration (µs)_count"])
    kernels = {key for key in their_counts if not key[0].startswith(("Memset", "Memcpy"))}
    assert {key: their_counts[key] for key in kernels} == dict(counts)
    for key in kernels:
        assert ours[key] / 1000 == pytest.approx(theirs[key], abs=1e-6)


def test_the_busy_time_of_another_tool(shared_data):
    """Its window is the step's annotation on the device; it counts memsets as computation."""
    spans, _ = imported(shared_data / "kineto/h100_qwen1.5_0.5b.json.gz")
    path = shared_data / "kineto/h100_qwen1.5_0.5b.expected_gpu_timeline.csv"
    with path.open(newline="") as file:
        expected = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    [window] = [fact for fact in facts(spans, (SpanKind.NVTX_RANGE,)) if "ProfilerStep" in fact[0]]
    computation = facts(spans, (SpanKind.KERNEL, SpanKind.MEMSET))
    copies = facts(spans, (SpanKind.MEMCPY,))
    ours = {
        "total_time": window[4],
        "computation_time": union_ns(computation, window),
        "total_memcpy_time": union_ns(copies, window),
        "busy_time": union_ns(computation + copies, window),
    }
    for name, value_ns in ours.items():
        # They add up floats of milliseconds: the 5th decimal, 10 ns, is noise.
        assert value_ns / 1e6 == pytest.approx(expected[name], abs=1.5e-5), name


def union_ns(intervals, window):
    """Time in the window in which at least one interval is open."""
    first, last = window[3], window[3] + window[4]
    total, until = 0, first
    for _, _, _, start, duration in sorted(intervals, key=lambda fact: fact[3]):
        begin, end = max(start, until), min(start + duration, last)
        total += max(0, end - begin)
        until = max(until, end)
    return total


def test_clock_anomaly_and_orphans_keep_their_raw_times(shared_data):
    spans, report = imported(shared_data / "kineto/a100_clock_anomaly_5streams.json.gz")
    events = load(shared_data / "kineto/a100_clock_anomaly_5streams.json.gz")["traceEvents"]
    calls = {}
    for e in events:
        if e.get("cat") == "cuda_runtime" and e["ph"] == "X":
            calls.setdefault(e["args"]["correlation"], e["ts"])
    device = [e for e in events if e["ph"] == "X" and e["cat"] in DEVICE]
    early = sum(e["ts"] < calls.get(e["args"]["correlation"], e["ts"]) for e in device)
    missing = sum(e["args"]["correlation"] not in calls for e in device)
    flags = spans["flags"].to_numpy()
    assert (flags & SpanFlag.STARTS_BEFORE_LAUNCH != 0).sum() == early
    assert (flags & SpanFlag.ORPHAN != 0).sum() == missing == 872
    kernel = np.isin(spans["kind"].to_numpy(), (SpanKind.KERNEL,))
    assert len(np.unique(spans["stream"].to_numpy()[kernel])) == 5
    assert report.steps == 5


@pytest.mark.parametrize("name", CUPTI)
def test_cupti_totals_are_those_of_the_file(shared_data, name):
    path = shared_data / f"cupti/{name}.jsonl.gz"
    with gzip.open(path) as file:
        records = [json.loads(line) for line in file]
    spans, report = imported(path)
    assert {kind: c.read for kind, c in report.kinds.items()} == Counter(r["t"] for r in records)
    timed = [r for r in records if r["t"] not in ("process", "clock", "stats")]
    assert spans.num_rows == len(timed)
    assert spans["duration_ns"].to_numpy().sum() == sum(r["end"] - r["start"] for r in timed)
    assert sorted(spans["start_ns"].to_pylist()) == sorted(r["start"] for r in timed)
    kernels = Facts(
        (r["name"], r["dev"], r["stream"], r["start"], r["end"] - r["start"])
        for r in timed if r["t"] == "kernel"
    )  # fmt: skip
    assert facts(spans, (SpanKind.KERNEL,)) == kernels
    api = {r["corr"] for r in timed if r["t"] == "api"}
    assert all(r["corr"] in api for r in timed if r["t"] == "kernel")
    steps = [r for r in timed if r["t"] == "nvtx" and r["name"].startswith("step:")]
    assert report.steps == len(steps)
    orphans = spans.filter(pa.array(spans["flags"].to_numpy() & SpanFlag.ORPHAN != 0))
    assert set(orphans["kind"].to_pylist()) <= {SpanKind.SYNC}


@pytest.mark.parametrize("name", ["eager_s1", "eager_s4", "eager_s8", "full_api_s1"])
def test_cupti_ranges_nest_as_recorded(shared_data, name):
    """The recorder wrote the depth of each range; ours must have as many ranges above it."""
    path = shared_data / f"cupti/{name}.jsonl.gz"
    with gzip.open(path) as file:
        ranges = [r for r in map(json.loads, file) if r["t"] == "nvtx"]
    spans, _ = imported(path)
    rows = spans.select(["span_id", "parent_span_id", "kind", "start_ns", "name", "thread_id",
                         "links"]).to_pylist()  # fmt: skip
    by_id = {row["span_id"]: row for row in rows}
    by_start = {(row["start_ns"], row["name"], row["thread_id"]): row for row in rows}
    by_record = {(r["tid"], r["id"]): r for r in ranges}
    checked = 0
    for r in ranges:
        above = by_record.get((r["tid"], r["parent"]))
        if above is None or not above["start"] <= r["start"] <= above["end"]:
            continue
        row = by_start[r["start"], r["name"], r["tid"]]
        parent = by_id.get(row["parent_span_id"])
        if parent is None:  # a step in a request: they are linked
            [link] = row["links"]
            parent = by_id[link["span_id"]]
        assert (parent["name"], parent["start_ns"]) == (above["name"], above["start"])
        checked += 1
    assert checked > 30


def test_graphs_keep_their_nodes(shared_data):
    path = shared_data / "cupti/graph_node_s1.jsonl.gz"
    with gzip.open(path) as file:
        nodes = Counter((r["graph_id"], r["graph_node"])
                        for r in map(json.loads, file) if r["t"] == "kernel")  # fmt: skip
    spans, _ = imported(path)
    kernels = spans.filter(pa.array(spans["kind"].to_numpy() == SpanKind.KERNEL))
    pairs = zip(kernels["graph_id"].to_pylist(), kernels["graph_node_id"].to_pylist(), strict=True)
    assert Counter(pairs) == nodes
    _, report = imported(shared_data / "cupti/graph_trace_s1.jsonl.gz")
    assert report.span_kinds["graph_launch"] == 14


def test_nsys_totals_are_those_of_the_file(shared_data):
    path = shared_data / "nsys/h100_2gpu_1s.sqlite"
    spans, report = imported(path)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        tables = {
            SpanKind.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
            SpanKind.MEMCPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
            SpanKind.MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
            SpanKind.SYNC: "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            SpanKind.RUNTIME_CALL: "CUPTI_ACTIVITY_KIND_RUNTIME",
            SpanKind.OVERHEAD: "CUPTI_ACTIVITY_KIND_OVERHEAD",
            SpanKind.NVTX_RANGE: "NVTX_EVENTS",
        }
        utc, clock = db.execute(
            "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME"
        ).fetchone()
        for kind, table in tables.items():
            rows = spans.filter(pa.array(spans["kind"].to_numpy() == kind))
            count, total, first = db.execute(
                f'SELECT count(*), sum("end" - start), min(start) FROM {table}'
            ).fetchone()
            assert rows.num_rows == count, table
            assert rows["duration_ns"].to_numpy().sum() == total
            assert rows["start_ns"].to_numpy().min() == first + utc - clock
        joined = db.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE EXISTS (SELECT 1 FROM "
            "CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = k.correlationId "
            "AND r.globalTid / 16777216 = k.globalPid / 16777216)"
        ).fetchone()[0]
        by_name = dict(db.execute(
            "SELECT value, sum(\"end\" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY value"
        ))  # fmt: skip
    kernels = spans.filter(pa.array(spans["kind"].to_numpy() == SpanKind.KERNEL))
    sums = kernels.group_by("name").aggregate([("duration_ns", "sum")])
    assert dict(zip(sums["name"].to_pylist(), sums["duration_ns_sum"].to_pylist(),
                    strict=True)) == by_name  # fmt: skip
    assert (kernels["flags"].to_numpy() & SpanFlag.ORPHAN == 0).sum() == joined
    assert set(kernels["device"].to_pylist()) == {0, 1}
    assert report.left_out["op_id"] == 16_782
    assert "aten::view" in set(spans["name"].to_pylist())


def test_an_otlp_span_that_was_delivered_twice_is_kept_once(shared_data):
    path = shared_data / "otlp/telemetrygen_duplicate_span.json"
    sink = MemorySink()
    report = import_file(path, sink)
    [span] = sink.written[0][0].to_pylist()
    [item] = json.loads(path.read_text())["resourceSpans"]
    source = item["scopeSpans"][0]["spans"][0]
    assert f"{span['trace_id_high']:016x}{span['trace_id_low']:016x}" == source["traceId"]
    assert f"{span['span_id']:016x}" == source["spanId"]
    assert span["start_ns"] == int(source["startTimeUnixNano"])
    assert report.reasons == {"duplicate": 1} == sink.dropped
    assert sink.written[0][1]["service.name"] == "telemetrygen"


def test_request_logs_keep_every_request(shared_data):
    spans, _ = imported(shared_data / "requests/azure_llm_conv_2023.csv")
    with (shared_data / "requests/azure_llm_conv_2023.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    attributes = [json.loads(text) for text in spans["attributes"].to_pylist()]
    tokens = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows]
    assert [(a["gen_ai.usage.input_tokens"], a["gen_ai.usage.output_tokens"])
            for a in attributes] == tokens  # fmt: skip
    day = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
    assert spans["start_ns"][0].as_py() == int(day.timestamp()) * 10**9 + 680_590_000

    spans, _ = imported(shared_data / "requests/mooncake_synthetic.jsonl")
    with (shared_data / "requests/mooncake_synthetic.jsonl").open() as file:
        records = [json.loads(line) for line in file]
    assert spans["start_ns"].to_pylist() == [r["timestamp"] * 10**6 for r in records]
    attributes = [json.loads(text) for text in spans["attributes"].to_pylist()]
    assert [a["hash_ids"] for a in attributes] == [r["hash_ids"] for r in records]


@pytest.mark.parametrize("name", OTHERS)
def test_files_without_spans_are_refused_with_a_reason(shared_data, name):
    sink = MemorySink()
    with pytest.raises(InputError, match=r"spanlite import|--format"):
        import_file(shared_data / name, sink)
    assert sink.written == []
