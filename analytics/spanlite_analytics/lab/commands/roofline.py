"""`spanlite lab roofline`: how far is each kernel from what the GPU can do?"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.lab.counters import Counted, read_ncu
from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table
from spanlite_analytics.lab.roofline import ceilings
from spanlite_analytics.lab.roofline.counted import time_ns, uncounted_flops, work_counted
from spanlite_analytics.lab.roofline.place import Place, Point, place
from spanlite_analytics.lab.roofline.work import ALIASES, SIZES, Call, work_of
from spanlite_analytics.words import time_words

DEFAULT_GPU = "H200"

#: A nanosecond, and more than eleven days.
_LEAST_US, _MOST_US = 1e-3, 1e12
#: A thousand times more bytes than any GPU's memory holds.
_MOST_ELEMENTS = 1 << 48

_HELP = """Bytes and FLOPs come from the sizes that a trace recorded of its operators
(torch.profiler with record_shapes=True), or from counters: FILE is Nsight Compute's raw CSV
(--csv --page raw), also gzipped. With both, counters also place the archive's kernels that have
no sizes. Nothing is told from a kernel's name: what has neither is counted and left out.

An operator stands for its kernels together. Bounds: `memory` or `compute` by the nearer
roof; `latency` where it reaches less than 40% of that.

examples:
  spanlite lab roofline --last 1h --plot roof.html
  spanlite lab roofline --trace 6775f340 --gpu H200 --measured
  spanlite lab roofline counters.csv.gz
  spanlite lab roofline --operator mm --sizes 64x8192,8192x28672 --type bf16 --us 120
  spanlite lab roofline --ceilings
"""


class RooflineCommand:
    """Places kernels under a GPU's roofs."""

    summary = "How far kernels are from the memory's and the arithmetic's roof"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="counters of ncu")
        parser.add_argument("--trace", default="", metavar="ID", help="id of a trace, or its start")
        parser.add_argument("--kernel", default="", metavar="TEXT", help="part of a kernel's name")
        parser.add_argument("--operator", metavar="NAME", help="one operator, without an archive")
        parser.add_argument("--sizes", default="", metavar="AxB,BxC", help="of its inputs")
        parser.add_argument("--type", default="bf16", help="of its inputs (default: %(default)s)")
        parser.add_argument("--us", type=float, metavar="T", help="its time in microseconds")
        parser.add_argument("--gpu", default="", metavar="NAME", help="such as H100")
        parser.add_argument(
            "--measured", action="store_true", help="ceilings as measured (H200), not the sheet's"
        )
        parser.add_argument("--tf32", action="store_true", help="FP32 products ran as TF32")
        parser.add_argument(
            "--limit", type=int, default=20, help="rows to print (default: %(default)s)"
        )
        parser.add_argument(
            "--plot", type=Path, metavar="FILE", help=".png, .svg or .html; needs the extra `lab`"
        )
        parser.add_argument("--ceilings", action="store_true", help="print the ceilings known")
        add_json_argument(parser)
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where no kernel could be placed."""
        if args.limit < 1:
            raise UsageError("--limit must be 1 or more")
        if args.ceilings:
            _print_ceilings(args.json)
            return 0
        points, gpu_name, left = _points(args)
        gpu = ceilings.named(args.gpu or gpu_name or DEFAULT_GPU, args.measured)
        places = [place(point, gpu) for point in points]
        if args.plot:
            from spanlite_analytics.lab.roofline.plot import write_plot

            write_plot(args.plot, places, gpu)
        if args.json:
            print_json(as_json(places, gpu, left))
        else:
            assumed = not (args.gpu or gpu_name)
            _print(places[: args.limit], gpu, left, len(places), assumed)
        return 0 if places else 1


def _points(args: argparse.Namespace) -> tuple[list[Point], str, dict[str, Any]]:
    """Points, the GPU's name where it is known, and what could not be placed."""
    if args.operator:
        return [_one(args)], "", {}
    rows = read_ncu(args.file) if args.file else []
    if args.file and not (args.archive or args.trace):
        wanted = [row for row in rows if args.kernel.lower() in row.kernel.lower()]
        return [_counted(row) for row in wanted], _gpu_of(wanted), {}
    from spanlite_analytics.lab.roofline.spans import seen

    archive = Archive.open(archive_of(args))
    found = seen(archive, window_of(args), args.kernel, args.trace, args.tf32)
    points, names = list(found.points), {row.kernel: row for row in rows}
    left_ns, left, rest = found.unplaced_ns, found.unplaced, []
    for name, median_ns, runs in found.names:
        row = names.get(name)
        if row is None:
            rest.append({"kernel": name, "runs": runs, "total_ns": median_ns * runs})
            continue
        points.append(replace(_counted(row, median_ns), name=name, kernel=name, runs=runs))
        left_ns -= median_ns * runs
    points.sort(key=lambda point: -point.time_ns * point.runs)
    share = max(left_ns, 0.0) / found.kernel_ns if found.kernel_ns else 0.0
    known = {"kernels_seen": found.kernels, "without_sizes": left, "without_sizes_share": share}
    return points, found.gpu, known | {"largest_without_sizes": rest[:5]}


def _counted(row: Counted, median_ns: float | None = None) -> Point:
    """With the profiler's time where no other is known."""
    time = time_ns(row) if median_ns is None else median_ns
    words = uncounted_flops(row)
    return Point(row.kernel, row.kernel, work_counted(row), time, 1, "counters", words)


