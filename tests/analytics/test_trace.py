import json
from typing import Any

import pytest

HOUR = 1_796_108_400_000_000_000
ONE = "4bf92f3577b34da6a3ce929d0e0e4736"
TWO = "4bf9000000000000000000000000aaaa"


def small_trace() -> list[dict[str, Any]]:
    """step 0-1000 > ffn 100-600 > launch 110-130 > kernel 300-700 (late, on the GPU)"""
    call = {"kind": "runtime_call", "name": "cudaLaunchKernel", "thread_id": 42}
    kernel = {
        "name": "gemm", "device": 0, "stream": 7, "grid_x": 4, "grid_y": 2, "block_x": 128,
        "registers_per_thread": 64, "static_shared_bytes": 1024, "dynamic_shared_bytes": 1024,
        "correlation_id": 9,
    }  # fmt: skip
    rows = [
        (1, None, 0, 1000, {"kind": "step", "name": "step 3"}),
        (2, 1, 100, 500, {"kind": "nvtx_range", "name": "ffn"}),
        (3, 2, 110, 20, call),
        (4, 3, 300, 400, kernel),
    ]
    return [
        {
            "trace_id": ONE, "span_id": span, "parent_span_id": parent, "start_ns": HOUR + start,
            "duration_ns": duration, "sampling_weight": 4.0, **rest,
        }
        for span, parent, start, duration, rest in rows
    ]  # fmt: skip


def wide_trace(count: int) -> list[dict[str, Any]]:
    root = {"kind": "step", "name": "step", "span_id": 1, "duration_ns": 10 * count}
    children = [
        {
            "name": f"k{i}", "span_id": i + 2, "parent_span_id": 1, "duration_ns": 1 + i % 7,
            "start_ns": HOUR + 10 * i,
        }
        for i in range(count)
    ]  # fmt: skip
    return [{"trace_id": TWO, "start_ns": HOUR, **row} for row in (root, *children)]


def test_tree(build: Any, spanlite: Any) -> None:
    build.spans(*small_trace())
    code, out, err = spanlite("trace", ONE, "--archive", build.root)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"trace {ONE}  llm on h1"
    assert lines[1] == (
        "2026-12-01T07:00:00Z · 1.00 us · 4 spans · device 400 ns · stands for 4 such traces"
    )
    rows = [line.split() for line in lines[4:]]
    assert rows[0] == ["0", "ns", "1.00", "us", "500", "ns", "▇" * 24, "step", "3", "(step)"]
    assert rows[1][:6] == ["100", "ns", "500", "ns", "480", "ns"]
    assert rows[2][-3:] == ["└─", "cudaLaunchKernel", "(runtime_call)"]
    assert rows[3][:8] == ["300", "ns", "400", "ns", "400", "ns", "gpu0", "s7"]
    assert lines[7].endswith("      └─ gemm (kernel)")
    assert lines[7].index("▇") - lines[4].index("▇") == 300 * 24 // 1000


def test_a_trace_with_impossible_times_is_drawn(build: Any, spanlite: Any) -> None:
    rows = small_trace()
    rows[3] |= {"start_ns": 2**63 - 1, "duration_ns": 2**63 - 1}
    rows[2] |= {"start_ns": -(2**63)}
    build.spans(*rows)
    code, out, _ = spanlite("trace", ONE, "--archive", build.root)
    assert code == 0
    assert max(map(len, out.splitlines())) < 200


def test_the_gpu_side_of_a_range_takes_nothing_off_its_own_time(build: Any, spanlite: Any) -> None:
    rows = small_trace()
    rows[1]["thread_id"] = 42
    copy = rows[1] | {"span_id": 5, "parent_span_id": 2, "thread_id": None, "duration_ns": 300}
    build.spans(*rows, copy | {"start_ns": HOUR + 300})
    _, out, _ = spanlite("trace", ONE, "--json", "--archive", build.root)
    own = {s["span_id"]: s["self_ns"] for s in json.loads(out)["spans"]}
    assert (own[f"{2:016x}"], own[f"{5:016x}"]) == (480, 300)
    _, out, _ = spanlite("trace", ONE, "--archive", build.root)
    assert sum("gpu side" in line for line in out.splitlines()) == 1


