"""`spanlite counters`: run a program and count hardware events of its kernels."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

from spanlite.errors import ServiceError, UsageError

#: CUPTI's names, as Nsight Compute writes them too. A chip that lacks one leaves it out.
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__inst_executed_op_global_red.sum",
    "smsp__inst_executed_op_global_atom.sum",
    *(
        f"l1tex__data_{what}_mem_shared_op_{kind}.sum"
        for what in ("bank_conflicts_pipe_lsu", "pipe_lsu_wavefronts")
        for kind in ("ld", "st")
    ),
    *(
        f"l1tex__t_{what}_pipe_lsu_mem_{space}_op_{kind}.sum"
        for space in ("global", "local")
        for what in ("sectors", "requests")
        for kind in ("ld", "st")
    ),
    *(
        f"sm__ops_path_tensor_src_{name}.sum"
        for name in (
            "bf16_dst_fp32", "fp16", "fp64", "fp8_sparsity_off", "fp8_sparsity_on", "int8",
            "tf32_dst_fp32",
        )
    ),
    *(
        f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        for reason in (
            "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss",
            "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle",
            "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping",
            "tex_throttle", "wait",
        )
    ),
)  # fmt: skip
LAUNCHES = 3
NOTHING_COUNTED = 1
_EPILOG = """\
Each launch of a kernel that is counted is replayed by CUPTI's range profiler until all counters
have been read, with its memory put back in between: run it where nothing is served. The
file has the columns of Nsight Compute's raw CSV, and `spanlite lab explain --ncu` and
`lab roofline` read it. Kernels inside CUDA graphs are not counted; launches of several threads pass
one by one. Needs `make agent`, no root where the driver lets everybody profile
(NVreg_RestrictProfilingToAdminUsers=0), and no other profiler in the process.

Exit code: the program's, or 1 where it launched no such kernel.

example:
  spanlite counters --kernel scores --output counters.csv -- python step.py
  spanlite lab explain none scores --ncu counters.csv
"""


def library_path() -> Path:
    """Where the library lies that is injected; it need not exist."""
    return Path(__file__).parents[1] / "lib" / "libspanlite_counters.so"


def _launches(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of launches, 1 to 1000000")
    return int(text)


class CountersCommand:
    """The `counters` subcommand."""

    summary = "Run a program and count hardware events of its kernels, for `lab explain`"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument("--output", required=True, metavar="FILE", help="the CSV to write")
        parser.add_argument(
            "--kernel", default="", metavar="NAME", help="part of the kernel's name (default: all)"
        )
        parser.add_argument(
            "--launches",
            type=_launches,
            default=LAUNCHES,
            metavar="N",
            help="launches of each kernel (default: %(default)s)",
        )
        parser.add_argument("--cupti", default="", metavar="FILE", help="the libcupti to use")
        parser.add_argument("program", nargs="+", metavar="COMMAND", help="after `--`")

    def run(self, args: argparse.Namespace) -> int:
        """Returns the program's exit code, or 1 where nothing was counted."""
        output = Path(args.output).absolute()
        _check(output, args.program[0])
        output.unlink(missing_ok=True)
        code = subprocess.run(
            args.program, env=os.environ | settings(output, args.kernel, args.launches, args.cupti),
            check=False,
        ).returncode  # fmt: skip
        rows = rows_in(output)
        print(f"spanlite: {rows} launches counted: {output}", file=sys.stderr)
        # Ended by a signal: as a shell says it.
        return (128 - code if code < 0 else code) or (0 if rows else NOTHING_COUNTED)


def _check(output: Path, program: str) -> None:
    if not library_path().exists():
        raise ServiceError(f"{library_path()} is missing; run `make agent`")
    if shutil.which(program) is None:
        raise UsageError(f"{program}: no such program")
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"--output {output}: no file can be written there")


def settings(output: Path, kernel: str, launches: int, cupti: str = "") -> dict[str, str]:
    """The environment in which a program's kernels are counted."""
    return {
        "CUDA_INJECTION64_PATH": str(library_path()),
        "SPANLITE_COUNTERS_FILE": str(output),
        "SPANLITE_COUNTERS_KERNEL": kernel,
        "SPANLITE_COUNTERS_LAUNCHES": str(launches),
        "SPANLITE_COUNTERS_METRICS": ",".join(METRICS),
        "SPANLITE_COUNTERS_CUPTI": cupti,
    }


def rows_in(path: Path) -> int:
    """Launches in a file of counters; 0 where there is none."""
    if not path.exists():
        return 0
    with path.open(newline="") as file:
        return max(sum(1 for row in csv.reader(file) if row) - 2, 0)


command = CountersCommand()
