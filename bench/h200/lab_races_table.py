"""Ask compute-sanitizer about the races and barriers of the audit's corpus, and keep its verdicts.

python3 -m bench.h200.lab_races_table [--only WORD] [--budget SECONDS] [--add] [--compile-only]

Each kernel of tests/corpus/audit that the audit calls racy, divergent at a barrier or clean, and
that uses shared memory or barriers, is launched under racecheck and synccheck, and those divergent
at a barrier without a tool, too: some never end. Kernels of a file share a process; after one that
ends with an error or meets its deadline the rest get a new one. No kernel outlives its deadline:
its process ends itself. Needs nvcc and compute-sanitizer. Writes bench/h200/tables/lab_races.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import _gpu
from bench.h200._device import TABLES, surroundings
from bench.h200._race_harness import Launched, kernels_of, source

CORPUS = Path(__file__).parents[2] / "tests" / "corpus" / "audit"
VERDICTS = ("shared-race", "divergent-barrier", "clean")
#: Without a tool a kernel that never ends is seen to do so by itself.
ALONE = "alone"
TOOLS = ("racecheck", "synccheck", ALONE)
#: Its own deadline; `hangs` in a table that was made before there was one.
NEVER_ENDED = ("deadline", "hangs")
_REPORT = re.compile(r"^=+ (?:(Error|Warning): |(?=Barrier error))(.*)$", re.MULTILINE)


@dataclass
class Verdict:
    """What one tool said of one kernel."""

    errors: int = 0
    warnings: int = 0
    first: str = ""
    ended: str = "cut off"


@dataclass
class Asked:
    """A program, one tool, and the kernels left to ask about."""

    program: Path
    tool: str
    names: list[str]
    found: dict[str, Verdict] = field(default_factory=dict)


def chosen(only: str) -> dict[Path, list[Launched]]:
    """The corpus's kernels to launch, by file."""
    picked = {}
    for path in sorted(CORPUS.glob("*/*.cu")):
        kernels = [
            k
            for k in kernels_of(path)
            if k.verdict in VERDICTS and k.is_launchable and only in k.name
            and (k.verdict != "clean" or k.shares_memory or "barrier" in k.name)
        ]  # fmt: skip
        if kernels:
            picked[path] = kernels
    return picked


def is_for(tool: str, kernel: Launched, beside: list[Launched]) -> bool:
    """Synccheck: files about barriers. Racecheck: all that end, which faulty barriers need not.

    Those barriers alone run without a tool, too.
    """
    if tool == ALONE:
        return kernel.verdict == "divergent-barrier"
    if tool == "synccheck":
        return any(k.verdict == "divergent-barrier" for k in beside)
    return kernel.verdict != "divergent-barrier"


