import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spanlite.errors import InputError, ServiceError, UsageError
from spanlite_analytics.lab.scan.plots import grids, write_html, write_png
from spanlite_analytics.lab.scan.rank import Timed, ranks, timed
from spanlite_analytics.lab.scan.runner import DeviceLostError, Measured, repeated
from spanlite_analytics.lab.scan.scan import scan, table
from spanlite_analytics.lab.scan.space import configurations
from spanlite_analytics.lab.scan.spec import Spec, load
from spanlite_analytics.lab.scan.store import Journal, write_table
from spanlite_analytics.lab.toolchain import has_tools

from .conftest import FormulaGpu, built

Write = Callable[..., Path]
HERE = Path(__file__).parent


def run(spec: Spec, folder: Path, gpu: Any, told: Any = lambda *_: None) -> Journal:
    journal = Journal(folder, spec.fingerprint, gpu.gpu if gpu else "none")
    try:
        scan(spec, journal, gpu, told, 2, make=built)
    finally:
        journal.close()
    return journal


def test_a_whole_scan(spec: Spec, tmp_path: Path) -> None:
    seen: list[int] = []
    journal = run(spec, tmp_path / "out", FormulaGpu(), lambda done, total, row: seen.append(done))
    assert seen == list(range(len(configurations(spec)) + 1))
    rows = table(spec, journal)
    best = rows[0]
    assert {key: best[key] for key in spec.parameters} == {
        "tile": 64, "threads": 128, "order": "column",
    }  # fmt: skip
    assert best["median_ns"] == pytest.approx(1000) and best["rank"] == 1
    assert best["tflops"] == pytest.approx(8192 / 1000 / 1e3)
    assert best["gbytes_per_s"] == pytest.approx(32.768)
    failed = [row for row in rows if row["error"]]
    assert {row["tile"] for row in failed} == {8} and all(r["rank"] is None for r in failed)
    write_table(rows, tmp_path / "r.parquet", {"gpu": "formula"})
    kept = pq.read_table(tmp_path / "r.parquet")
    assert kept.num_rows == len(rows) and kept.schema.metadata[b"spanlite.gpu"] == b"formula"
    assert kept["times_ns"][0].as_py() == pytest.approx(best["times_ns"])


class StopsAfter(FormulaGpu):
    """A Ctrl-C in the middle."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def measure(self, built: Any, repeats: int) -> Measured:
        if len(self.measured) == self.count:
            raise KeyboardInterrupt
        return super().measure(built, repeats)


def test_a_stopped_scan_goes_on(spec: Spec, tmp_path: Path) -> None:
    first, second = StopsAfter(11), FormulaGpu()
    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path, first)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"config": {"tile": 64, "thr')  # a kill in the middle of a line
    journal = run(spec, tmp_path, second)
    assert len(journal.rows) == len(configurations(spec))
    measured = [json.dumps(c) for c in first.measured + second.measured]
    assert len(measured) == len(set(measured)) and len(first.measured) == 11
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(journal.rows)


CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
import conftest
from test_scan import run
from spanlite_analytics.lab.scan.spec import load
class Slow(conftest.FormulaGpu):
    def measure(self, built, repeats):
        time.sleep(0.02)
        return super().measure(built, repeats)
run(load(Path(sys.argv[1])), Path(sys.argv[2]), Slow())
"""


def test_a_killed_scan_measures_nothing_twice(write: Write, tmp_path: Path) -> None:
    path, out = write(), tmp_path / "out"
    journal = out / "journal.jsonl"
    code = CHILD.replace("from test_scan import run", RUN).format(here=str(HERE))
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(out)]) as child:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 6:
            assert child.poll() is None
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    before = journal.read_bytes()
    known = before.count(b"\n") - 1
    spec, gpu = load(path), FormulaGpu()
    run(spec, out, gpu)
    assert journal.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    failing = sum(config["tile"] == 8 for config in configurations(spec))
    assert 5 <= known < len(configurations(spec))
    assert len(gpu.measured) == len(configurations(spec)) - max(known, failing)


RUN = """
from spanlite_analytics.lab.scan.scan import scan
from spanlite_analytics.lab.scan.store import Journal
def run(spec, folder, gpu):
    scan(spec, Journal(folder, spec.fingerprint, gpu.gpu), gpu, lambda *_: None, 1, conftest.built)
"""


def test_a_kernel_that_never_ends(write: Write, tmp_path: Path) -> None:
    """Its process ends itself, and the next run goes on after it."""
    path, out = write(more="deadline: 1"), tmp_path / "out"
    code = CHILD.replace("from test_scan import run", RUN).format(here=str(HERE))
    code = code.replace("time.sleep(0.02)", "built.config['tile'] == 32 and time.sleep(600)")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "did not end within 1 s" in done.stderr
    spec, gpu = load(path), FormulaGpu()
    journal = run(spec, out, gpu)
    hung = [row for row in journal.rows.values() if "did not end" in row.error]
    assert len(hung) == 1 and hung[0].config["tile"] == 32
    assert hung[0].config not in gpu.measured and len(journal.rows) == len(configurations(spec))


def test_another_scan_is_not_mixed_in(spec: Spec, write: Write, tmp_path: Path) -> None:
    run(spec, tmp_path / "out", None)
    with pytest.raises(InputError, match="another GPU"):
        run(spec, tmp_path / "out", FormulaGpu())
    other = load(write(("n: 4096", "n: 8192")))
    with pytest.raises(InputError, match="another kernel, sizes or flags"):
        run(other, tmp_path / "out", None)
    held = Journal(tmp_path / "out", spec.fingerprint, "none")
    with pytest.raises(UsageError, match="another scan is running"):
        Journal(tmp_path / "out", spec.fingerprint, "none")
    held.close()
    (tmp_path / "out" / "journal.jsonl").write_text("hello\n")
    with pytest.raises(InputError, match="no journal of a scan"):
        run(spec, tmp_path / "out", None)


