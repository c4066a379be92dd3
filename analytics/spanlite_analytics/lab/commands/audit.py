"""`spanlite lab audit`: what is wrong with a kernel's code?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from spanlite.errors import UsageError

from spanlite_analytics.lab.audit.findings import RULES, Finding
from spanlite_analytics.lab.audit.report import as_json, as_text, sarif
from spanlite_analytics.lab.audit.run import Audit, audit_path, optimised, table
from spanlite_analytics.lab.frame import Progress, add_json_argument, print_json, print_table
from spanlite_analytics.lab.toolchain import DEFAULT_ARCH, Compiler

FOUND = 1

_HELP = """Reads a .cu, .ptx, .cubin, .fatbin, .so or a folder of Triton's cache, and runs one block
of each kernel over made-up values. No GPU is needed.

Exit code 0: nothing found. 1: findings. 2: the input cannot be read.

example:
  spanlite lab audit kernel.cu --block 32x8
  spanlite lab audit kernel.cu --table
  spanlite lab audit build/libkernels.so --sarif audit.sarif
"""


class AuditCommand:
    """Findings, or the table of source, PTX and SASS."""

    summary = "Find races, lost fences, bad access patterns and spills in a kernel's code"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument(
            "path", nargs="+", type=Path, help="a file, or a folder of Triton's cache"
        )
        parser.add_argument(
            "--arch", default=DEFAULT_ARCH, help="for .cu files (default: %(default)s)"
        )
        parser.add_argument(
            "--flag",
            action="append",
            default=[],
            metavar="FLAG",
            help="a flag for nvcc, as --flag=-DN=4",
        )
        parser.add_argument(
            "--block",
            metavar="X[xYxZ]",
            help="threads of a block, where the kernel does not say (default: 256)",
        )
        parser.add_argument(
            "--rule", action="append", metavar="NAME", choices=sorted(RULES), help="only this rule"
        )
        parser.add_argument(
            "--sarif", metavar="FILE", help="write SARIF 2.1.0; - for standard output"
        )
        parser.add_argument(
            "--table", action="store_true", help="source line, PTX and SASS side by side"
        )
        parser.add_argument(
            "--optimised",
            action="store_true",
            help="what -O3 removed or merged against -O0, by line",
        )
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 1 where there are findings, else 0."""
        compiler = Compiler(args.arch, tuple(args.flag))
        if args.table:
            return _show_table(args, compiler)
        if args.optimised:
            return _show_changes(args, compiler)
        blocks = {"": _block(args.block)} if args.block else {}
        with Progress("audit") as progress:
            audits = [audit_path(path, compiler, blocks, progress.told) for path in args.path]
        findings = [f for a in audits for f in a.findings if not args.rule or f.rule in args.rule]
        _show(args, audits, findings)
        return FOUND if findings else 0


def _block(text: str) -> tuple[int, int, int]:
    try:
        sizes = [int(word) for word in text.replace(",", "x").split("x")]
    except ValueError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise UsageError(f"--block {text}: must look like 256, 32x8 or 8x8x4")
    x, y, z = (*sizes, 1, 1)[:3]
    if x * y * z > 1024:
        raise UsageError(f"--block {text}: a block has at most 1,024 threads")
    return x, y, z


def _show(args: argparse.Namespace, audits: Sequence[Audit], findings: list[Finding]) -> None:
    if args.sarif:
        text = json.dumps(sarif(findings), indent=2)
        if args.sarif == "-":
            print(text)
            return
        Path(args.sarif).write_text(text + "\n")
    kernels = sum(len(a.kernels) for a in audits)
    unseen = [name for a in audits for name in a.machine_code_only]
    unjudged = [name for a in audits for name in a.unjudged]
    if args.json:
        print_json(
            {
                "kernels": kernels,
                "machine_code_only": unseen,
                "unjudged": unjudged,
                "findings": [as_json(f) for f in findings],
            }
        )
        return
    sys.stdout.write(as_text(findings))
    for name in unseen:
        print(
            f"{name}: has no PTX inside, so only rules for machine code ran; build with -lineinfo"
        )
    for name in unjudged:
        print(f"{name}: holds PTX that the audit does not understand, and was not judged")
    print(f"{len(findings)} findings in {kernels} kernels")


def _show_table(args: argparse.Namespace, compiler: Compiler) -> int:
    rows = [row for path in args.path for row in table(path, compiler)]
    if args.json:
        print_json(rows)
        return 0
    print_table(
        ("kernel", "line", "PTX", "offset", "SASS"),
        [
            (
                r.kernel,
                f"{Path(r.file).name}:{r.line}" if r.line else None,
                r.ptx,
                f"{r.offset:#06x}",
                r.sass,
            )
            for r in rows
        ],
    )
    return 0


def _show_changes(args: argparse.Namespace, compiler: Compiler) -> int:
    made = [change for path in args.path for change in optimised(path, compiler)]
    if args.json:
        print_json(made)
        return 0
    print_table(
        ("kernel", "line", "instructions", "-O0", "-O3", "what"),
        [
            (c.kernel, f"{Path(c.file).name}:{c.line}", c.kind, c.before, c.after, c.what)
            for c in made
        ],
        "Machine instructions by source line, from the same PTX",
    )
    return 0


command = AuditCommand()