def compile_program(path: Path, kernels: list[Launched], folder: Path, nvcc: str) -> Path:
    """The harness of a file."""
    stem = f"{path.parent.name}_{path.stem}"
    made, program = folder / f"{stem}.cu", folder / stem
    made.write_text(source(path, kernels))
    command = [nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-lineinfo", "-w"]
    done = subprocess.run(
        [*command, "-o", str(program), str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"nvcc failed on {path}:\n{done.stderr[-3000:]}")
    return program


def own_copy(program: Path, tool: str) -> Path:
    """A copy for one tool, so that killing what runs it kills no other tool's process."""
    folder = program.parent / tool
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(program, folder))


def ask(asked: Asked, sanitizer: str, end: float) -> Asked:
    """Run until each kernel has been asked about, or the time is up."""
    left = list(asked.names)
    while left and time.monotonic() < end:
        command = [sanitizer, "--tool", asked.tool, "--print-limit", "1000"]
        if asked.tool == ALONE:
            command = []
        if asked.tool == "racecheck":
            command += ["--racecheck-report", "analysis"]
        text = _output([*command, str(asked.program), *left], asked.program, end)
        ran = split(text, asked.found)
        if not ran:
            print(
                f"{asked.program.name} {asked.tool}: nothing ran:\n{text[-800:]}", file=sys.stderr
            )
            break
        left = left[len(ran) :]
    said = {name: (v.errors, v.warnings, v.ended) for name, v in asked.found.items()}
    print(f"{asked.program.name} {asked.tool}: {said}", flush=True)
    return asked


def _output(command: Sequence[str], program: Path, end: float) -> str:
    """What a run says until it ends, or until the time is up; nothing of it runs after that."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=max(end - time.monotonic(), 0.1))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _kill_all_of(program)
            return process.communicate()[0]
        finally:
            # The sanitizer starts the program in a session of its own, which outlives its killer.
            _kill_all_of(program)


def _kill_all_of(program: Path) -> None:
    """Kill each process that runs this very file, and wait until it is gone."""
    while found := [p for p in Path("/proc").glob("[0-9]*") if _runs(p, program)]:
        for place in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(place.name), signal.SIGKILL)
        time.sleep(0.05)


def _runs(place: Path, program: Path) -> bool:
    try:
        return (place / "exe").readlink() == program
    except OSError:
        return False


def split(text: str, found: dict[str, Verdict]) -> list[str]:
    """Give each kernel what was said between its BEGIN and the next; returns those that began."""
    began = []
    for part in re.split(r"^BEGIN ", text, flags=re.MULTILINE)[1:]:
        name, _, said = part.partition("\n")
        began.append(name.strip())
        verdict = found.setdefault(began[-1], Verdict())
        ended = re.search(r"^END \S+ (\S+)$", said, re.MULTILINE)
        verdict.ended = ended.group(1) if ended else "cut off"
        for severity, words in _REPORT.findall(said):
            verdict.errors += severity != "Warning"
            verdict.warnings += severity == "Warning"
            verdict.first = verdict.first or words.strip()
    return began


def table_of(picked: dict[Path, list[Launched]], asked: Sequence[Asked]) -> list[dict[str, object]]:
    """A row a kernel."""
    by_tool = {(a.program.name, a.tool): a.found for a in asked}
    rows = []
    for path, kernels in picked.items():
        for kernel in kernels:
            program = f"{path.parent.name}_{path.stem}"
            row: dict[str, object] = {
                "kernel": kernel.name,
                "file": f"{path.parent.name}/{path.name}",
                "ours": kernel.verdict,
            }
            for tool in TOOLS:
                verdict = by_tool.get((program, tool), {}).get(kernel.name)
                row[tool] = vars(verdict) if verdict else None
            rows.append(row)
    return rows


def told(verdict: Mapping[str, Any] | None) -> int:
    """How much a run found out: that something is wrong, that the kernel ends, that it does not
    within its deadline, nothing."""
    if verdict is None or (verdict["ended"] == "cut off" and not verdict["errors"]):
        return 0
    if verdict["errors"] or verdict["warnings"]:
        return 3
    return 1 if verdict["ended"] in NEVER_ENDED else 2


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Of two runs, for each kernel and tool the verdict that tells more, else the newer."""
    before = {row["kernel"]: row for row in old["kernels"]}
    rows = []
    for row in new["kernels"]:
        other = before.get(row["kernel"], {})
        best = {tool: max(row.get(tool), other.get(tool), key=told) for tool in TOOLS}
        rows.append(row | best)
    runs = [*old["about"].get("runs", [old["about"]]), new["about"]]
    return {"about": new["about"] | {"runs": runs}, "kernels": rows}


def left_on_gpu(folder: Path) -> list[str]:
    """Our programs that the driver still knows as processes of the GPU; others' are left out."""
    found = _gpu.programs()
    print(f"on the GPU afterwards: {found}", flush=True)
    return [name for name in found if str(folder) in name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="kernels with this in their names")
    parser.add_argument("--budget", type=float, default=60, help="seconds under the sanitizer")
    parser.add_argument("--add", action="store_true", help="to the runs that the table has")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    args = parser.parse_args()
    picked = chosen(args.only)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        began = time.monotonic()
        jobs = [pool.submit(compile_program, *item, folder, args.nvcc) for item in picked.items()]
        programs = [job.result() for job in jobs]
        total = sum(map(len, picked.values()))
        print(f"{total} kernels compiled in {time.monotonic() - began:.1f} s", flush=True)
        if args.compile_only:
            return
        end = time.monotonic() + args.budget
        asked = [
            Asked(own_copy(program, tool), tool, names)
            for program, kernels in zip(programs, picked.values(), strict=True)
            for tool in TOOLS
            if (names := [k.name for k in kernels if is_for(tool, k, kernels)])
        ]
        asked = list(pool.map(lambda one: ask(one, args.sanitizer, end), asked))
        left = left_on_gpu(folder)
    rows = table_of(picked, asked)
    for row in rows:
        print(json.dumps(row))
    about = surroundings() | {"seconds": round(time.monotonic() - began, 1), "left_on_gpu": left}
    path = TABLES / "lab_races.json"
    table: dict[str, Any] = {"about": about, "kernels": rows}
    if args.add:
        table = merged(json.loads(path.read_text()), table)
    path.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(rows)} kernels, {about['seconds']} s, left on the GPU: {left}; {path}")


if __name__ == "__main__":
    main()