def _gpu_of(rows: list[Counted]) -> str:
    """By compute capability, where one of the known GPUs alone has it."""
    return "A100" if any(row.capability == "8.0" for row in rows) else ""


def _one(args: argparse.Namespace) -> Point:
    kind = ALIASES.get(args.type, args.type)
    if kind not in SIZES:
        raise UsageError(f"--type {args.type}: must be one of {', '.join(ALIASES)}")
    sizes = _sizes(args.sizes)
    if args.us is None or not args.us > 0:
        raise UsageError("--operator needs its time, --us")
    if not _LEAST_US <= args.us <= _MOST_US:
        raise UsageError(f"--us {args.us:g}: must be {_LEAST_US:g} to {_MOST_US:g}")
    # A causal flag stands where the operator has it; without one attention sees everything.
    flags = ["False"] * 10
    tf32 = args.tf32 or args.type == "tf32"
    call = Call(args.operator, sizes, [kind] * len(sizes), concrete=flags, tf32=tf32)
    work = work_of(call)
    if work is None:
        raise UsageError(f"no rule gives the work of {args.operator} with --sizes {args.sizes}")
    shown = " x ".join(args.sizes.split(","))
    return Point(args.operator, "", work, args.us * 1e3, 1, "shapes", f"{shown} {args.type}")


def _sizes(text: str) -> list[list[int]]:
    """Of `64x8192,8192x28672`. Raises UsageError."""
    parts = [part.split("x") for part in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for part in parts for word in part):
        raise UsageError(f"--sizes '{text}': must be such as 64x8192,8192x28672")
    sizes = [[int(word[:19]) for word in part] for part in parts]
    for size in sizes:
        if not 1 <= math.prod(size) <= _MOST_ELEMENTS:
            words = "x".join(map(str, size))
            raise UsageError(f"--sizes {words}: a tensor has 1 to {_MOST_ELEMENTS:,} elements")
    return sizes


def as_json(places: list[Place], gpu: ceilings.Ceilings, left: dict[str, Any]) -> dict[str, Any]:
    """All places in plain types."""
    return {
        "gpu": gpu.name,
        "ceilings": {
            "bytes_per_s": gpu.bytes_per_s,
            "flops_per_s": gpu.flops_per_s,
            "source": gpu.source,
            "measured": gpu.measured,
        },
        **left,
        "kernels": [
            {
                "operator": one.point.name,
                "detail": one.point.detail,
                "kernel": one.point.kernel,
                "from": one.point.how,
                "runs": one.point.runs,
                "time_ns": one.point.time_ns,
                "flops": one.point.work.flops,
                "read_bytes": one.point.work.read_bytes,
                "write_bytes": one.point.work.write_bytes,
                "flop_per_byte": one.point.work.intensity,
                "flops_per_s": one.flops_per_s,
                "bytes_per_s": one.bytes_per_s,
                "bound": one.verdict,
                "limit": one.limit,
                "roof_ns": one.roof_ns,
                "roof_share": one.share,
                "note": one.note,
            }
            for one in places
        ],
    }


def _print(
    places: list[Place], gpu: ceilings.Ceilings, left: dict[str, Any], total: int, assumed: bool
) -> None:
    rows = [
        (
            round(one.point.runs),
            time_words(one.point.time_ns),
            one.point.work.bytes / 1e6,
            one.point.work.total_flops / 1e9,
            one.point.work.intensity,
            one.bytes_per_s / 1e12,
            one.flops_per_s / 1e12,
            f"{one.share:.0%}",
            one.verdict,
            one.limit,
            one.point.how,
            f"{one.point.name} {one.point.detail}".strip(),
        )
        for one in places
    ]
    heads = (
        "runs", "time", "MB", "GFLOP", "FLOP/byte", "TB/s", "TFLOP/s", "of roof", "bound",
        "nearest roof", "from", "kernel",
    )  # fmt: skip
    print_table(heads, rows)
    for note in sorted({f"{p.point.name}: {p.note}" for p in places if p.note}):
        print(note)
    if total > len(places):
        print(f"{total - len(places)} more; --limit shows them")
    if left.get("without_sizes"):
        print(
            f"{left['without_sizes']:,} of {left['kernels_seen']:,} kernels, "
            f"{left['without_sizes_share']:.0%} of the time, have neither sizes nor counters: "
            "record shapes (torch.profiler with record_shapes=True), or give a FILE of "
            "`spanlite counters` or ncu"
        )
    kind = "measured: " if gpu.measured else ""
    print(f"ceilings of the {gpu.name} ({kind}{gpu.source})")
    if assumed:
        print(f"taken as an {gpu.name}; --gpu says otherwise")


def _print_ceilings(as_json_: bool) -> None:
    listed = [*ceilings.GPUS, ceilings.measured_h200()]
    if as_json_:
        print_json(listed)
        return
    rows: list[tuple[Any, ...]] = [
        (
            gpu.name + (" measured" if gpu.measured else ""),
            gpu.bytes_per_s / 1e12,
            *(gpu.flops_per_s.get(kind, 0) / 1e12 or None for kind in ceilings.TYPES),
        )
        for gpu in listed
    ]
    heads = ("GPU", "TB/s", *(kind.replace("_", " ") for kind in ceilings.TYPES))
    print_table(heads, rows, "Dense TFLOP/s (INT8: TOP/s)")
    for gpu in listed:
        print(f"{gpu.name}: {gpu.source}")


command = RooflineCommand()
