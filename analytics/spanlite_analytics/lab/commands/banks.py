"""`spanlite lab banks`: bank conflicts of a shared-memory access, and layouts without them."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from spanlite.errors import UsageError

from spanlite_analytics.lab.banks import (
    Access,
    Layout,
    Proposal,
    ideal_wavefronts,
    propose,
    wavefronts,
)
from spanlite_analytics.lab.banks import swizzle as swizzled
from spanlite_analytics.lab.banks.expression import evaluate
from spanlite_analytics.lab.banks.layouts import SWIZZLES, TileAccess
from spanlite_analytics.lab.banks.mma import LAYOUTS, TYPES, Finding, findings
from spanlite_analytics.lab.banks.model import BANKS, KINDS, LANES, bank_words
from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table

_HELP = """Three questions:

1. How many wavefronts does this access take? Byte addresses as an expression over `lane`.
2. Which layout of a tile would be better? The row and the byte within it that each lane wants.
3. How do the tiles of a matrix multiplication behave, by m, n, k, type and layout?

Proposals are ranked by conflicts, then by the shared memory that they add. A layout marked TMA
is one that TMA can fill and wgmma can read as it is; padding is not.

examples:
  spanlite lab banks --address "lane * 132" --width 4
  spanlite lab banks --row "lane % 8" --byte "lane // 8 * 16" --op ldmatrix --pitch 128 --rows 64
  spanlite lab banks --mma 128x128x64 --type f16,e4m3 --layout row.col
"""


class BanksCommand:
    """Prints wavefronts and proposals."""

    summary = "Bank conflicts of shared-memory accesses and MMA tiles, and better layouts"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("--address", metavar="EXPR", help="bytes, such as 'lane * 8'")
        parser.add_argument("--row", metavar="EXPR", help="row of a tile")
        parser.add_argument("--byte", metavar="EXPR", help="byte in that row")
        parser.add_argument("--pitch", type=int, metavar="BYTES", help="of the tile's rows")
        parser.add_argument("--rows", type=int, default=64, metavar="N", help="default 64")
        parser.add_argument("--width", type=int, default=4, help="bytes a lane: 1, 2, 4, 8, 16")
        parser.add_argument("--op", choices=KINDS, default="load", help="default load")
        parser.add_argument("--matrices", type=int, default=4, help="of ldmatrix: 1, 2, 4")
        parser.add_argument("--mask", default="0xffffffff", help="active lanes, hexadecimal")
        parser.add_argument("--swizzle", type=int, default=0, choices=SWIZZLES, help="bytes")
        parser.add_argument("--mma", metavar="MxNxK,...", help="a block's tiles")
        parser.add_argument(
            "--type", default="f16", help=f"of {', '.join(TYPES)}; several by comma"
        )
        parser.add_argument("--layout", default="row.col", help=f"of {', '.join(LAYOUTS)}, or all")
        parser.add_argument("--top", type=int, default=5, metavar="N", help="proposals (default 5)")
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0."""
        if args.mma:
            _mma(args)
        elif args.address:
            _one(args)
        elif args.row and args.byte and args.pitch:
            _tile(args)
        else:
            raise UsageError("give --address, or --row, --byte and --pitch, or --mma")
        return 0


def _access(args: argparse.Namespace) -> Access:
    width = 16 if args.op in ("ldmatrix", "stmatrix") else args.width
    return Access(args.op, width, args.matrices)


