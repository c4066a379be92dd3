"""Run docs/examples/scan on the GPU, kill one scan and resume it, and keep what was fastest.

python3 -m bench.h200.lab_scan_table [--smoke] [--only NAME,NAME] [--add]

Needs CuPy, torch, Triton, nvcc, and of our dependencies rich, PyYAML, pyarrow, matplotlib and
scikit-learn. First each built-in kernel is compared with a reference in double precision.
Writes bench/h200/tables/lab_scan.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from bench.h200._device import TABLES, surroundings
from bench.h200._side_door import ROOT

TABLE = TABLES / "lab_scan.json"
EXAMPLES = ROOT / "docs" / "examples" / "scan"
#: Scans in order; the second is killed once it has so many rows, the last has the first's journal's
#: space, and tells how near a budget comes to the whole grid.
SCANS = ("transpose", "matmul", "matmul_bayesian", "rmsnorm")
KILLED, KILLED_AFTER = "matmul", 20
CHECKED = {
    "matmul": {"m": 512, "n": 256, "k": 384},
    "layernorm": {"rows": 100, "width": 2048},
    "softmax": {"rows": 100, "width": 2048},
    "attention": {"heads": 3, "length": 256, "head": 64},
}


def run_scan(file: Path, out: Path, kill_after: int = 0) -> dict[str, Any]:
    """One scan; with `kill_after`, killed once its journal has so many rows."""
    command = [
        sys.executable,
        "-m",
        "bench.h200._side_door",
        str(file),
        "--out",
        str(out),
        "--json",
    ]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        if kill_after:
            while rows_of(out) < kill_after and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return {"seconds": round(time.monotonic() - began, 2), "rows": rows_of(out)}
        text, said = process.communicate()
    print(said[-1500:], file=sys.stderr)
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command[1:])} ended with {process.returncode}: {said[-800:]}"
        )
    result: dict[str, Any] = json.loads(text)
    return result | {"seconds": round(time.monotonic() - began, 2)}


def rows_of(out: Path) -> int:
    """Whole rows in a scan's journal."""
    path = out / "journal.jsonl"
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


def with_a_kill(file: Path, out: Path, after: int) -> dict[str, Any]:
    """Kill, look, go on; nothing that was measured may be measured again."""
    killed = run_scan(file, out, after)
    before = (out / "journal.jsonl").read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    found = run_scan(file, out)
    journal = (out / "journal.jsonl").read_bytes()
    keys = [json.dumps(json.loads(line)["config"]) for line in journal.splitlines()[1:]]
    return found | {
        "killed_after": killed["rows"],
        "kept_as_it_was": journal.startswith(before),
        "measured_twice": len(keys) - len(set(keys)),
    }


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Without the single times, and without columns that say nothing."""
    top = [
        {k: _short(v) for k, v in row.items() if k != "times_ns" and v is not None}
        for row in result["top"]
    ]
    return {key: value for key, value in result.items() if key not in ("out", "top")} | {"top": top}


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def check(name: str, sizes: dict[str, int]) -> float:
    """The relative error of a built-in operator's kernel against double precision."""
    import cupy
    import numpy as np
    from spanlite_analytics.lab.scan.build import build
    from spanlite_analytics.lab.scan.runner import CupyRunner
    from spanlite_analytics.lab.scan.spec import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.yaml"
        path.write_text(json.dumps({"operator": name, "sizes": sizes, "parameters": {}}))
        spec = load(path)
        built = build(spec, {key: values[0] for key, values in spec.parameters.items()})
        runner = CupyRunner()
        runner.measure(built, 1)
    out, *given = [
        runner._buffers[i][1] for i, f in enumerate(built.arguments) if f.argument.is_buffer
    ]
    wide = [x.astype(np.float64) for x in given]
    expected = reference(name, sizes, wide, cupy).ravel()
    return float(cupy.linalg.norm(out.astype(np.float64) - expected) / cupy.linalg.norm(expected))


def reference(name: str, sizes: dict[str, int], given: list[Any], cupy: Any) -> Any:
    """What an operator must give, in double precision."""
    if name == "matmul":
        return given[0].reshape(sizes["m"], -1) @ given[1].reshape(sizes["k"], -1)
    if name == "attention":
        q, k, v = (x.reshape(sizes["heads"], sizes["length"], sizes["head"]) for x in given)
        return softmax(q @ k.transpose(0, 2, 1) / sizes["head"] ** 0.5, cupy) @ v
    x = given[0].reshape(sizes["rows"], sizes["width"])
    if name == "softmax":
        return softmax(x, cupy)
    centred = x - x.mean(axis=1, keepdims=True)
    scale = cupy.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return centred / scale * given[1] + given[2]


def softmax(x: Any, cupy: Any) -> Any:
    """Over the last axis."""
    weight = cupy.exp(x - x.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True)


def smaller(name: str, folder: Path) -> Path:
    """A copy of an example with few configurations."""
    import yaml

    content = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    content["parameters"] = {
        key: values if key in ("tile", "block") else values[:1]
        for key, values in content["parameters"].items()
    }
    if "constraints" in content and name.startswith("matmul"):
        content["parameters"] |= {"block_m": [64], "block_n": [128], "stages": [2, 3, 4]}
        content["parameters"] |= {"block_k": [32, 64]}
    if name == "transpose":
        content["parameters"]["rows"] = [4, 8]
    if "search" in content and content["search"] != "grid":
        content["search"] |= {"budget": 5, "initial": 3}
    content["repeats"] = 3
    if "kernel" in content:
        for key in ("cuda", "triton"):
            if key in content["kernel"]:
                content["kernel"][key] = str(EXAMPLES / content["kernel"][key])
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few configurations of each")
    parser.add_argument("--only", help="some of the scans, with commas between")
    parser.add_argument("--add", action="store_true", help="to what the table has; no checks")
    args = parser.parse_args()
    table: dict[str, Any] = {"about": surroundings(), "checks": {}, "scans": {}}
    if args.add:
        table = json.loads(TABLE.read_text())
    for name, sizes in () if args.add else CHECKED.items():
        try:
            table["checks"][name] = check(name, sizes)
        except Exception:
            traceback.print_exc()
        print(name, "relative error", table["checks"].get(name), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for scan in SCANS if args.only is None else args.only.split(","):
            file = smaller(scan, folder) if args.smoke else EXAMPLES / f"{scan}.yaml"
            after = (2 if args.smoke else KILLED_AFTER) if scan == KILLED else 0
            out = folder / f"{scan}-out"
            try:
                found = with_a_kill(file, out, after) if after else run_scan(file, out)
            except Exception:
                traceback.print_exc()
                continue
            table["scans"][scan] = shortened(found) | {
                "command": f"spanlite lab scan docs/examples/scan/{scan}.yaml"
            }
            print(scan, json.dumps(table["scans"][scan]), flush=True)
            save(table)


def save(table: dict[str, Any]) -> None:
    """After each scan, so that a run cut off keeps what it has."""
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
