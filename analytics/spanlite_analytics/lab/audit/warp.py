"""Warp instructions of a Machine: shuffles, votes, masks."""

from __future__ import annotations

import numpy as np

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.operands import read
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import WARP, Level, Shuffle
from spanlite_analytics.lab.audit.values import From, Ints, Mask, Value, mix, of_bits, unknown


def lanes_of(machine: Machine, mask: Mask) -> Ints:
    """For each thread, the lanes of its warp that are in `mask`, as bits."""
    padded = np.zeros(-(-machine.threads // WARP) * WARP, np.bool_)
    padded[: machine.threads] = mask
    weights = np.int64(1) << np.arange(WARP, dtype=np.int64)
    words = (padded.reshape(-1, WARP) * weights).sum(axis=1)
    return np.repeat(words, WARP)[: machine.threads]


def check_mask(
    machine: Machine, level: Level, instruction: Instruction, mask: Mask, text: str
) -> None:
    """Each lane that executes must be in the mask, and each lane in the mask must execute."""
    given = read(machine, level.function, text, "u32")
    if not given.known[mask].all():
        _check_unknown(machine, instruction, mask, given)
        return
    here = lanes_of(machine, mask)
    gone = lanes_of(machine, machine.exited)
    # Each lane by its own mask: the tiles of a warp may execute it at once, each with its own.
    left_out = ((given.bits >> machine.lane.bits & 1 == 0) & mask)[mask]
    absent = (given.bits & ~here & ~gone & _there(machine))[mask]
    if left_out.any():
        lanes = int(lanes_of(machine, mask & (given.bits >> machine.lane.bits & 1 == 0)).max())
        word = int(given.bits[mask][left_out][0])
        machine.report(
            "shuffle-mask",
            instruction,
            f"lanes {_named(lanes)} execute it, and the mask {word:#010x} leaves them out",
        )
    elif absent.any():
        machine.report(
            "shuffle-mask",
            instruction,
            f"the mask names lanes {_named(int(absent[absent != 0][0]))}, which do not come here",
        )


def _there(machine: Machine) -> Ints:
    return lanes_of(machine, machine.everyone)


def _check_unknown(machine: Machine, instruction: Instruction, mask: Mask, given: Value) -> None:
    """A mask from a vote: the lanes that came to the vote's branch are those it names."""
    votes = machine.votes
    here = lanes_of(machine, mask)
    for warp in range(-(-machine.threads // WARP)):
        inside = np.zeros_like(mask)
        inside[warp * WARP : (warp + 1) * WARP] = mask[warp * WARP : (warp + 1) * WARP]
        if not inside.any():
            continue
        first = int(np.argmax(inside))
        named = votes.get(int(given.number[first]))
        if named is None or named[first] == here[first]:
            continue
        lanes = int(named[first]) ^ int(here[first])
        machine.report(
            "shuffle-mask",
            instruction,
            f"the mask was made where other lanes took part: lanes {_named(lanes)} differ",
        )
        return


def _named(bits: int) -> str:
    lanes = [lane for lane in range(WARP) if bits >> lane & 1]
    if len(lanes) > 2 and lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"{lanes[0]}-{lanes[-1]}"
    return ", ".join(map(str, lanes[:6])) + (", ..." if len(lanes) > 6 else "")


def check_whole_warps(machine: Machine, instruction: Instruction, mask: Mask) -> None:
    """A block barrier must be reached by whole warps."""
    here, live = lanes_of(machine, mask), lanes_of(machine, ~machine.exited)
    missing = (live & ~here)[mask]
    if missing.any():
        machine.report(
            "divergent-barrier",
            instruction,
            f"reached by some lanes of a warp only; lanes {_named(int(missing[missing != 0][0]))} "
            "went another way",
        )


def sync_warp(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`__syncwarp(mask)`."""
    if instruction.operands:
        check_mask(machine, level, instruction, mask, instruction.operands[0])
    for watcher in machine.watchers:
        watcher.warp_barrier(machine, mask)


def _sources(mode: str, lane: Ints, b: Ints, c: Ints) -> tuple[Ints, Mask]:
    """The lane that each lane reads, and whether that lies within its segment (PTX ISA)."""
    clamp, segment = c & 31, (c >> 8) & 31
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    if mode == "up":
        source = lane - (b & 31)
        return source, source >= highest
    if mode == "down":
        source = lane + (b & 31)
    elif mode == "bfly":
        source = lane ^ (b & 31)
    else:
        source = lowest | (b & 31 & ~segment)
    return source, source <= highest


def shuffle(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`shfl.sync`."""
    operands = instruction.operands
    given = read(machine, level.function, operands[1])
    b = read(machine, level.function, operands[2], "u32")
    c = read(machine, level.function, operands[3], "u32")
    if len(operands) > 4:
        check_mask(machine, level, instruction, mask, operands[4])
    mode = next(w for w in instruction.words if w in ("up", "down", "bfly", "idx"))
    lane = machine.lane.bits
    source, inside = _sources(mode, lane, b.bits, c.bits)
    at = np.arange(machine.threads) - lane + np.where(inside, source, lane)
    at = np.clip(at, 0, machine.threads - 1)
    result = Value(given.bits[at], given.known[at], given.number[at], given.origin)
    if not b.known.all():
        number = mix("shfl", given.number, b.number)
        result = unknown(number, given.origin | b.origin)
    target, _, predicate = operands[0].partition("|")
    machine.write(level.function.name, target.strip(), result, mask)
    if predicate:
        made = of_bits(inside.astype(np.int64), b.origin | From.THREAD)
        machine.write(level.function.name, predicate.strip(), made, mask)
    for watcher in machine.watchers:
        watcher.shuffle(machine, Shuffle(instruction, mask, given, result))


def vote(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`vote`, `match`, `redux`: the same for all lanes that take part."""
    operands = instruction.operands
    check_mask(machine, level, instruction, mask, operands[-1])
    kind = "pred" if instruction.name == "vote" else "u32"
    given = read(machine, level.function, operands[1], kind)
    lanes = lanes_of(machine, mask & (given.bits != 0))
    if instruction.has("any"):
        lanes = (lanes != 0).astype(np.int64)
    elif instruction.has("all", "uni"):
        lanes = (lanes == lanes_of(machine, mask)).astype(np.int64)
    if instruction.name == "vote" and given.known[mask].all():
        result = of_bits(lanes, given.origin)
    else:
        result = _outcome(machine, instruction, given, lanes)
    machine.write(level.function.name, operands[0].split("|")[0].strip(), result, mask)


def _outcome(machine: Machine, instruction: Instruction, given: Value, lanes: Ints) -> Value:
    warp_number = (np.arange(machine.threads) // WARP).astype(np.uint64)
    fresh = np.full(machine.threads, machine.fresh(), np.uint64)
    number = mix(instruction.name, fresh, warp_number)
    if instruction.name == "match":
        return unknown(mix("match", number, given.number), From.MEMORY)
    if instruction.has("ballot"):
        for first in range(0, machine.threads, WARP):
            machine.votes[int(number[first])] = lanes
    # Its bits follow from the coins tossed, so that branches on it agree with them.
    return Value(lanes, np.zeros_like(given.known), number, given.origin | From.MEMORY)


def active_mask(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`activemask`: known, for the lanes are."""
    made = of_bits(lanes_of(machine, mask), From.MEMORY)
    machine.write(level.function.name, instruction.operands[0], made, mask)


def elect(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`elect.sync`: the first lane."""
    here = lanes_of(machine, mask)
    first = (here & -here) == (np.int64(1) << machine.lane.bits)
    predicate = instruction.operands[0].split("|")[-1].strip()
    machine.write(
        level.function.name, predicate, of_bits(first.astype(np.int64), From.THREAD), mask
    )
