"""Hand-made Chrome traces: each rule of the importer, and odd input."""

import gzip
import json

import pytest
from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import CopyKind, SpanKind, SpanStatus
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.importers import ImportOptions, import_file
from spanlite_collectors.sinks import MemorySink

BASE = 1_700_000_000_000_000_000


def event(cat, name, ts, dur, pid=1, tid=1, ph="X", **args):
    return {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def kernel(name, ts, dur, correlation, stream=7, **args):
    return event("kernel", name, ts, dur, 0, stream, device=0, context=1, stream=stream,
                 correlation=correlation, grid=[1, 2, 3], block=[4, 5, 6], **args)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Import events; gives (spans by name, report, sink)."""

    def import_events(events, text=None, options=None, **document):
        path = tmp_path / "trace.json"
        document = {"baseTimeNanoseconds": BASE, "traceEvents": events, **document}
        path.write_text(text or json.dumps(document, ensure_ascii=False), encoding="utf-8")
        sink = MemorySink()
        report = import_file(path, sink, options)
        rows = [row for spans, _ in sink.written for row in spans.to_pylist()]
        for spans, _ in sink.written:
            assert spans.schema.equals(SPAN_SCHEMA)
        assert report.spans == len(rows)
        return {row["name"]: row for row in rows}, report, sink

    return import_events


def test_a_kernel_hangs_on_its_launch_and_that_on_its_operator(run):
    spans, report, sink = run(
        [
            kernel("k", 150, 20, 9, **{"registers per thread": 32, "shared memory": 1024}),
            event("cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=9, cbid=211),
            event("cpu_op", "aten::mm", 100, 50, **{"Input Dims": [[1, 2], []], "Ev Idx": 4}),
            event("user_annotation", "ProfilerStep#3", 90, 70),
            event("python_function", "train.py(1): f", 95, 60),
        ]
    )
    step, op, call, k = (
        spans[name] for name in ("ProfilerStep#3", "aten::mm", "cudaLaunchKernel", "k")
    )
    assert step["kind"] == SpanKind.STEP
    assert step["parent_span_id"] == 0
    assert spans["train.py(1): f"]["parent_span_id"] == step["span_id"]
    assert op["parent_span_id"] == spans["train.py(1): f"]["span_id"]
    assert call["parent_span_id"] == op["span_id"]
    assert k["parent_span_id"] == call["span_id"]
    assert len({(row["trace_id_low"], row["trace_id_high"]) for row in spans.values()}) == 1
    assert (k["start_ns"], k["duration_ns"]) == (BASE + 150_000, 20_000)
    assert (k["device"], k["context"], k["stream"], k["thread_id"]) == (0, 1, 7, 0)
    assert [k[f"grid_{axis}"] for axis in "xyz"] == [1, 2, 3]
    assert [k[f"block_{axis}"] for axis in "xyz"] == [4, 5, 6]
    assert (k["registers_per_thread"], k["dynamic_shared_bytes"]) == (32, 1024)
    assert (k["correlation_id"], call["correlation_id"]) == (9, 9)
    assert json.loads(op["attributes"]) == {"Input Dims": [[1, 2], []]}
    assert json.loads(spans["train.py(1): f"]["attributes"]) == {"cat": "python_function"}
    assert report.left_out == {"Ev Idx": 1, "cbid": 1}
    assert report.placed == {"correlation": 1}
    assert {resource["process.pid"] for _, resource in sink.written} == {1}
    assert k["status"] == SpanStatus.UNSET


@pytest.mark.parametrize(
    ("text", "start", "duration"),
    [
        ('"ts": 1, "dur": 2', 1000, 2000),
        ('"ts": 1712195495406752.797, "dur": 0.001', 1712195495406752797, 1),
        ('"ts": 9007199254740993.001, "dur": 9.007', 9007199254740993001, 9007),
        ('"ts": 1.5e3, "dur": 1E-3', 1_500_000, 1),
        ('"ts": -5.250, "dur": 1', -5250, 1000),
        ('"ts": "12.345", "dur": "0.5"', 12345, 500),
    ],
)  # fmt: skip
def test_times_are_exact(run, text, start, duration):
    spans, _, _ = run([], '[{"ph": "X", "name": "a", "pid": 1, "tid": 1, ' + text + "}]")
    assert (spans["a"]["start_ns"], spans["a"]["duration_ns"]) == (start, duration)


def test_odd_times_are_kept_and_flagged_or_refused_and_counted(run):
    spans, report, _ = run(
        [
            {"ph": "X", "cat": "c", "name": "no dur", "pid": 1, "tid": 1, "ts": 5},
            {"ph": "X", "cat": "c", "name": "no ts", "pid": 1, "tid": 1, "dur": 5},
            event("c", "negative", 10, -3),
            event("c", "words", "soon", 1),
            event("c", "too late", 1e300, 1),
            event("c", "too long", 1, 10**17),
            event("c", "null name", 1, 1) | {"name": None},
        ]
    )
    assert spans["no dur"]["flags"] == SpanFlag.PARTIAL
    assert spans["no ts"]["flags"] == SpanFlag.ZERO_TIMESTAMP
    assert spans["negative"]["flags"] == SpanFlag.NEGATIVE_DURATION
    assert spans["negative"]["duration_ns"] == -3000
    assert "" in spans
    assert report.reasons == {"unreadable_time": 3}
    assert (report.kinds["c"].read, report.kinds["c"].refused) == (7, 3)


def test_a_start_before_its_launch_is_flagged_and_kept_raw(run):
    spans, report, _ = run(
        [
            event("cuda_runtime", "launch", 100, 5, correlation=9),
            kernel("early", 99.999, 1, 9),
            kernel("late", 100, 1, 9),
        ]
    )
    assert spans["early"]["flags"] == SpanFlag.STARTS_BEFORE_LAUNCH
    assert spans["early"]["start_ns"] == BASE + 99_999
    assert spans["late"]["flags"] == 0
    assert report.flags == {"starts_before_launch": 1}


def test_a_device_span_belongs_to_the_step_that_launched_it_even_if_it_runs_later(run):
    spans, _, _ = run(
        [
            event("user_annotation", "step 0", 0, 10),
            event("user_annotation", "step 1", 20, 10),
            event("cuda_runtime", "launch", 5, 1, correlation=9),
            kernel("k", 25, 2, 9),
        ]
    )
    assert spans["k"]["trace_id_low"] == spans["step 0"]["trace_id_low"]
    assert spans["step 0"]["trace_id_low"] != spans["step 1"]["trace_id_low"]


def test_without_a_launch_the_operator_or_the_neighbours_say_where_it_belongs(run):
    spans, report, _ = run(
        [
            event("user_annotation", "step 0", 0, 100),
            event("cpu_op", "op", 10, 5, **{"External id": 77}),
            event("cuda_runtime", "l1", 20, 1, correlation=100),
            event("cuda_runtime", "l2", 30, 1, correlation=110),
            kernel("k1", 40, 1, 100),
            kernel("k2", 50, 1, 110),
            kernel("by operator", 60, 1, 999, **{"External id": 77}),
            kernel("between", 70, 1, 105),
            kernel("before all", 80, 1, 1),
            kernel("no id", 90, 1, 0),
        ]
    )
    step = spans["step 0"]
    assert spans["by operator"]["parent_span_id"] == spans["op"]["span_id"]
    assert spans["by operator"]["flags"] == 0
    assert spans["between"]["parent_span_id"] == step["span_id"]
    assert spans["between"]["flags"] == SpanFlag.ORPHAN | SpanFlag.PARENT_INFERRED
    for name in ("before all", "no id"):
        assert spans[name]["flags"] == SpanFlag.ORPHAN
        assert spans[name]["parent_span_id"] == 0
        assert spans[name]["trace_id_low"] != step["trace_id_low"]
    assert report.placed == {
        "correlation": 2, "external_id": 1, "correlation_order": 1, "none": 2
    }  # fmt: skip


def test_other_threads_join_the_step_that_is_open_if_only_one_is(run):
    spans, _, _ = run(
        [
            event("user_annotation", "step 0", 0, 10, tid=1),
            event("cpu_op", "backward", 5, 2, tid=2),
            event("user_annotation", "step 1", 20, 10, tid=1),
            event("user_annotation", "step 2", 21, 10, tid=3),
            event("cpu_op", "ambiguous", 25, 2, tid=2),
            event("cpu_op", "outside", 40, 2, tid=2),
        ]
    )
    assert spans["backward"]["parent_span_id"] == spans["step 0"]["span_id"]
    assert spans["backward"]["flags"] == SpanFlag.PARENT_INFERRED
    assert spans["ambiguous"]["trace_id_low"] == spans["outside"]["trace_id_low"]
    assert spans["ambiguous"]["parent_span_id"] == 0


def test_a_step_links_to_the_request_around_it(run):
    spans, report, _ = run(
        [
            event("user_annotation", "request:7", 0, 100),
            event("user_annotation", "step:0", 10, 20),
            event("user_annotation", "step:1", 40, 20),
            event("cpu_op", "tokenise", 35, 2),
        ]
    )
    request = spans["request:7"]
    link = {key: request[key] for key in ("trace_id_low", "trace_id_high", "span_id")}
    for name in ("step:0", "step:1"):
        assert spans[name]["links"] == [link]
        assert spans[name]["parent_span_id"] == 0
        assert spans[name]["trace_id_low"] != request["trace_id_low"]
    assert spans["tokenise"]["parent_span_id"] == request["span_id"]
    assert (report.steps, report.requests, report.traces) == (2, 1, 3)


def test_what_belongs_to_no_step_has_a_trace_for_each_second(run):
    spans, report, _ = run(
        [
            event("python_function", "main", 0, 5_000_000),
            event("cpu_op", "a", 100, 5),
            event("cpu_op", "b", 1_000_100, 5),
            event("cpu_op", "other process", 200, 5, pid=2),
        ]
    )
    assert report.traces == 3
    assert spans["a"]["parent_span_id"] == spans["main"]["span_id"]
    assert spans["a"]["trace_id_low"] == spans["main"]["trace_id_low"]
    # A parent in another trace is a link, so that it is not lost.
    assert spans["b"]["parent_span_id"] == 0
    assert [link["span_id"] for link in spans["b"]["links"]] == [spans["main"]["span_id"]]


def test_begin_and_end_events_become_spans(run):
    spans, report, _ = run(
        [
            {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 10, "args": {"a": 1}},
            {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 12},
            {"ph": "E", "pid": 1, "tid": 1, "ts": 14, "args": {"b": 2}},
            {"ph": "E", "pid": 1, "tid": 1, "ts": 20.5},
            {"ph": "E", "pid": 1, "tid": 2, "ts": 20},
            {"ph": "B", "name": "never ends", "pid": 1, "tid": 3, "ts": 30},
            {"ph": "b", "cat": "x", "id": 5, "name": "async", "pid": 1, "tid": 1, "ts": 11},
            {"ph": "e", "cat": "x", "id": 5, "name": "async", "pid": 1, "tid": 9, "ts": 31},
        ]
    )
    assert (spans["outer"]["duration_ns"], spans["inner"]["duration_ns"]) == (10_500, 2_000)
    assert spans["inner"]["parent_span_id"] == spans["outer"]["span_id"]
    assert json.loads(spans["inner"]["attributes"])["b"] == 2
    assert spans["never ends"]["flags"] == SpanFlag.PARTIAL
    assert spans["async"]["duration_ns"] == 20_000
    assert report.reasons == {"end_without_begin": 1}
    assert report.kinds["end of a span"].used == 3


def test_what_is_no_span_is_counted(run):
    _, report, _ = run(
        [
            event("ac2g", "ac2g", 1, 0, ph="s"),
            event("ac2g", "ac2g", 2, 0, ph="f"),
            event("mem", "[memory]", 1, 0, ph="i"),
            event("", "queue", 1, 0, ph="C", length=5),
            event("", "process_name", 1, 0, ph="M", labels="CPU"),
            event("", "?", 1, 0, ph="Z"),
            "not an event",
            event("cpu_op", "a", 1, 1),
        ]
    )
    counts = {name: (c.read, c.kept, c.used, c.refused) for name, c in report.kinds.items()}
    assert counts == {
        "flow (ac2g)": (2, 0, 2, 0),
        "instant (mem)": (1, 0, 0, 1),
        "counter (queue)": (1, 0, 0, 1),
        "metadata": (1, 0, 1, 0),
        "phase Z": (1, 0, 0, 1),
        "not an object": (1, 0, 0, 1),
        "cpu_op": (1, 1, 0, 0),
    }


def test_unicode_copies_and_device_annotations(run):
    spans, _, _ = run(
        [
            event("user_annotation", "décode 🚀", 0, 50, **{"External id": 4}),
            event("gpu_user_annotation", "décode 🚀 gpu", 10, 50, 2, 7, **{"External id": 4}),
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 5, 1, 0, 7, bytes=4096,
                  device=0, context=1, stream=7, correlation=3, **{"memory bandwidth (GB/s)": 1.5}),
            event("gpu_memcpy", "copy", 6, 1, 0, 7, kind="DeviceToHost", correlation=3),
            event("cuda_runtime", "cudaMemcpyAsync", 2, 1, correlation=3),
        ]
    )  # fmt: skip
    assert spans["Memcpy HtoD (Pageable -> Device)"]["copy_kind"] == CopyKind.HTOD
    assert spans["Memcpy HtoD (Pageable -> Device)"]["bytes"] == 4096
    assert spans["copy"]["copy_kind"] == CopyKind.DTOH
    annotation = spans["décode 🚀 gpu"]
    assert annotation["parent_span_id"] == spans["décode 🚀"]["span_id"]
    assert (annotation["kind"], annotation["device"], annotation["stream"]) == (
        SpanKind.NVTX_RANGE, 2, 7,
    )  # fmt: skip
    assert spans["décode 🚀"]["device"] is None or spans["décode 🚀"]["device"] < 0


def test_launch_configurations_that_do_not_fit_stay_as_attributes(run):
    bad = kernel("bad", 1, 1, 0) | {"name": "bad"}
    bad["args"]["grid"] = [2**40, 1, 1]
    worse = kernel("worse", 1, 1, 0)
    worse["args"]["grid"] = "wide"
    spans, _, _ = run([bad, worse])
    assert json.loads(spans["bad"]["attributes"])["grid"] == [2**40, 1, 1]
    assert json.loads(spans["worse"]["attributes"])["grid"] == "wide"
    assert spans["bad"]["grid_x"] == 0


def test_ids_are_the_same_each_time_and_differ_between_files(run, tmp_path):
    events = [event("user_annotation", "step 0", 0, 10), event("cpu_op", "a", 1, 1)]
    first, _, _ = run(events)
    again, _, _ = run(events)
    other, _, _ = run([*events, event("cpu_op", "b", 2, 1)])
    assert first == again
    assert other["step 0"]["trace_id_high"] != first["step 0"]["trace_id_high"]
    assert other["a"]["span_id"] != first["a"]["span_id"]


def test_patterns_say_which_ranges_are_steps_and_requests(run):
    options = ImportOptions(
        step_patterns=(r"tick",), request_patterns=(r"call-\d",), service="s", host="h",
        attributes={"team": "x"},
    )  # fmt: skip
    spans, _, sink = run(
        [event("user_annotation", name, i * 100, 50)
         for i, name in enumerate(("TICK", "call-1", "step 0", "ticking"))],
        options=options,
    )  # fmt: skip
    kinds = [spans[name]["kind"] for name in ("TICK", "call-1", "step 0", "ticking")]
    assert kinds == [SpanKind.STEP, SpanKind.REQUEST, SpanKind.NVTX_RANGE, SpanKind.NVTX_RANGE]
    resource = sink.written[0][1]
    assert (resource["service.name"], resource["host.name"], resource["team"]) == ("s", "h", "x")


def test_an_array_of_events_and_text_after_it(run):
    one = json.dumps(event("cpu_op", "a", 1, 1))
    spans, _, _ = run([], f"[{one} , {one}]")
    assert spans["a"]["start_ns"] == 1000
    _, report, _ = run([], f"[{one}] trailing")
    assert "text after the trace" in report.notes[0]
    _, report, _ = run([], "[]")
    assert report.spans == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "du', "cut off"),
        ('{"traceEvents": [{"ph": "i"}, ', "cut off"),
        ('{"traceEvents": [{"ph": "i"} {"ph": "i"}]}', "']' expected"),
        ('{"traceEvents": [{"ph": nope}]}', "not valid JSON at character"),
        ('{"traceEvents": 5}', "not an array"),
        ('{"events": []}', "no traceEvents"),
        ("{", "'\"' expected|cut off|not valid JSON|expected"),
        ("[" * 100_000, "nested too deeply"),
        ('{"traceEvents": [1.5.2]}', "not valid JSON|expected"),
    ],
)
def test_bad_files_say_what_is_wrong_and_send_nothing(tmp_path, text, says):
    path = tmp_path / "bad.json"
    path.write_text(text)
    sink = MemorySink()
    with pytest.raises(InputError, match=says) as caught:
        import_file(path, sink, source_format="kineto")
    assert str(path) in str(caught.value)
    assert sink.written == []


def test_a_truncated_gzip_says_how_far_it_could_be_read(tmp_path):
    events = [event("cpu_op", f"op {i * 7919 % 10007}", i, 1) for i in range(20_000)]
    whole = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    sink = MemorySink()
    with pytest.raises(InputError, match=r"damaged gzip after \d+.* [1-9]\d* events before it"):
        import_file(path, sink)
    assert sink.written == []


def test_nan_is_taken_as_profilers_write_it(run):
    text = '[{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "args": {"x": NaN}}]'
    spans, _, _ = run([], text)
    assert spans["a"]["attributes"] == '{"x":"NaN"}'


def test_bytes_that_are_no_utf8_do_not_stop_an_import(tmp_path):
    path = tmp_path / "raw.json"
    path.write_bytes(b'[{"ph": "X", "name": "a\xff", "ts": 1, "dur": 1}]')
    sink = MemorySink()
    import_file(path, sink)
    assert sink.written[0][0].column("name").to_pylist() == ["a\ufffd"]