def _mask(text: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    try:
        value = int(text, 16)
    except ValueError:
        value = 0
    if not 0 < value < 1 << LANES:
        raise UsageError(f"--mask '{text}' is not 1 to ffffffff")
    return (value >> np.arange(LANES) & 1).astype(np.bool_)


def _one(args: argparse.Namespace) -> None:
    access, active = _access(args), _mask(args.mask)
    addresses = swizzled(evaluate(args.address), args.swizzle)
    total = int(wavefronts(access, addresses, active))
    ideal = int(ideal_wavefronts(access, addresses, active))
    words = bank_words(access, addresses, active).max(axis=0)
    answer = {
        "access": access.name,
        "wavefronts": total,
        "ideal": ideal,
        "conflicts": total - ideal,
        "degree": total / ideal,
        "words_by_bank": words.tolist(),
    }
    if args.json:
        print_json(answer)
        return
    print(
        f"{access.name}: {total} wavefronts, {ideal} without conflicts: "
        f"{total - ideal} conflicts, degree {total / ideal:.3g}"
    )
    worst = int(words.max())
    busy = [bank for bank in range(BANKS) if words[bank] == worst]
    listed = ", ".join(map(str, busy[:8])) + (", ..." if len(busy) > 8 else "")
    print(f"most distinct words of one bank in one wavefront's lanes: {worst} (bank {listed})")


def _tile(args: argparse.Namespace) -> None:
    if args.rows < 1 or args.pitch < 4 or args.pitch % 4:
        raise UsageError("--rows must be 1 or more, --pitch a multiple of 4")
    row, byte = evaluate(args.row)[None], evaluate(args.byte)[None]
    if byte.min() < 0 or byte.max() >= args.pitch or row.min() < 0 or row.max() >= args.rows:
        raise UsageError("--row must be within --rows, --byte within --pitch")
    access = TileAccess("access", _access(args), row, byte)
    found = propose(args.rows, args.pitch, [access])
    now = access.cost(Layout(args.pitch, args.swizzle))
    if args.json:
        rows = [_proposal_json(p) for p in found[: args.top]]
        print_json({"wavefronts": now[0], "ideal": now[1], "proposals": rows})
        return
    print(f"{Layout(args.pitch, args.swizzle).name}: {now[0]} wavefronts, {now[1]} ideal")
    _print_proposals(found[: args.top])


def _print_proposals(found: list[Proposal]) -> None:
    rows = [(p.layout.name, p.wavefronts, p.conflicts, p.extra_bytes, p.for_tma) for p in found]
    print_table(("layout", "wavefronts", "conflicts", "extra bytes", "TMA"), rows)


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "pitch_bytes": proposal.layout.pitch_bytes,
        "swizzle_bytes": proposal.layout.swizzle_bytes,
        "xor_rows": proposal.layout.xor_rows,
        "wavefronts": proposal.wavefronts,
        "conflicts": proposal.conflicts,
        "extra_bytes": proposal.extra_bytes,
        "for_tma": proposal.for_tma,
        "by_access": {name: list(cost) for name, cost in proposal.by_access.items()},
    }


def _shapes(text: str) -> list[tuple[int, int, int]]:
    found = []
    for shape in text.split(","):
        parts = shape.lower().split("x")
        if len(parts) != 3 or not all(p.isdecimal() for p in parts):
            raise UsageError(f"--mma '{shape}' is not MxNxK")
        found.append((int(parts[0]), int(parts[1]), int(parts[2])))
    return found


def _mma(args: argparse.Namespace) -> None:
    layouts = LAYOUTS if args.layout == "all" else args.layout.split(",")
    found = findings(_shapes(args.mma), args.type.split(","), layouts)
    if args.json:
        print_json([_finding_json(one, args.top) for one in found])
        return
    heads = (
        "tile type layout operand load row_bytes wavefronts ideal degree best conflicts extra_bytes"
    )
    print_table([head.replace("_", " ") for head in heads.split()], [_mma_row(f) for f in found])
    if len(found) <= 4:
        for one in found:
            print(f"\n{one.operand} by {one.load}, with filling the tile:")
            _print_proposals(list(one.proposals[: args.top]))


def _mma_row(one: Finding) -> tuple[Any, ...]:
    best = one.proposals[0] if one.proposals else None
    return (
        f"{one.m}x{one.n}x{one.k}",
        one.type,
        one.layout,
        one.operand,
        one.load,
        one.row_bytes,
        one.wavefronts,
        one.ideal,
        one.degree,
        best.layout.name if best else "split the row for a swizzle",
        best.conflicts if best else None,
        best.extra_bytes if best else None,
    )


def _finding_json(one: Finding, top: int) -> dict[str, Any]:
    return {
        "m": one.m,
        "n": one.n,
        "k": one.k,
        "type": one.type,
        "layout": one.layout,
        "operand": one.operand,
        "load": one.load,
        "row_bytes": one.row_bytes,
        "wavefronts": one.wavefronts,
        "ideal": one.ideal,
        "degree": one.degree,
        "proposals": [_proposal_json(p) for p in one.proposals[:top]],
    }


command = BanksCommand()
