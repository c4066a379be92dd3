"""An import's memory does not grow with the file, up to a few bytes an event."""

import json
import subprocess
import sys

import pytest

_MEASURE = """
import sys, tracemalloc
from pathlib import Path
import pyarrow as pa
from spanlite_collectors.importers import _spill, import_file
from spanlite_collectors.sinks import DiscardSink
_spill.GROUP_ROWS = 1 << 13  # so that the buffers are full with the smaller file already
if sys.argv[2] == "asked":
    # What was asked for, by Python, numpy and Arrow. What the system gives differs by megabytes
    # from machine to machine: allocators keep free memory by arena, thread and page size.
    tracemalloc.start()
report = import_file(sys.argv[1], DiscardSink())
if sys.argv[2] == "asked":
    peak = tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory()
else:
    # Not ru_maxrss: a child starts with the peak of the process that started it.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
print(report.spans, peak)
"""


def _write(path, steps):
    """Steps of 8 operators, launches and kernels, as torch.profiler writes them."""
    parts = []
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for i in range(steps * 8):
            ts, ids = 10 * i, {"External id": i + 1, "correlation": i + 1, "Ev Idx": i}
            if i % 8 == 0:
                parts.append(_event("user_annotation", f"ProfilerStep#{i}", 1, ts, 80, {}))
            shapes = {"Input Dims": [[i % 8, 64]], **ids}
            parts.append(_event("cpu_op", f"aten::op{i % 8}", 1, ts, 9, shapes))
            parts.append(_event("cuda_runtime", "cudaLaunchKernel", 1, ts + 1, 2, ids))
            device = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [1, 1, 1], **ids}
            parts.append(_event("kernel", f"kernel_{i % 8}", 0, ts + 5, 3, device))
            if len(parts) > 5000:
                file.write(",\n".join(parts) + ",\n")
                parts = []
        file.write(",\n".join([*parts, _event("cpu_op", "last", 1, 10 * i + 50, 1, {})]))
        file.write('], "baseTimeNanoseconds": 1700000000000000000}')


def _event(category, name, pid, ts, dur, args):
    return json.dumps({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid,
                       "ts": ts, "dur": dur, "args": args})  # fmt: skip


def _peak(path, what):
    out = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path), what],
        capture_output=True,
        text=True,
        check=True,
    )
    spans, peak = out.stdout.split()
    return int(spans), int(peak)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Steps, and a file of so many."""
    folder = tmp_path_factory.mktemp("import_memory")
    files = {steps: folder / f"{steps}.json" for steps in (2_000, 8_000)}
    for steps, path in files.items():
        _write(path, steps)
    yield files
    for path in files.values():
        path.unlink()


@pytest.mark.timeout(600)
def test_memory_grows_by_less_than_60_bytes_an_event(files):
    sizes, peaks = [], []
    for steps, path in files.items():
        spans, peak = _peak(path, "asked")
        assert spans == steps * 25 + 1
        sizes.append(spans)
        peaks.append(peak)
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 60


@pytest.mark.timeout(600)
def test_the_process_stays_far_below_what_a_file_read_whole_takes(files):
    """In libraries of C too, which the other test does not see."""
    assert _peak(files[8_000], "resident")[1] < 400 << 20
