"""`spanlite lab explain`: one page on what limits a kernel."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.extent import window_words
from spanlite_analytics.lab.audit.findings import Finding as CodeFinding
from spanlite_analytics.lab.counters import Counted, heaviest_counted, of_kernel, read_ncu
from spanlite_analytics.lab.explain import (
    Case,
    Finding,
    Resources,
    explain,
    read_resources,
    sampled,
)
from spanlite_analytics.lab.frame import add_json_argument, print_json
from spanlite_analytics.lab.launches import gpu_of, heaviest
from spanlite_analytics.words import time_words

NOT_FOUND = 1
ALL, NONE = "all", "none"

_HELP = """TRACE is a trace's id or the start of one, `all` for every trace in the window, or
`none` to go by the profiler's file alone. Of several kernels that match the one with the most
time is explained, by the launch configuration in which it spends most; the page says so.

Counters come from the archive, where the hosts of the agents sample them (--pm-sampling),
and from --ncu: `ncu --set full --csv --page raw ... > FILE`, or `spanlite counters --output
FILE ...` (a launch takes long under both: never on a serving process). Without any the page
holds what the launch alone tells.
With --cubin, a binary that holds the kernel: its registers and stack, and what `lab audit` finds
in its code.

Exit code 1: there is no such kernel.

examples:
  spanlite lab explain all flash_fwd --last 1h
  spanlite lab explain 6775f340 gemm --ncu counters.csv --cubin kernels.cubin
"""


class ExplainCommand:
    """Joins launch, counters and binary, and says what to try first."""

    summary = "What limits a kernel of a trace, and what to try first"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("trace", metavar="TRACE", help="id, `all` or `none`")
        parser.add_argument("kernel", metavar="KERNEL", help="part of the kernel's name")
        parser.add_argument(
            "--ncu", metavar="FILE", help="raw CSV of ncu or `spanlite counters`, also gzipped"
        )
        parser.add_argument("--cubin", metavar="FILE", help="binary that holds the kernel")
        parser.add_argument("--cc", metavar="M.N", help="compute capability")
        parser.add_argument("--gpu", default="", metavar="NAME", help="such as H100")
        parser.add_argument("--sms", type=int, metavar="N", help="SMs of the GPU")
        add_json_argument(parser)
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where there is no such kernel."""
        case, picked = _case(args)
        if case is None:
            seen = args.trace != NONE
            where = window_words(Archive.open(archive_of(args)), window_of(args)) if seen else ""
            print(f"spanlite: no kernel with '{args.kernel}' in its name{where}", file=sys.stderr)
            return NOT_FOUND
        found = explain(case)
        code = _in_code(args, case)
        if args.json:
            more = {"picked": picked, "code": [asdict(finding) for finding in code]}
            print_json(as_json(case, found) | more)
        else:
            if picked["kernels"] > 1 or picked["configurations"] > 1:
                print(_picked_words(picked, args.kernel))
            _print_page(case, found, code, args.kernel)
        return 0


def _picked(kernels: int, share: float | None, configurations: int) -> dict[str, Any]:
    """Of how many kernels one was taken, with which share of their time, and of how many launch
    configurations of it."""
    return {"kernels": kernels, "share": share, "configurations": configurations}


def _picked_words(picked: dict[str, Any], pattern: str) -> str:
    share = "" if picked["share"] is None else f", the one with most time ({picked['share']:.0%})"
    words = f"1 of {picked['kernels']} kernels that match '{pattern}'{share}"
    if picked["configurations"] > 1:
        words += f"; of its {picked['configurations']} launch configurations the one with most time"
    return words


def _case(args: argparse.Namespace) -> tuple[Case | None, dict[str, Any]]:
    rows = read_ncu(Path(args.ncu)) if args.ncu else []
    if args.trace == NONE and not args.ncu:
        raise UsageError("TRACE is `none`, so --ncu must say what is known of the kernel")
    resources = _resources(args)
    if args.trace == NONE:
        counted, kernels = heaviest_counted(rows, args.kernel)
        picked = _picked(kernels, None, 1)
        return _profiled(args, counted, resources) if counted else None, picked
    trace = "" if args.trace == ALL else args.trace
    archive = Archive.open(archive_of(args))
    window = window_of(args)
    match = heaviest(archive, window, args.kernel, trace)
    if match is None:
        return None, {}
    seen = match.seen[0]
    counted = of_kernel(rows, seen.name, seen.launch) or of_kernel(rows, args.kernel, seen.launch)
    sm, sms, _ = gpu_of(args.gpu or seen.gpu, args.cc, args.sms)
    launch = seen.launch
    if counted is not None:
        launch = replace(launch, barriers=counted.launch().barriers)
    found = sampled(archive, window, seen, trace.strip().replace("-", "").lower())
    picked = _picked(match.kernels, match.total_ns / (match.all_ns or 1), len(match.seen))
    return Case(seen.name, sm, sms, launch, seen, counted, resources, found), picked


