"""1,000 windows and more in each way beside threads that launch, every result compared bit for bit.

    python -m bench.agent_stress --seconds 120 --plain FOLDER      on an NVIDIA GPU with PyTorch
    python -m bench.agent_stress --stand-in --seconds 10                             anywhere

`--plain`: the folder that bench/h200/build_agent_plain.sh made, for its plain CUDA programs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench._agent_stress import MODELS, PLAIN, Way, run_ways
from bench._report import emit


def counts_of(args: argparse.Namespace) -> dict[Way, int]:
    """How many processes of each way."""
    models = {way: args.models for way in MODELS if way.name in args.ways}
    plain = {way: args.programs for way in PLAIN if args.plain and way.name in args.ways}
    return {way: count for way, count in (models | plain).items() if count}


def main() -> int:
    """Run what was asked for."""
    names = list(dict.fromkeys(way.name for way in (*MODELS, *PLAIN)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--windows", type=int, default=1000, help="the goal of each way")
    parser.add_argument("--models", type=int, default=3, help="processes of each way")
    parser.add_argument("--programs", type=int, default=2, help="the same of plain programs")
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--plain", type=Path, metavar="FOLDER")
    parser.add_argument("--stand-in", action="store_true", help="try the bench without a GPU")
    parser.add_argument("--quick", action="store_true", help="20 s")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.models, args.programs = 20, 1, 1
    if not args.stand_in:
        if not Path("/dev/nvidiactl").exists():
            print("bench.agent_stress needs an NVIDIA GPU, or --stand-in; bench/results/"
                  "agent_overhead.jsonl holds the H200's figures", file=sys.stderr)  # fmt: skip
            return 0
        from bench.agent_overhead import machine

        emit("agent.bench", 1, "run", command=" ".join(["python -m bench.agent_stress",
             *sys.argv[1:]]), **machine())  # fmt: skip
    program = next(iter(sorted(args.plain.glob("agent_stress_*"))), None) if args.plain else None
    if program is None:
        args.plain = None
    failures = run_ways(counts_of(args), args.seconds, args.windows, program, args.stand_in)
    emit("agent.stress_failures", failures, "failures", 0)
    return int(failures != 0)


if __name__ == "__main__":
    sys.exit(main())
