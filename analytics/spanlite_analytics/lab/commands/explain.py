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

from spanlite_analytics.lab.audit.findings import Finding as CodeFinding
from spanlite_analytics.lab.counters import Counted, of_kernel, read_ncu
from spanlite_analytics.lab.explain import (
    Case,
    Finding,
    Resources,
    explain,
    read_resources,
    sampled,
)
from spanlite_analytics.lab.frame import add_json_argument, print_json
from spanlite_analytics.lab.launches import gpu_of, launches
from spanlite_analytics.words import time_words

NOT_FOUND = 1
ALL, NONE = "all", "none"

_HELP = """TRACE is a trace's id or the start of one, `all` for every trace in the window, or
`none` to go by the profiler's file alone. Of several launch configurations the one with the
most time is explained.

Counters come from the archive, where the hosts of the agents sample them (--pm-sampling),
and from Nsight Compute: `ncu --set full --csv --page raw ... > FILE` (a launch takes seconds
under it: never on a serving process). Without any the page holds what the launch alone tells.
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
        parser.add_argument("--ncu", metavar="FILE", help="Nsight Compute's raw CSV, also gzipped")
        parser.add_argument("--cubin", metavar="FILE", help="binary that holds the kernel")
        parser.add_argument("--cc", metavar="M.N", help="compute capability")
        parser.add_argument("--gpu", default="", metavar="NAME", help="such as H100")
        parser.add_argument("--sms", type=int, metavar="N", help="SMs of the GPU")
        add_json_argument(parser)
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where there is no such kernel."""
        case = _case(args)
        if case is None:
            print(f"spanlite: no kernel with '{args.kernel}' in its name", file=sys.stderr)
            return NOT_FOUND
        found = explain(case)
        code = _in_code(args, case)
        if args.json:
            print_json(as_json(case, found) | {"code": [asdict(finding) for finding in code]})
        else:
            _print_page(case, found, code, args.kernel)
        return 0


def _case(args: argparse.Namespace) -> Case | None:
    rows = read_ncu(Path(args.ncu)) if args.ncu else []
    if args.trace == NONE and not args.ncu:
        raise UsageError("TRACE is `none`, so --ncu must say what is known of the kernel")
    resources = _resources(args)
    if args.trace == NONE:
        counted = of_kernel(rows, args.kernel)
        return _profiled(args, counted, resources) if counted else None
    trace = "" if args.trace == ALL else args.trace
    archive = Archive.open(archive_of(args))
    window = window_of(args)
    seen = launches(archive, window, args.kernel, 1, trace)
    if not seen:
        return None
    counted = of_kernel(rows, args.kernel, seen[0].launch)
    sm, sms, _ = gpu_of(args.gpu or seen[0].gpu, args.cc, args.sms)
    launch = seen[0].launch
    if counted is not None:
        launch = replace(launch, barriers=counted.launch().barriers)
    found = sampled(archive, window, seen[0], trace.strip().replace("-", "").lower())
    return Case(seen[0].name, sm, sms, launch, seen[0], counted, resources, found)


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
