"""The model of a GPU: what may never happen in it, and how close it comes to recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.sim import GpuModel, fit_model, known_model, native, simulate
from spanlite_replay.sim import engine as events
from spanlite_replay.sim.host import threads_of
from spanlite_replay.sim.model import classes, launch_lead
from spanlite_replay.sim.run import Parts, Process, Simulated
from spanlite_replay.sim.serial import run_serial
from spanlite_replay.sim.waits import with_untold_waits
from spanlite_replay.targets.base import OBSERVED_SCHEMA, REPLAY_ID_KEY
from spanlite_replay.work import EdgeKind, Work

HOUR = 1_796_108_400_000_000_000
US = 1_000
HERE = Path(__file__).parents[1] / "recordings"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "kineto"
Rows = Callable[[list[dict[str, Any]]], pa.Table]
Run = Callable[..., tuple[int, str, str]]
FULL = {"grid_x": 100_000, "grid_y": 1, "grid_z": 1, "block_x": 1024, "block_y": 1, "block_z": 1}
SMALL = FULL | {"grid_x": 4, "block_x": 128}

#: (thread, stream, time of the call, time on the device, what it is)
scripts = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.integers(7, 9),
        st.integers(1, 9),
        st.sampled_from([0, 1, 30, 400]),
        st.sampled_from(["kernel", "full", "htod", "dtoh", "sync", "graph"]),
    ),
    min_size=1,
    max_size=25,
)
Script = list[tuple[int, int, int, int, str]]


def timeline(script: Script) -> list[dict[str, Any]]:
    """What a recording of it may look like: calls in turn, streams first in, first out."""
    rows: list[dict[str, Any]] = []
    now, free = HOUR, dict.fromkeys((7, 8, 9), HOUR)
    for thread, stream, cost, length, what in script:
        call = {"kind": "runtime_call", "thread_id": thread, "start_ns": now, "name": "cudaLaunch"}
        end = now + cost * US
        if what == "sync":
            call["name"] = "cudaDeviceSynchronize"
            end = max(end, *free.values())
        rows.append(call | {"duration_ns": end - now})
        parent = len(rows)
        for _ in range({"sync": 0, "graph": 3}.get(what, 1)):
            begin = max(now + 2 * US, free[stream] + 500)
            one = {"kind": "kernel", **(FULL if what == "full" else SMALL)}
            if what in ("htod", "dtoh"):
                one = {"kind": "memcpy", "copy_kind": what}
            rows.append(
                one | {"stream": stream, "start_ns": begin, "duration_ns": length * US,
                       "parent_span_id": parent, "correlation_id": parent}
            )  # fmt: skip
            free[stream] = begin + length * US
        now = end + US
    return rows


def plan_of(table: pa.Table, deps: str = "stream") -> Plan:
    return build_plan(Recording.from_table(table), PlanSettings()).with_work(deps)  # type: ignore[arg-type]


def run(
    plan: Plan, host: str = "open", model: GpuModel | None = None, **more: Any
) -> tuple[Work, GpuModel, Simulated]:
    work = plan.work
    assert work is not None
    model = fit_model(work, plan.recording) if model is None else model
    return work, model, simulate(work, plan.recording, model, host, **more)  # type: ignore[arg-type]


@settings(max_examples=30)
@given(scripts, st.sampled_from(["open", "closed"]), st.sampled_from(["stream", "observed"]))
def test_nothing_starts_before_it_may(
    make_rows: Rows, script: Script, host: str, deps: str
) -> None:
    plan = plan_of(make_rows(timeline(script)), deps)
    work, model, seen = run(plan, host)
    assert seen.given_up == 0
    assert (seen.end_ns >= seen.start_ns).all()
    positions, bounds = work.stream_order()
    kinds = classes(work, positions)
    gap = np.asarray(model.gap_ns)[kinds]
    inner = np.ones(len(positions), dtype=bool)
    inner[bounds[:-1][np.diff(bounds) > 0]] = False
    after = np.flatnonzero(inner)
    waited = seen.start_ns[positions[after]] - seen.end_ns[positions[after - 1]]
    assert (waited >= gap[after] - 1).all()
    call = work.launched_by[positions]
    lead = launch_lead(work, call, work.duration_ns.astype(float), kinds, model)
    assert (seen.start_ns[positions] - seen.start_ns[call] >= lead - 1).all()
    edges = work.edges
    waits = edges.kind == EdgeKind.SYNC
    before, later = seen.end_ns[edges.before], edges.after
    assert (seen.start_ns[later[~waits]] >= before[~waits] - 1).all()
    assert (seen.end_ns[later[waits]] >= before[waits] - 1).all()
    calls, bounds = work.launch_order()
    for first, last in pairwise(bounds):
        mine = calls[first:last]
        assert (seen.start_ns[mine[1:]] >= seen.end_ns[mine[:-1]] - 1).all()
    if host == "open":
        assert (seen.start_ns[calls] >= work.start_ns[calls] - 1).all()


def _process(plan: Plan, host: Any) -> Process:
    work = plan.work
    assert work is not None
    base = int(work.start_ns[0])
    model = fit_model(work, plan.recording)
    threads = threads_of(work, plan.recording, model, host, base)
    due = (work.start_ns - base).astype(float)
    parts = Parts(
        work, plan.recording, model, host, threads, *work.stream_order(), due, work.duration_ns
    )
    return parts.one(int(parts.process[0]))


@settings(max_examples=30)
@given(scripts, st.sampled_from(["open", "closed"]), st.integers(0, 5))
def test_one_stream_needs_no_events(make_rows: Rows, script: Script, host: Any, lost: int) -> None:
    script = [(1, 7, cost, length, what) for _, _, cost, length, what in script]
    if all(what == "sync" for *_, what in script):
        return
    rows = timeline(script)
    # Launched before the recording began.
    for row in [row for row in rows if "parent_span_id" in row][:lost]:
        del row["parent_span_id"], row["correlation_id"]
    one = _process(plan_of(make_rows(rows)), host)
    quick, slow = run_serial(one), events.run(one.flat())
    for name in ("start", "end", "returned"):
        assert np.allclose(getattr(quick, name), getattr(slow, name), atol=1e-3), name


@settings(max_examples=60)
@given(scripts, st.sampled_from(["open", "closed"]), st.sampled_from(["stream", "observed"]))
def test_the_loop_in_c_says_the_same_to_the_last_bit(
    make_rows: Rows, script: Script, host: Any, deps: str
) -> None:
    if not native.is_there():
        pytest.skip("no C++ compiler: install g++")
    if all(what == "sync" for *_, what in script):
        return
    one = _process(plan_of(make_rows(timeline(script)), deps), host)
    python, compiled = events.run(one.flat()), native.run(one.flat())
    assert python.given_up == compiled.given_up
    for name in ("start", "end", "returned", "begins"):
        ours, theirs = getattr(python, name), getattr(compiled, name)
        assert np.array_equal(ours, theirs, equal_nan=True), name


@settings(max_examples=30)
@given(scripts, st.randoms(use_true_random=False))
def test_the_same_plan_runs_the_same(make_rows: Rows, script: Script, random: Any) -> None:
    table = make_rows(timeline(script))
    order = list(range(len(table)))
    random.shuffle(order)
    one, two = run(plan_of(table))[2], run(plan_of(table.take(order)))[2]
    assert one.start_ns.tolist() == two.start_ns.tolist()
    assert one.end_ns.tolist() == two.end_ns.tolist()


@settings(max_examples=30)
@given(scripts)
def test_a_faster_stream_is_never_later(make_rows: Rows, script: Script) -> None:
    script = [(1, 7, cost, length, what) for _, _, cost, length, what in script]
    plan = plan_of(make_rows(timeline(script)))
    work, model, seen = run(plan, "closed")
    half = np.where(work.is_device, work.duration_ns // 2, work.duration_ns)
    faster = simulate(work, plan.recording, model, "closed", half)
    assert (faster.end_ns[work.is_device] <= seen.end_ns[work.is_device] + 1).all()


def two(make_rows: Rows, one: dict[str, Any], other: dict[str, Any], gap_us: int = 1) -> Plan:
    """Two spans of 100 us on two streams, launched right after each other."""
    rows: list[dict[str, Any]] = []
    for number, span in enumerate((one, other)):
        at = HOUR + number * gap_us * US
        rows.append({"kind": "runtime_call", "thread_id": number + 1, "start_ns": at,
                     "duration_ns": 500})  # fmt: skip
        rows.append(
            {"start_ns": at + 5 * US, "duration_ns": 100 * US, "stream": 7 + number,
             "parent_span_id": len(rows), **span}
        )  # fmt: skip
    return plan_of(make_rows(rows))


def on_device(work: Work, seen: Simulated) -> list[tuple[int, int]]:
    """(start, end) in us from the first start, by recorded start."""
    at = np.flatnonzero(work.is_device)
    begin = seen.start_ns[at].min()
    return [
        (round((seen.start_ns[i] - begin) / US), round((seen.end_ns[i] - begin) / US)) for i in at
    ]


@pytest.mark.parametrize(
    ("one", "other", "second_starts"),
    [
        ({"kind": "kernel", **SMALL}, {"kind": "kernel", **SMALL}, 1),
        ({"kind": "kernel", **FULL}, {"kind": "kernel", **SMALL}, 100),
        ({"kind": "memcpy", "copy_kind": "htod"}, {"kind": "memcpy", "copy_kind": "htod"}, 100),
        ({"kind": "memcpy", "copy_kind": "htod"}, {"kind": "memcpy", "copy_kind": "dtoh"}, 1),
        ({"kind": "memcpy", "copy_kind": "htod"}, {"kind": "kernel", **FULL}, 1),
    ],
)
def test_who_takes_turns(
    make_rows: Rows, one: dict[str, Any], other: dict[str, Any], second_starts: int
) -> None:
    model = GpuModel(*_sm(), contention=0.0)
    work, _, seen = run(two(make_rows, one, other), model=model)
    assert on_device(work, seen)[1][0] == second_starts


def _sm() -> tuple[Any, int]:
    model = known_model("H200")
    return model.sm, model.sm_count


def test_the_same_company_takes_as_long_as_recorded_and_less_alone(make_rows: Rows) -> None:
    plan = two(make_rows, {"kind": "kernel", **SMALL}, {"kind": "kernel", **SMALL})
    model = GpuModel(*_sm(), contention=0.5)
    work, _, seen = run(plan, model=model)
    assert on_device(work, seen) == [(0, 100), (1, 101)]
    # Apart, each runs at full speed: 99 us of company count as 99 / sqrt(2).
    later = two(make_rows, {"kind": "kernel", **SMALL}, {"kind": "kernel", **SMALL}, 1000)
    solo = run(plan, model=model, duration_ns=np.where(work.is_device, 100 * US, 500))[2]
    assert solo.makespan_ns == seen.makespan_ns
    assert on_device(*run(later, model=model)[::2]) == [(0, 100), (1000, 1100)]


def test_contention_is_read_off_equal_kernels(make_rows: Rows) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(12):
        # By turns alone, and four at once that take twice as long: 4 ** 0.5.
        together = 4 if number % 2 else 1
        rows += [
            {"kind": "kernel", "stream": 7 + lane, "start_ns": HOUR + number * 900 * US,
             "duration_ns": (200 if together > 1 else 100) * US, **SMALL}
            for lane in range(together)
        ]  # fmt: skip
    plan = plan_of(make_rows(rows))
    assert plan.work is not None
    assert fit_model(plan.work, plan.recording).contention == pytest.approx(0.5, abs=0.01)


def _copies_behind_kernels(make_rows: Rows, bring: int) -> Plan:
    """Steps of a 300 us kernel on one stream and, right behind it, a copy on another; no event
    says so. `bring`: how long after the kernel the copy begins, in ns."""
    rows: list[dict[str, Any]] = []
    now = HOUR
    for _ in range(6):
        for stream, begin, length, what in (
            (7, now + 8 * US, 300 * US, {"kind": "kernel", **SMALL}),
            (9, now + 308 * US + bring, 5 * US, {"kind": "memcpy", "copy_kind": "dtoh"}),
        ):
            call = {"kind": "runtime_call", "thread_id": 1, "start_ns": now, "name": "cudaLaunch"}
            rows.append(call | {"duration_ns": 4 * US})
            ids = {"parent_span_id": len(rows), "correlation_id": len(rows)}
            rows.append(what | ids | {"stream": stream, "start_ns": begin, "duration_ns": length})
            now += 5 * US
        end = begin + length + 3 * US
        sync = {"kind": "runtime_call", "thread_id": 1, "name": "cudaDeviceSynchronize"}
        rows.append(sync | {"start_ns": now, "duration_ns": end - now})
        now = end + 20 * US
    return plan_of(make_rows(rows))


@pytest.mark.parametrize("host", ["open", "closed"])
def test_a_copy_waits_for_the_kernel_that_it_followed(make_rows: Rows, host: str) -> None:
    plan = _copies_behind_kernels(make_rows, bring=1_500)
    work, _, seen = run(plan, host)
    assert not (work.edges.kind != EdgeKind.SYNC).any()  # stream order says nothing of it
    off = seen.start_ns - work.start_ns
    assert abs(off).max() < 5 * US
    assert seen.makespan_ns == pytest.approx(int(np.ptp(work.start_ns + work.duration_ns)), rel=0.1)


def test_a_copy_that_follows_nothing_waits_for_nothing(make_rows: Rows) -> None:
    plan = _copies_behind_kernels(make_rows, bring=100 * US)
    work = plan.work
    assert work is not None and with_untold_waits(work, plan.recording) is work


def test_a_wait_that_cannot_end_is_given_up_and_counted(make_rows: Rows) -> None:
    # By its times the kernel ran before the synchronisation that came before its launch.
    call = {"kind": "runtime_call", "thread_id": 1}
    rows = [
        call | {"start_ns": HOUR, "duration_ns": 5 * US},
        {"kind": "kernel", "stream": 7, "start_ns": HOUR + 10 * US, "duration_ns": 5 * US,
         "parent_span_id": 5},
        {"kind": "kernel", "stream": 7, "start_ns": HOUR + 20 * US, "duration_ns": 5 * US,
         "parent_span_id": 1},
        call | {"start_ns": HOUR + 18 * US, "duration_ns": 10 * US,
                "name": "cudaStreamSynchronize"},
        call | {"start_ns": HOUR + 40 * US, "duration_ns": 5 * US},
    ]  # fmt: skip
    work, _, seen = run(plan_of(make_rows(rows)))
    assert seen.given_up == 1 and (seen.end_ns >= seen.start_ns).all()
    assert len(seen.start_ns) == len(work)


def makespan_error(plan: Plan, host: str) -> float:
    work, _, seen = run(plan, host)
    device = work.is_device
    recorded = (work.start_ns + work.duration_ns)[device].max() - work.start_ns[device].min()
    ran = seen.end_ns[device].max() - seen.start_ns[device].min()
    assert seen.given_up == 0
    return float(100 * abs(ran - recorded) / recorded)


@pytest.mark.parametrize("name", ["eager_s1", "eager_s4", "graph_s1", "graph_s4"])
def test_recordings_take_as_long_as_they_did(
    import_rows: Callable[[Path], pa.Table], name: str
) -> None:
    plan = plan_of(import_rows(HERE / f"{name}.json.gz"))
    limit = {"graph_s1": 1.0, "graph_s4": 3.0}.get(name, 0.1)
    assert makespan_error(plan, "open") < limit
    assert makespan_error(plan, "closed") < limit


@pytest.mark.parametrize(
    "name", ["h100_bert_small", "h100_qwen1.5_0.5b", "kineto_graph_s1", "kineto_eager_s1"]
)
def test_other_peoples_serial_traces_too(
    import_rows: Callable[[Path], pa.Table], name: str
) -> None:
    path = SHARED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/kineto")
    plan = plan_of(import_rows(path))
    assert makespan_error(plan, "open") < 0.5
    assert makespan_error(plan, "closed") < 0.5


# ---- the target ----------------------------------------------------------------------


@pytest.fixture
def archive(
    make_spans: Callable[..., pa.RecordBatch], write_archive: Callable[..., Path], tmp_path: Path
) -> Path:
    batch = make_spans(
        trace_id_low=[1 + i // 3 for i in range(30)],
        span_id=[100 + i for i in range(30)],
        parent_span_id=[0 if i % 3 < 2 else 99 + i for i in range(30)],
        start_ns=[HOUR + i * 10 * US for i in range(30)],
        duration_ns=[(25 if i % 3 == 0 else 4) * US for i in range(30)],
        kind=[(9, 5, 1)[i % 3] for i in range(30)],
        thread_id=[0 if i % 3 == 2 else 7 for i in range(30)],
        device=[0 if i % 3 == 2 else -1 for i in range(30)],
        stream=[13 if i % 3 == 2 else -1 for i in range(30)],
    )
    return write_archive(tmp_path / "archive", batch)


def test_it_says_what_it_observed(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "observed.parquet"
    words = ("replay", archive, "--target", "sim", "--replay-id", "r1", "--out", out)
    code, text, _ = spanlite(*words, "--json")
    report = json.loads(text)
    table = pq.read_table(out)
    assert code == 0 and report["closes"] and report["facts"]["replay_id"] == "r1"
    assert table.schema.names == OBSERVED_SCHEMA.names
    assert table.schema.metadata[REPLAY_ID_KEY] == b"r1"
    assert sorted(table.column("span_id").to_pylist()) == list(range(100, 130))
    start, end = (table.column(name).to_numpy() for name in ("start_ns", "end_ns"))
    assert (np.diff(start) >= 0).all() and (end >= start).all()
    # A step still encloses its call.
    spans = {row["span_id"]: row for row in table.to_pylist()}
    assert all(
        spans[one]["start_ns"] <= spans[one + 1]["start_ns"]
        and spans[one]["end_ns"] >= spans[one + 1]["end_ns"]
        for one in range(100, 130, 3)
    )
    before = out.read_bytes()
    assert spanlite(*words)[0] == 0 and out.read_bytes() == before


def test_from_a_saved_plan(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    plan = tmp_path / "one.slplan"
    assert spanlite("plan", "save", archive, "--out", plan)[0] == 0
    direct = spanlite("replay", archive, "--target", "sim", "--replay-id", "r")
    saved = spanlite("replay", plan, "--target", "sim", "--replay-id", "r")
    assert direct[:2] == saved[:2]
    code, _, err = spanlite("replay", plan, "--target", "sim", "--deps", "observed")
    assert code == 2 and "--deps stream" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--target", "sim", "--no-wait"], "a clock of its own"),
        (["--target", "sim", "--late", "drop"], "a clock of its own"),
        (["--target", "sim", "--gpu", "Voodoo"], "is not known"),
        (["--target", "sim", "--out", "x.json"], ".parquet"),
        (["--target", "sim", "--out", "/nowhere/x.parquet"], "cannot be written"),
        (["--host", "closed"], "--target sim"),
        (["--deps", "stream"], "--target sim"),
        (["--target", "kafka", "--gpu", "H100"], "--target sim"),
    ],
)
def test_what_cannot_be_is_refused(
    spanlite: Run, archive: Path, flags: list[str], words: str
) -> None:
    code, out, err = spanlite("replay", archive, *flags)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_nothing_on_a_gpu_is_said(
    spanlite: Run, tmp_path: Path, write_archive: Any, make_spans: Any
) -> None:
    root = write_archive(tmp_path / "a", make_spans(start_ns=[HOUR], trace_id_low=[1], span_id=[1]))
    code, _, err = spanlite("replay", root, "--target", "sim")
    assert code == 2 and "has no kernels, copies or memsets" in err
