"""`spanlite lab fusion`: which parts of norm, product, bias and activation belong in one kernel?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from spanlite.errors import UsageError

from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table
from spanlite_analytics.lab.fusion.advise import Advice, Option, advise
from spanlite_analytics.lab.fusion.chain import Chain, Shape
from spanlite_analytics.words import time_words

_HELP = """Splits: `unfused` (norm; cuBLAS; bias and activation), `epilogue` (norm; product with the
rest), `prologue` (norm with product; the rest), `all` (one kernel). Times are of an H200, bf16,
weights from memory, one CUDA graph: measured where that shape was, else predicted. Fusing a
norm has each column of tiles form the sums of its rows anew (`again`).

examples:
  spanlite lab fusion --tokens 256 --hidden 4096 --out 11008 --chain rmsnorm,gemm,bias,silu
  spanlite lab fusion --tokens 1 --hidden 5120 --out 13824 --chain layernorm,gemm,bias,gelu --json
"""


class FusionCommand:
    """Predicts each split and says which to choose."""

    summary = "Where to split norm, matrix product, bias and activation into kernels"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("--tokens", type=int, required=True, metavar="N", help="rows of x")
        parser.add_argument("--hidden", type=int, required=True, metavar="N", help="columns of x")
        parser.add_argument("--out", type=int, required=True, metavar="N", help="columns of y")
        parser.add_argument(
            "--chain",
            default="rmsnorm,gemm,bias,silu",
            metavar="A,B,..",
            help="rmsnorm or layernorm, gemm, bias, silu or gelu (%(default)s)",
        )
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0. Raises UsageError for a chain or shape that cannot be."""
        for name in ("tokens", "hidden", "out"):
            if not 1 <= getattr(args, name) <= 1 << 20:
                raise UsageError(f"--{name} must be 1 to {1 << 20}")
        chain = Chain.parse(args.chain)
        found = advise(chain, Shape(args.tokens, args.hidden, args.out))
        if args.json:
            print_json(as_json(found))
        else:
            _print(found)
        return 0


def as_json(found: Advice) -> dict[str, Any]:
    """The advice in plain types."""
    return {
        "chain": found.chain.name,
        "shape": asdict(found.shape),
        "chosen": _option(found.chosen),
        "options": [_option(option) for option in found.options],
        "notes": found.notes,
    }


def _option(option: Option) -> dict[str, Any]:
    return {
        "option": option.label,
        "split": option.way.split,
        "tile": asdict(option.way.tile) if option.way.tile else None,
        "predicted_ns": option.predicted_ns,
        "predicted_spread": option.spread,
        "measured_ns": option.measured_ns,
        "kernels": [asdict(kernel) for kernel in option.kernels],
        "compiled": asdict(option.resources) if option.resources else None,
        "modelled": asdict(option.modelled) if option.modelled else None,
        "blocks": option.blocks,
    }


def _print(found: Advice) -> None:
    rows = []
    for option in found.options:
        got = option.resources or option.modelled
        rows.append(
            (
                option.label,
                option.way.tile.name if option.way.tile else "cuBLAS",
                time_words(option.predicted_ns),
                time_words(option.measured_ns) if option.measured_ns is not None else None,
                len(option.kernels),
                sum(k.read_bytes + k.write_bytes for k in option.kernels) / 1e6,
                sum(k.again_flops for k in option.kernels) / 1e9,
                got and got.registers,
                got and got.shared_bytes,
                got and got.blocks_per_sm,
                got and got.limiters,
                option.blocks,
            )
        )
    heads = (
        "split", "product", "predicted", "measured", "kernels", "MB", "again, GFLOP", "registers",
        "shared", "blocks/SM", "limited by", "blocks",
    )  # fmt: skip
    shape = found.shape
    print_table(heads, rows, f"{found.chain.name}: {shape.tokens} x {shape.hidden} -> {shape.out}")
    for line in _advice(found):
        print(line)


def _advice(found: Advice) -> list[str]:
    chosen = found.chosen
    how = "predicted" if chosen.measured_ns is None else "measured"
    product = f"tile {chosen.way.tile.name}" if chosen.way.tile else "cuBLAS"
    lines = [f"choose {chosen.way.split}, {product}: {time_words(chosen.time_ns)} ({how})"]
    unfused = next(option for option in found.options if option.way.split == "unfused")
    if unfused is not chosen:
        saved = 1 - chosen.time_ns / unfused.time_ns
        lines.append(f"{saved:.0%} less than unfused")
    rest = [o for o in found.options if o.way.split not in (chosen.way.split, "torch")]
    if rest and rest[0].time_ns < chosen.time_ns * 1.03:
        gap = rest[0].time_ns / chosen.time_ns - 1
        lines.append(f"{rest[0].label} is within {gap:.1%}: no difference to build on")
    return lines + found.notes


command = FusionCommand()
