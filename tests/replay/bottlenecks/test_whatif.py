"""What-if questions whose answers are known: on a synthetic machine, and on pairs of recordings."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from spanlite.errors import InputError, UsageError
from spanlite_replay import whatif
from spanlite_replay.bottlenecks.recorded import read
from spanlite_replay.whatif_load import Load

US = 1_000
Run = Callable[..., tuple[int, str, str]]


def device_bound(m: Any, steps: int = 5) -> whatif.Ground:
    """Steps of 1 ms on the device: 6 of 100 us GEMMs, 4 of 50 us others, a 200 us copy."""
    for number in range(steps):
        m.begin_step(f"step:{number}")
        for _ in range(6):
            m.launch("nvjet_gemm", 100 * US)
        for _ in range(4):
            m.launch("elementwise_kernel", 50 * US)
        m.copy(200 * US, 1_000_000)
        m.sync()
        m.end_step()
        m.host(50 * US)
    return whatif.prepare(read(m.recording()))


def ask(ground: whatif.Ground, change: whatif.Change, reordered: bool = False) -> whatif.Answer:
    answer = whatif.ask(ground, "?", [change], [], reordered)
    assert answer.low_ns <= answer.predicted_ns <= answer.high_ns
    return answer


def test_no_change_is_no_change(machine: Any) -> None:
    ground = device_bound(machine)
    assert ground.simulator_error < 0.01 and ground.noise < 0.01
    answer = ask(ground, lambda _, case: [case])
    assert answer.predicted_ns == pytest.approx(answer.recorded_ns)
    assert answer.windows == 5 and answer.unit == "step"


def test_kernels_by_name(machine: Any) -> None:
    answer = ask(device_bound(machine), whatif.kernels_times("nvjet", 2.0))
    assert answer.recorded_ns - answer.predicted_ns == pytest.approx(300 * US, rel=0.02)


def test_copies_dropped(machine: Any) -> None:
    ground = device_bound(machine)
    saved = ground.lengths_ns[1] - ask(ground, whatif.copies_dropped("htod")).predicted_ns
    assert saved == pytest.approx(200 * US, rel=0.05)
    with pytest.raises(UsageError, match="no copies of direction dtoh"):
        ask(ground, whatif.copies_dropped("dtoh"))


def test_the_clock_moves_what_is_bound_by_compute(machine: Any) -> None:
    answer = ask(device_bound(machine), whatif.clock_times(0.5))
    assert answer.predicted_ns - answer.recorded_ns == pytest.approx(600 * US, rel=0.02)
    # By the names alone it is not sure: all kernels, or none.
    assert answer.high_ns - answer.recorded_ns >= 800 * US * 0.98
    assert answer.low_ns <= answer.recorded_ns


def launch_bound(m: Any) -> whatif.Ground:
    for number in range(5):
        m.begin_step(f"step:{number}")
        for _ in range(100):
            m.host(10 * US)
            m.launch("gemm", 2 * US)
        m.sync()
        m.end_step()
    return whatif.prepare(read(m.recording()))


def test_one_graph_in_place_of_many_launches(machine: Any) -> None:
    answer = ask(launch_bound(machine), whatif.merged_into_graphs(), reordered=True)
    # 1.4 ms on the host become a graph call and 100 kernels of 2 us, 0.4 us apart, or so.
    assert answer.recorded_ns > 1_400 * US
    assert 200 * US < answer.predicted_ns < 300 * US


def test_streams_folded_onto_one(machine: Any) -> None:
    for number in range(4):
        machine.begin_step(f"step:{number}")
        for _ in range(5):
            for stream in (1, 2, 3, 4):
                machine.launch("gemm", 200 * US, stream=stream, grid_x=8)
        machine.sync()
        machine.end_step()
    ground = whatif.prepare(read(machine.recording()))
    one = ask(ground, whatif.streams_remapped(1), reordered=True)
    same = ask(ground, whatif.streams_remapped(10**20), reordered=True)
    assert same.predicted_ns == pytest.approx(same.recorded_ns, rel=0.01)
    assert one.predicted_ns > 2 * one.recorded_ns


def test_noise_of_two_steps_is_not_known(machine: Any) -> None:
    answer = ask(device_bound(machine, steps=2), whatif.kernels_times("nvjet", 2))
    assert math.isnan(answer.noise) and math.isnan(answer.error_ns)
    assert math.isfinite(answer.low_ns)


@pytest.mark.parametrize(
    "make",
    [
        lambda: whatif.kernels_times("(", 2),
        lambda: whatif.copies_dropped("sideways"),
        lambda: whatif.streams_remapped(0),
    ],
)
def test_questions_that_make_no_sense(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_pattern_without_kernels(machine: Any) -> None:
    with pytest.raises(UsageError, match=r"names no kernel of this window, which has .*nvjet"):
        ask(device_bound(machine), whatif.kernels_times("conv", 2))


def spaced(m: Any, arrivals: int, gap: int) -> None:
    """Arrivals of 200 us of device work, `gap` ns apart, none waited for by the host."""
    begin = m.now
    for number in range(arrivals):
        m.now = begin + number * gap
        m.begin_step(f"step:{number}")
        m.launch("gemm", 200 * US)
        m.end_step()


def test_load(machine: Any) -> None:
    spaced(machine, 40, 1_000 * US)
    load = Load(machine.recording())
    assert load.base_qps == pytest.approx(1_000)
    assert load.at(Fraction(2)).p99_ns == pytest.approx(load.at(Fraction(1)).p99_ns, rel=0.01)
    full = load.at(Fraction(10))  # 2 ms of work a ms: the last of 40 waits for some 4 ms
    assert 3_500 * US < full.p99_ns < 4_500 * US and full.qps == pytest.approx(10_000)
    broken = load.breaking(1_000 * US)
    # Work of 200 us: the queue grows from 5,000/s on, and 40 arrivals reach 1 ms soon after.
    assert broken.low_qps <= broken.qps <= broken.high_qps
    assert 5_000 < broken.qps < 6_000
    assert broken.breaks_at.p99_ns > 1_000 * US >= broken.holds_at.p99_ns
    assert load.breaking(100 * US).fails_always
    assert load.breaking(10**12).qps is None and not load.breaking(10**12).fails_always


def test_one_arrival_is_no_rate(machine: Any) -> None:
    spaced(machine, 1, 1_000)
    with pytest.raises(InputError, match="no rate"):
        Load(machine.recording())


def test_eager_recordings_tell_how_long_the_graph_would_take(
    archive_of: Any, spanlite: Run
) -> None:
    """Of the same decode loop both were recorded: the answer's range holds what was measured."""
    eager = archive_of("eager_s1.json.gz")
    code, out, err = spanlite("whatif", eager, "--graph", "--json")
    assert code == 0, err
    [answer] = json.loads(out)["answers"]
    graph = read_graph(archive_of, spanlite)
    assert answer["recorded_ns"] > 8 * graph
    assert answer["low_ns"] <= graph <= answer["high_ns"]
    assert answer["predicted_ns"] == pytest.approx(graph, rel=0.1)


