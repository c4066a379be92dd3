"""An import's memory does not grow with the file, up to a few bytes an event."""

import json
import subprocess
import sys

import pytest

_MEASURE = """
import sys
from pathlib import Path
from spanlite_collectors.importers import _spill, import_file
from spanlite_collectors.sinks import DiscardSink
_spill.GROUP_ROWS = 1 << 13  # so that the buffers are full with the smaller file already
report = import_file(sys.argv[1], DiscardSink())
# Not ru_maxrss: a child starts with the peak of the process that started it.
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(report.spans, int(status["VmHWM"].split()[0]) * 1024)
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


def _peak(path):
    out = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    spans, peak = out.stdout.split()
    return int(spans), int(peak)


@pytest.mark.timeout(600)
def test_memory_grows_by_less_than_60_bytes_an_event(tmp_path):
    sizes, peaks = [], []
    for steps in (2_000, 8_000):
        path = tmp_path / f"{steps}.json"
        _write(path, steps)
        spans, peak = _peak(path)
        assert spans == steps * 25 + 1
        sizes.append(spans)
        peaks.append(peak)
        path.unlink()
    grown = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    assert peaks[1] < 400 << 20
    assert grown < 60
