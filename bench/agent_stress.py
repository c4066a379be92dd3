"""1,000 windows and more in each way beside threads that launch, every result compared bit for bit.

    python -m bench.agent_stress --seconds 120 --plain FOLDER      on an NVIDIA GPU with PyTorch
    python -m bench.agent_stress --stand-in --seconds 10                             anywhere

`--plain`: the folder that bench/h200/build_agent_plain.sh made, for its plain CUDA programs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from spanlite_collectors.agent.layout import Level

from bench._agent_options import taken_apart
from bench._agent_stress import MODELS, PLAIN, Way, run_ways
from bench._report import emit


def counts_of(args: argparse.Namespace) -> dict[Way, int]:
    """How many processes of each way."""
    counts = {way: args.models for way in MODELS if way.name in args.ways}
    if args.plain:
        counts |= {way: args.programs for way in PLAIN if way.name in args.ways}
    for text in args.variant:
        way = _variant(text)
        if args.plain or not way.plain:
            counts[way] = args.programs if way.plain else args.models
    return {way: count for way, count in counts.items() if count}


def _variant(text: str) -> Way:
    """`NAME=[plain.]WAY,KEY:VALUE,...`: with other settings; `RUN:` has other loads or threads,
    `RAISE:` sets a level after the first window; a word without a colon is the program's own."""
    name, base, words = taken_apart(text)
    plain = base.startswith("plain.")
    way = next(w for w in (PLAIN if plain else MODELS) if w.name == base.removeprefix("plain."))
    pairs = dict(word.split(":", 1) for word in words if ":" in word)
    run = pairs.pop("RUN", way.run)
    level = pairs.pop("RAISE", None)
    flags = tuple(word for word in words if ":" not in word)
    return replace(way, name=name, run=run, flags=way.flags + flags,
                   settings=way.settings + tuple(pairs.items()),
                   level=Level[level.upper()] if level else None,
                   life_s=4 if plain else way.life_s)  # fmt: skip


def main() -> int:
    """Run what was asked for."""
    names = list(dict.fromkeys(way.name for way in (*MODELS, *PLAIN)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--windows", type=int, default=1000, help="the goal of each way")
    parser.add_argument("--models", type=int, default=3, help="processes of each way")
    parser.add_argument("--programs", type=int, default=2, help="the same of plain programs")
    parser.add_argument("--ways", nargs="*", choices=names, default=names)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=WAY,KEY:VALUE...",
                        help="one more way, with other settings")  # fmt: skip
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
