"""Plans as files: what went in comes out, and `spanlite plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.archive.reader import ArchiveReader
from spanlite.codec import decode_batch
from spanlite.errors import InputError, UsageError
from spanlite.timewindow import ALL_TIME
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.plandiff import diff_plans
from spanlite_replay.planfile import Provenance, read_plan, write_plan
from spanlite_replay.recording import Recording, read_recording
from spanlite_replay.targets._messages import encode_all, make_messages

HOUR = 1_796_108_400_000_000_000
MS = 1_000_000
Rows = Callable[[list[dict[str, Any]]], pa.Table]
Run = Callable[..., tuple[int, str, str]]
SOURCE = Provenance("data/archive", "all time", 4)


def traces(make_rows: Rows, count: int = 6) -> pa.Table:
    """Each trace: a step, a call, a kernel; every second has a request too."""
    rows: list[dict[str, Any]] = []
    for trace in range(1, count + 1):
        at = HOUR + trace * 10 * MS
        call = len(rows) + 2
        rows += [
            {"trace": trace, "kind": "step", "thread_id": 1, "start_ns": at, "duration_ns": 5 * MS},
            {"trace": trace, "kind": "runtime_call", "name": "cudaLaunchKernel", "thread_id": 1,
             "start_ns": at + 10, "duration_ns": 5},
            {"trace": trace, "kind": "kernel", "stream": 7 + trace % 2, "start_ns": at + 20,
             "duration_ns": 12 * MS, "parent_span_id": call, "grid_x": trace},
        ]  # fmt: skip
        if trace % 2:
            rows.append({"trace": trace, "kind": "request", "start_ns": at + 5, "duration_ns": MS})
    return make_rows(rows)


def same(one: Plan, two: Plan) -> None:
    """Every array and setting."""
    assert one.settings == two.settings and one.digest() == two.digest()
    for name in ("due_ns", "recorded_ns", "duration_ns", "spans", "fate"):
        assert getattr(one, name).tolist() == getattr(two, name).tolist()
    names = ("traces_sampled_out", "spans_sampled_out", "spans_not_of_unit", "size")
    assert [getattr(one, name) for name in names] == [getattr(two, name) for name in names]
    assert (one.work is None) == (two.work is None)
    if one.work is None or two.work is None:
        return
    for name in ("start_ns", "duration_ns", "kind", "thread", "stream", "launched_by", "is_call"):
        assert getattr(one.work, name).tolist() == getattr(two.work, name).tolist(), name
    for name in ("before", "after", "kind", "inferred"):
        assert getattr(one.work.edges, name).tolist() == getattr(two.work.edges, name).tolist()
    assert one.work.threads.to_pylist() == two.work.threads.to_pylist()
    assert one.work.streams.to_pylist() == two.work.streams.to_pylist()


plan_settings = st.builds(
    PlanSettings,
    unit=st.sampled_from(["span", "trace", "request"]),
    sample=st.sampled_from([Fraction(1), Fraction(1, 2)]),
    max_gap_ns=st.sampled_from([None, MS]),
    speed=st.sampled_from([Fraction(1), Fraction(7, 5)]),
    start_at_ns=st.sampled_from([None, HOUR * 2]),
    qps=st.sampled_from([None, Fraction(50)]),
    over=st.sampled_from(["delay", "drop", "thin"]),
    burst=st.sampled_from([None, 1]),
)


@settings(max_examples=25)
@given(plan_settings, st.sampled_from([None, "stream", "observed"]))
def test_what_went_in_comes_out(
    make_rows: Rows,
    tmp_path_factory: pytest.TempPathFactory,
    asked: PlanSettings,
    deps: Any,
) -> None:
    try:
        plan = build_plan(Recording.from_table(traces(make_rows)), asked)
    except UsageError:
        return  # the sample kept nothing
    plan = plan if deps is None else plan.with_work(deps)
    path = tmp_path_factory.mktemp("plan") / "one.slplan"
    write_plan(plan, SOURCE, path)
    read, source = read_plan(path)
    same(plan, read)
    assert source == SOURCE
    before = path.read_bytes()
    write_plan(plan, source, path)
    assert path.read_bytes() == before
    for one, two in zip(
        plan.span_rows(np.arange(len(plan))), read.span_rows(np.arange(len(read))), strict=True
    ):
        assert len(one) == len(two)


@pytest.fixture
def plan(make_rows: Rows) -> Plan:
    return build_plan(Recording.from_table(traces(make_rows)), PlanSettings()).with_work("observed")


def test_any_parquet_reader_can_look_at_it(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, SOURCE, tmp_path / "a.slplan")
    table = pq.read_table(tmp_path / "a.slplan")
    kernels = table.filter(pc.equal(table.column("kind").cast(pa.string()), "kernel"))
    assert kernels.column("grid_x").to_pylist() == [1, 2, 3, 4, 5, 6]
    waits = [one for each in kernels.column("plan_waits_for").to_pylist() for one in each]
    assert waits and all(one["kind"] == "observed" and one["inferred"] for one in waits)


@pytest.mark.parametrize("where", ["provenance", "digest", "plan_start_ns"])
def test_a_damaged_file_is_refused(plan: Plan, tmp_path: Path, where: str) -> None:
    path = tmp_path / "a.slplan"
    write_plan(plan, SOURCE, path)
    data = bytearray(path.read_bytes())
    if where.startswith("plan_"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        chunks = [group.column(i) for i in range(group.num_columns)]
        chunk = next(one for one in chunks if one.path_in_schema.startswith(where))
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        at = begin + chunk.total_compressed_size // 2
    else:
        at = data.rindex(where.encode())
    data[at : at + 8] = bytes(255 - byte for byte in data[at : at + 8])
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_plan(path)


def test_what_is_no_plan_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no plan"):
        read_plan(tmp_path / "a.slplan")
    (tmp_path / "b.slplan").write_text("hello")
    with pytest.raises(InputError, match="cannot be read as a plan"):
        read_plan(tmp_path / "b.slplan")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "c.slplan")
    with pytest.raises(InputError, match="is Parquet, but no plan"):
        read_plan(tmp_path / "c.slplan")
    with pytest.raises(UsageError, match=r"must end in \.slplan"):
        write_plan(plan, SOURCE, tmp_path / "d.parquet")
    with pytest.raises(UsageError, match="cannot be written"):
        write_plan(plan, SOURCE, tmp_path / "nowhere" / "d.slplan")


def test_a_table_that_was_changed_does_not_match_its_digest(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "a.slplan"
    write_plan(plan, SOURCE, path)
    table = pq.read_table(path)
    at = table.column_names.index("plan_start_ns")
    later = pc.add(table.column("plan_start_ns"), 1)
    pq.write_table(table.set_column(at, "plan_start_ns", later), path)
    with pytest.raises(InputError, match="does not match its own digest"):
        read_plan(path)


def test_diff(make_rows: Rows, plan: Plan) -> None:
    rec = Recording.from_table(traces(make_rows))
    assert diff_plans(plan, plan).same
    other = build_plan(rec, PlanSettings(speed=Fraction(2))).with_work("stream")
    found = diff_plans(plan, other)
    assert not found.same and found.settings == {"speed": ["1", "2"]}
    assert found.in_both == len(plan) and found.moved == len(plan) - 1
    assert found.moved_max_ns == -((int(plan.due_ns[-1] - plan.due_ns[0]) + 1) // 2)
    assert found.edges["observed inferred"][1] == 0
    half = build_plan(rec, PlanSettings(sample=Fraction(1, 2)))
    found = diff_plans(plan, half)
    assert found.only_in_first == len(plan) - len(half) and found.only_in_second == 0


@pytest.fixture
def archive(
    make_spans: Callable[..., pa.RecordBatch], write_archive: Callable[..., Path], tmp_path: Path
) -> Path:
    batch = make_spans(
        trace_id_low=[1 + i // 3 for i in range(30)],
        span_id=[100 + i for i in range(30)],
        parent_span_id=[0 if i % 3 == 0 else 99 + i for i in range(30)],
        start_ns=[HOUR + i * MS for i in range(30)],
        duration_ns=[1000] * 30,
        kind=[(9, 5, 1)[i % 3] for i in range(30)],
        thread_id=[0 if i % 3 == 2 else 7 for i in range(30)],
        device=[0 if i % 3 == 2 else -1 for i in range(30)],
        stream=[13 if i % 3 == 2 else -1 for i in range(30)],
    )
    return write_archive(tmp_path / "archive", batch)


def test_save_show_diff_and_replay(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.slplan", tmp_path / "two.slplan"
    code, out, _ = spanlite("plan", "save", archive, "--out", one)
    assert code == 0 and "launches   recorded 10, unknown 0" in out
    assert spanlite("plan", "save", archive, "--speed", "2", "--out", two)[0] == 0
    code, out, _ = spanlite("plan", "show", two, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["transforms"] == {"speed": "2"} and facts["events"] == 30
    assert facts["source"]["archive"] == str(archive)
    code, out, _ = spanlite("plan", "diff", one, two)
    assert code == 1 and "speed: 1 -> 2" in out and "deadlines moved: 29" in out
    assert spanlite("plan", "diff", one, one)[:2] == (0, "the same plan\n")
    direct = spanlite("replay", archive, "--speed", "2", "--no-wait")
    saved = spanlite("replay", two, "--no-wait")
    assert direct[:2] == saved[:2] and saved[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "{plan}", "--speed", "2"], "--speed changes a plan when it is made"),
        (["replay", "{plan}", "--last", "1h"], "--last changes a plan"),
        (["replay", "{plan}", "--unit", "span"], "--unit changes a plan"),
        (["plan", "show", "{plan}.slplan"], "there is no plan"),
        (["plan", "save", "{archive}", "--out", "x.parquet"], "must end in .slplan"),
        (["plan", "save", "{archive}", "--burst", "2", "--out", "x.slplan"], "--qps"),
    ],
)
def test_what_cannot_be_is_refused(
    spanlite: Run, archive: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    plan = tmp_path / "one.slplan"
    assert spanlite("plan", "save", archive, "--out", plan)[0] == 0
    code, _, err = spanlite(*(word.format(plan=plan, archive=archive) for word in words))
    assert code == 2 and message in err


def test_start_at_moves_a_saved_plan(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    plan = tmp_path / "one.slplan"
    assert spanlite("plan", "save", archive, "--out", plan)[0] == 0
    _, out, _ = spanlite("replay", plan, "--no-wait", "--start-at", "2026-12-01T08:00:00Z")
    assert json.loads(out.splitlines()[0])["due_ns"] == HOUR + 3_600_000_000_000


def test_a_saved_plan_sends_the_same_messages(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.slplan"
    assert spanlite("plan", "save", archive, "--loop", "2", "--out", path)[0] == 0
    recording = read_recording(ArchiveReader(archive), ALL_TIME, None)
    direct = build_plan(recording, PlanSettings(loop=2))
    saved = read_plan(path)[0]
    events = np.arange(len(direct))
    one, two = (
        encode_all(make_messages(each, events, "r", epoch=5, bucket_count=4), None)
        for each in (direct, saved)
    )
    assert one == two and len(one) > 0


def test_requests_of_a_log_can_be_sent(spanlite: Run, tmp_path: Path) -> None:
    log, path = tmp_path / "a.csv", tmp_path / "a.slplan"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,3,4\n")
    assert spanlite("plan", "save", log, "--out", path)[0] == 0
    plan = read_plan(path)[0]
    messages = encode_all(make_messages(plan, np.arange(1), "r", epoch=5, bucket_count=4), None)
    spans = decode_batch(messages[0]).spans
    assert spans.column("start_ns").to_pylist() == [1_700_158_546_500_000_000]
    assert "input_tokens" in spans.column("attributes").to_pylist()[0]