def test_long_shows_the_launch(build: Any, spanlite: Any) -> None:
    build.spans(*small_trace())
    _, out, _ = spanlite("trace", ONE, "--long", "--archive", build.root)
    assert "grid 4x2x1 block 128x1x1 regs 64 shared 2.00 KiB · correlation_id 9" in out


def test_json(build: Any, spanlite: Any) -> None:
    build.spans(*small_trace())
    _, out, _ = spanlite("trace", ONE, "--json", "--archive", build.root)
    trace = json.loads(out)
    assert (trace["span_count"], trace["start_ns"], trace["end_ns"]) == (4, HOUR, HOUR + 1000)
    assert [s["span_id"] for s in trace["spans"]] == [f"{i:016x}" for i in (1, 2, 3, 4)]
    assert [s["depth"] for s in trace["spans"]] == [0, 1, 2, 3]
    assert [s["self_ns"] for s in trace["spans"]] == [500, 480, 20, 400]
    assert [s["device_below_ns"] for s in trace["spans"]] == [400] * 4


@pytest.mark.parametrize("text", ["4bf92", "4BF92F35", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"])
def test_start_of_an_id(build: Any, spanlite: Any, text: str) -> None:
    build.spans(*small_trace(), *wide_trace(1))
    code, out, _ = spanlite("trace", text, "--archive", build.root)
    assert (code, ONE in out) == (0, True)


def test_ambiguous_start_and_no_id(build: Any, spanlite: Any) -> None:
    build.spans(*small_trace(), *wide_trace(1))
    code, _, err = spanlite("trace", "4bf9", "--archive", build.root)
    assert code == 2
    assert ONE in err and TWO in err
    code, _, err = spanlite("trace", "not-an-id", "--archive", build.root)
    assert (code, "hex digits" in err) == (2, True)


def test_huge_traces_fold(build: Any, spanlite: Any) -> None:
    build.spans(*wide_trace(500))
    args = ("trace", TWO, "--archive", build.root)
    _, out, _ = spanlite(*args)
    shown = [line for line in out.splitlines() if "(kernel)" in line]
    assert len(shown) == 12
    assert all("  7 ns" in line for line in shown)  # the longest stay
    assert "… 488 more kernels" in out
    _, out, _ = spanlite(*args, "--all")
    assert sum("(kernel)" in line for line in out.splitlines()) == 500
    assert "more kernels" not in out
    _, out, _ = spanlite(*args, "--lines", "4")
    assert sum("(kernel)" in line for line in out.splitlines()) == 3
    assert spanlite(*args, "--lines", "4", "--all")[0] == 2
    assert spanlite(*args, "--lines", "0")[0] == 2


def test_not_found_says_why(build: Any, spanlite: Any) -> None:
    build.traces(
        {"trace_id": ONE, "start_ns": HOUR, "end_ns": HOUR + 5_000_000, "spans": 1204,
         "kept": False, "policy": "slow-only"},
        {"trace_id": TWO, "start_ns": HOUR, "end_ns": HOUR + 5, "kept": True},
    )  # fmt: skip
    code, out, err = spanlite("trace", ONE[:9], "--archive", build.root)
    assert (code, out) == (1, "")
    assert "1,204 spans, 5.00 ms" in err
    assert "sampled out: policy 'slow-only'" in err
    code, _, err = spanlite("trace", TWO, "--archive", build.root)
    assert (code, "retain" in err) == (1, True)
    code, _, err = spanlite("trace", "77", "--archive", build.root)
    assert (code, "no trace starts with 77" in err) == (1, True)


def test_orphans_errors_and_flags_show(build: Any, spanlite: Any) -> None:
    rows = small_trace()
    rows[1]["parent_span_id"] = 77  # its parent is elsewhere
    rows[1] |= {"status": "error", "flags": 16 | 1 << 20}
    build.spans(*rows)
    _, out, _ = spanlite("trace", ONE, "--long", "--archive", build.root)
    assert "1 error · 1 flagged" in out
    assert "ffn (nvtx_range) [error]" in out
    assert "flags orphan, 1048576" in out


def test_only_the_window(build: Any, spanlite: Any) -> None:
    build.spans(*small_trace())
    code, _, err = spanlite("trace", ONE, "--to", HOUR, "--archive", build.root)
    assert (code, "in the window" in err) == (1, True)