def read_graph(archive_of: Any, spanlite: Run) -> float:
    _, out, _ = spanlite("bottlenecks", archive_of("graph_s1.json.gz"), "--json")
    return statistics.median(row["ns"] for row in json.loads(out)["rows"])


@pytest.fixture
def archive_of(tmp_path: Path, write_archive: Callable[..., Path]) -> Callable[[str], Path]:
    from spanlite_collectors.importers.api import import_file
    from spanlite_collectors.sinks import MemorySink

    def make(name: str) -> Path:
        sink = MemorySink()
        import_file(Path(__file__).parents[2] / "recordings" / name, sink)
        for spans, resource in sink.written:
            write_archive(tmp_path / name, spans, resource)
        return tmp_path / name

    return make


def test_command(archive_of: Any, spanlite: Run) -> None:
    archive = archive_of("graph_s1.json.gz")
    code, out, _ = spanlite(
        "whatif", archive, "--kernel", "nvjet=2", "--clock", "0.8", "--drop-copies", "--streams",
        "1", "--together", "--qps-times", "2", "--slo", "5ms",
    )  # fmt: skip
    assert code == 0
    assert "median step of 6:" in out and out.count("arrivals/s") >= 2
    assert "p99 of 5.000 ms" in out and "assumed: each arrival brings the work" in out
    code, out, _ = spanlite("whatif", archive, "--slo", "1h", "--json")
    assert code == 0 and json.loads(out)["slo"]["qps"] is None
    for wrong in (
        [],
        ["--kernel", "nvjet"],
        ["--clock", "0"],
        ["--gpu", "abacus", "--graph"],
        ["--slo", "5ms", "--together"],
        ["--clock", ""],
        ["--slo", ""],
    ):
        assert spanlite("whatif", archive, *wrong)[0] == 2


def test_an_empty_baseline_is_refused(archive_of: Any, spanlite: Run) -> None:
    code, _, err = spanlite("bottlenecks", archive_of("graph_s1.json.gz"), "--baseline", "")
    assert code == 2 and "--baseline ''" in err