def _profiled(args: argparse.Namespace, counted: Counted, resources: Resources | None) -> Case:
    capability = args.cc or counted.capability or None
    sms = args.sms or int(counted.values.get("launch__sm_count", 0)) or None
    sm, found, _ = gpu_of(args.gpu, capability, sms)
    return Case(counted.kernel, sm, found, counted.launch(), None, counted, resources)


def _resources(args: argparse.Namespace) -> Resources | None:
    if not args.cubin:
        return None
    from spanlite_analytics.lab.toolchain import read_bytes

    found = read_resources(read_bytes(Path(args.cubin)), args.kernel)
    if not found:
        raise UsageError(f"{args.cubin} has no kernel with '{args.kernel}' in its name")
    return found[0]


def _in_code(args: argparse.Namespace, case: Case) -> list[CodeFinding]:
    """What `lab audit` says of the kernel in the binary, with the block of its launch."""
    if case.resources is None:
        return []
    from spanlite_analytics.lab.audit.run import audit_path
    from spanlite_analytics.lab.toolchain import Compiler

    name = case.resources.name
    blocks = {name: (case.block[0], case.block[1], case.block[2])} if len(case.block) == 3 else {}
    found = audit_path(Path(args.cubin), Compiler(), blocks).findings
    return [finding for finding in found if finding.kernel == name]


def as_json(case: Case, found: list[Finding]) -> dict[str, Any]:
    """The page in plain types."""
    return {
        "kernel": case.name,
        "compute_capability": case.sm.name,
        "sms": case.sms,
        "launch": asdict(case.launch),
        "occupancy": case.occupancy.row(),
        "grid": asdict(case.grid) if case.grid else None,
        "launches": case.seen.launches if case.seen else None,
        "total_ns": case.seen.total_ns if case.seen else None,
        "median_ns": case.duration_ns,
        "resources": asdict(case.resources) if case.resources else None,
        "has_counters": case.counted is not None,
        "sampled": asdict(case.sampled) if case.sampled else None,
        "findings": [asdict(finding) for finding in found],
    }


def _print_page(case: Case, found: list[Finding], code: list[CodeFinding], pattern: str) -> None:
    launch, row = case.launch, case.occupancy.row()
    print(case.name)
    if case.seen:
        print(
            f"{case.seen.launches:,.0f} launches, {time_words(case.seen.total_ns)} in all; median "
            f"{time_words(case.seen.median_ns)}, {time_words(case.seen.min_ns)} to "
            f"{time_words(case.seen.max_ns)}"
        )
    elif case.duration_ns is not None:
        print(f"{time_words(case.duration_ns)} under the profiler")
    print(
        f"grid {launch.grid_blocks:,} x block {launch.threads}, {launch.registers} registers, "
        f"{launch.shared_bytes:,} bytes of shared memory"
        + (f", clusters of {launch.cluster_blocks}" if launch.cluster_blocks > 1 else "")
    )
    print(
        f"{row['blocks']} blocks an SM, {row['fraction']:.1%} occupancy, limited by "
        f"{row['limiters']} (compute capability {case.sm.name}, {case.sms} SMs)"
    )
    if case.sampled:
        print(case.sampled.words)
    if case.resources:
        print(
            f"in the binary: {case.resources.registers} registers, "
            f"{case.resources.stack_bytes:,} bytes of stack a thread"
        )
    for number, finding in enumerate(found, 1):
        print(f"\n{number}. {finding.what}\n   {finding.evidence}\n   try: {finding.advice}")
    if code:
        print("\nIn its code (`lab audit`):")
    for place in code:
        line = f"{Path(place.file).name}:{place.line}: " if place.line else ""
        print(f"   {line}{place.rule}: {place.evidence}\n      try: {place.advice}")
    if case.counted is None:
        name = shlex.quote(f"regex:{pattern}")
        print(
            "\nNo counters of the profiler: where the program may run much slower, "
            "ask Nsight Compute with\n"
            f"  ncu --set full --csv --page raw -k {name} -c 3 YOUR COMMAND > counters.csv"
        )


command = ExplainCommand()
