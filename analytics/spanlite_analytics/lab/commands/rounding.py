"""`spanlite lab rounding`: how does a kernel round, and what does that cost?"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from spanlite.errors import UsageError

from spanlite_analytics.lab.audit.inputs import units_of
from spanlite_analytics.lab.audit.ptx import parse
from spanlite_analytics.lab.audit.sass import parse_sass
from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table
from spanlite_analytics.lab.rounding.chain import Chain, report
from spanlite_analytics.lab.rounding.emulator import MODES, Mode, to_bits, to_doubles
from spanlite_analytics.lab.rounding.formats import FORMATS, format_named
from spanlite_analytics.lab.rounding.instructions import (
    Rounding,
    grouped,
    narrowing,
    of_module,
    of_sass,
)
from spanlite_analytics.lab.toolchain import DEFAULT_ARCH, Compiler, disassemble

#: Exact rational sums of more terms than this take minutes.
LONGEST = 65_536

_HELP = """With a file: type and rounding of each floating-point instruction in PTX and SASS, and
the lines where precision narrows. With --chain: the error of each step, in units in the last place
(ulp), of dot products in these formats. With --value: what a number becomes in each format.
No GPU is needed.

example:
  spanlite lab rounding kernel.cu
  spanlite lab rounding --chain fp16,fp32,bf16 --length 4096 --order warp
  spanlite lab rounding --value 0.1 --mode rz
"""


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number that a double can hold")
    return value


class RoundingCommand:
    """The audit, the chain, or one number."""

    summary = "How a kernel rounds, where precision narrows, and what it costs in ulp"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("path", nargs="*", type=Path, help="a .cu, .ptx, .cubin or .so file")
        parser.add_argument(
            "--arch", default=DEFAULT_ARCH, help="for .cu files (default: %(default)s)"
        )
        parser.add_argument(
            "--flag", action="append", default=[], metavar="FLAG", help="a flag for nvcc"
        )
        parser.add_argument(
            "--chain", metavar="IN,SUM,OUT", help=f"formats, of {', '.join(FORMATS)}"
        )
        parser.add_argument(
            "--length", type=int, default=1024, help="terms of each sum (default: %(default)s)"
        )
        parser.add_argument(
            "--order",
            default="sequential",
            help="sequential, pairwise, warp or split:K (default: %(default)s)",
        )
        parser.add_argument(
            "--samples", type=int, default=32, help="sums to average over (default: %(default)s)"
        )
        parser.add_argument(
            "--value", type=_number, action="append", help="show a number in each format"
        )
        parser.add_argument(
            "--mode", choices=[m for m in MODES if m != "rs"], default="rn", help="(%(default)s)"
        )
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0. Raises UsageError unless told exactly one thing to do."""
        chosen = [bool(args.path), bool(args.chain), bool(args.value)]
        if sum(chosen) != 1:
            raise UsageError("lab rounding: give a file, or --chain, or --value")
        if args.path:
            return _audit(args)
        return _chain(args) if args.chain else _values(args)


def _audit(args: argparse.Namespace) -> int:
    compiler = Compiler(args.arch, tuple(args.flag))
    ptx: list[Rounding] = []
    sass: list[Rounding] = []
    for path in args.path:
        for unit in units_of(path, compiler):
            if unit.ptx:
                ptx += of_module(parse(unit.ptx, unit.name))
            if unit.cubin:
                sass += of_sass(parse_sass(disassemble(unit.cubin)))
    # Machine code knows the lines also where the PTX has lost them.
    narrow = list(narrowing(ptx if any(r.line for r in ptx) else sass))
    if args.json:
        print_json(
            {
                "ptx": [asdict(g) for g in grouped(ptx)],
                "sass": [asdict(g) for g in grouped(sass)],
                "narrowing": [asdict(r) for r in narrow],
            }
        )
        return 0
    _print_groups("PTX", ptx)
    _print_groups("SASS", sass)
    rows = [
        (
            r.kernel,
            f"{Path(r.file).name}:{r.line}" if r.line else None,
            r.opcode,
            f"{r.source} -> {r.target}",
            r.mode,
        )
        for r in narrow
    ]
    print_table(
        ("kernel", "line", "instruction", "formats", "mode"), rows, "Where precision narrows"
    )
    return 0


def _print_groups(title: str, found: Sequence[Rounding]) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            g.kernel,
            g.count,
            g.opcode,
            g.source if g.source == g.target else f"{g.source} -> {g.target}",
            g.mode,
            " ".join(word for word, on in (("ftz", g.ftz), ("sat", g.saturates)) if on),
            g.note,
        )
        for g in grouped(found)
    ]
    print_table(("kernel", "count", "instruction", "format", "mode", "flags", "note"), rows, title)


def _chain(args: argparse.Namespace) -> int:
    names = args.chain.split(",")
    if len(names) != 3:
        raise UsageError(f"--chain {args.chain}: must name three formats, as fp16,fp32,bf16")
    if not 2 <= args.length <= LONGEST or not 1 <= args.samples <= 10_000:
        raise UsageError(f"--length must be 2 to {LONGEST}, --samples 1 to 10000")
    inputs, sums, result = map(format_named, names)
    chain = Chain(inputs, sums, result, args.order, cast(Mode, args.mode))
    steps = report(chain, args.length, args.samples)
    if args.json:
        print_json(steps)
        return 0
    rows = [
        (s.name, s.format, s.mean_ulp, s.max_ulp, s.mean_ulp_so_far, s.max_ulp_so_far)
        for s in steps
    ]
    print_table(
        ("step", "ulp of", "mean", "max", f"so far, ulp of {result.name}: mean", "max"),
        rows,
        f"{args.samples} dot products of {args.length} terms",
    )
    return 0


def _values(args: argparse.Namespace) -> int:
    rows = []
    for value in args.value:
        for name, format_ in FORMATS.items():
            bits = to_bits(np.array([value]), format_, cast(Mode, args.mode))
            rounded = float(to_doubles(bits, format_)[0])
            rows.append(
                (
                    value,
                    name,
                    f"{int(bits[0]):#0{format_.width // 4 + 2}x}",
                    repr(rounded),
                    rounded - value,
                )
            )
    columns = ("value", "format", "bits", "rounded", "error")
    if args.json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, f"Rounded {args.mode}")
    return 0


command = RoundingCommand()