def test_a_kernel_that_breaks_the_gpu_is_left_out_next_time(spec: Spec, tmp_path: Path) -> None:
    class Breaks(FormulaGpu):
        def measure(self, built: Any, repeats: int) -> Measured:
            if built.config["tile"] == 64:
                raise DeviceLostError("illegal address")
            return super().measure(built, repeats)

    with pytest.raises(ServiceError, match="broke the GPU's context"):
        run(spec, tmp_path, Breaks())
    gpu = FormulaGpu()
    journal = run(spec, tmp_path, gpu)
    assert len(journal.rows) == len(configurations(spec))
    broken = [row for row in journal.rows.values() if "broke" in row.error]
    assert len(broken) == 1 and broken[0].config not in gpu.measured


def test_ranks_are_shared_within_noise() -> None:
    quiet = [Timed(100, 1), Timed(101, 1), Timed(102.5, 1), Timed(103.5, 1), Timed(200, 1)]
    assert ranks(quiet) == [1, 1, 1, 4, 5]
    assert ranks(list(reversed(quiet))) == [5, 4, 1, 1, 1]
    assert ranks([]) == []
    one = timed([100, 101, 99, 100, 500])
    assert one.median_ns == 100 and 0.2 <= one.error_ns < 2, "an outlier moves neither"
    assert timed([100, 100, 100]).error_ns == pytest.approx(0.2), "no noise seen is not none"


def test_repetitions_are_long_enough() -> None:
    asked: list[int] = []

    def clock(launches: int) -> float:
        asked.append(launches)
        return 10_000.0 * launches

    times, launches = repeated(clock, 3)
    assert times == (10_000.0,) * 3 and launches == 200
    assert asked[-3:] == [200] * 3
    assert repeated(lambda n: 1e9 * n, 2)[1] == 1 and repeated(lambda n: 1.0 * n, 2)[1] == 1000


def test_heatmaps(spec: Spec, tmp_path: Path) -> None:
    rows = table(spec, run(spec, tmp_path / "out", FormulaGpu()))
    made = {grid.measure.column: grid for grid in grids(spec, rows)}
    assert set(made) == {"median_ns", "tflops", "gbytes_per_s", "occupancy"}
    times = made["median_ns"]
    assert (times.x_name, times.y_name) == ("tile", "threads")
    cell = (times.y.index(128), times.x.index(64))
    assert times.values[cell] == pytest.approx(1.0), "the best of both orders, in us"
    assert times.rows[cell]["order"] == "column"
    write_html(list(made.values()), rows[:3], tmp_path / "h.html", "a <scan>", "about")
    page = (tmp_path / "h.html").read_text()
    assert "a &lt;scan&gt;" in page and page.count("<table") == 5 and "order column" in page
    pytest.importorskip("matplotlib")
    write_png(times, tmp_path / "h.png", "scan")
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")


needs_nvcc = pytest.mark.skipif(
    not has_tools("nvcc", "ptxas", "cuobjdump"), reason="needs nvcc: spanlite-analytics[lab]"
)


@needs_nvcc
def test_the_theory_of_an_operator(tmp_path: Path, spanlite: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("operator: softmax\nparameters: {threads: [128, 512], vector: [4, 3]}\n")
    out = tmp_path / "out"
    code, text, _ = spanlite("lab", "scan", path, "--theory", "--out", out, "--json")
    assert code == 0
    answer = json.loads(text)
    assert answer["configurations"] == 2 and answer["failed"] == 0 and answer["new"] == 2
    assert {row["threads"] for row in answer["top"]} == {128, 512}
    assert all(row["registers"] and row["median_ns"] is None for row in answer["top"])
    assert (out / "results.parquet").exists() and (out / "heatmap.html").exists()
    code, text, _ = spanlite("lab", "scan", path, "--theory", "--out", out)
    assert code == 0 and "2 were known from an earlier run, 0 are new" in text


@needs_nvcc
def test_a_kernel_that_does_not_compile(write: Write, tmp_path: Path, spanlite: Any) -> None:
    path = write(("[row, column]", "[row]"), ("<= 65536", "<= 256"))
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(float* x) { x[0] = nonsense; }\n')
    code, out, _ = spanlite("lab", "scan", path, "--theory", "--out", tmp_path / "out")
    assert code == 1 and "1 failed, as tile 8, threads 32, order row: nvcc refuses" in out


def test_wrong_words(write: Write, tmp_path: Path, spanlite: Any) -> None:
    code, _, err = spanlite("lab", "scan", tmp_path / "none.yaml")
    assert code == 2 and "cannot be read" in err
    code, _, err = spanlite("lab", "scan", write(), "--top", "0")
    assert code == 2 and "--top" in err


def test_an_out_that_holds_no_scan_is_an_error_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --out"):
        Journal(tmp_path / "file", "f", "g")
    for text in (b"\xff\xfe\n", b"[1]\n", b"my notes", b"[1]\nnotes"):
        (tmp_path / "journal.jsonl").write_bytes(text)
        with pytest.raises(InputError, match="is no journal of a scan"):
            Journal(tmp_path, "f", "g")
        assert (tmp_path / "journal.jsonl").read_bytes() == text
