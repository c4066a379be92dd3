"""Rules of kernels: all of them slower alike or at random, some of them, or others in their place.

A kernel's own doing shows in each of its runs. A lower clock slows all that compute, by its own
ratio. Another process on the GPU takes turns with ours: few runs of whatever kernel become much
longer, the median stays, and kernels that are due do not start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spanlite_replay._text import shortened
from spanlite_replay.bottlenecks.bounds import Bound, Reason
from spanlite_replay.bottlenecks.compared import Comparison
from spanlite_replay.bottlenecks.groups import KernelGroup, Served

Found = Iterator[tuple[str, float, list[str]]]
Pairs = list[tuple[KernelGroup, KernelGroup]]

#: A kernel is slower where its mean grew by this.
KERNEL_SLOWER = 1.08
#: Nearly all kernels slower by nearly the same factor: it is not the kernels.
UNIFORM_SHARE, UNIFORM_SPREAD = 0.7, 0.25
#: Durations of one kernel vary by so much more (deviation by mean): something interrupts them.
RESTLESS = 0.25
#: Means above their medians by this share, in so many kinds of kernels, and by this share of a
#: window in all: interrupted at random.
INTERRUPTED, KINDS_INTERRUPTED, INTERRUPTED_SHARE = 0.05, 2, 0.02
#: A clock that fell by this is a lower clock.
CLOCK_FELL = 0.97
#: A kernel that had more than so many registers and has fewer by this; and all that there are.
FEW_REGISTERS, FEWER, ALL_REGISTERS = 32, 0.9, 255
#: Launches of so many times as often, each so much shorter: pieces of what it was.
PIECES, SHORTER = 1.5, 0.75
#: A context that is so many times the median, of at least so many requests.
LONG_CONTEXT, FEWEST_CONTEXTS = 3.0, 3
_GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|_mm_|matmul", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|flash|fmha|sdpa|paged", re.IGNORECASE)
_SPILLS = ("local_bytes_per_thread", "local_memory_per_thread", "local memory per thread")
_CONFLICTS = ("shared_bank_conflicts", "shared bank conflicts", "bank_conflicts_per_request")


def kernels(c: Comparison) -> Found:
    """Slower kernels: all of them alike, or some, or others in their place."""
    a, b = c.usual.kernels, c.slow.kernels
    # Kernels that nobody waited for explain nothing, however slow.
    most = c.more(Bound.COMPUTE, Bound.MEMORY, Bound.CONTENTION, Bound.QUEUE)
    both = [(a[name], b[name]) for name in a if name in b]
    new = [b[name] for name in b if name not in a]
    gone = sum(a[name].times * a[name].mean_ns for name in a if name not in b)
    excess = sum((now.mean_ns - was.mean_ns) * now.times for was, now in both)
    taken = sum(one.times * one.mean_ns for one in new) - gone
    clock = c.slow.clock_mhz / c.usual.clock_mhz
    fell = clock if clock <= CLOCK_FELL else 1.0
    interrupted = _interrupted(c, both)
    if interrupted is not None:
        yield interrupted
    shared = interrupted is not None or _is_shared(both)
    if fell < 1:
        yield _lower_clock(c, both, fell, most)
    elif not shared and both and _is_uniform(both) and excess > taken:
        yield from _all_slower(c, both, excess, most)
        return
    for was, now in both:
        # What the clock does to it is no doing of its own.
        usual, typical = was.mean_ns / fell, now.mean_ns
        if shared:
            usual, typical = was.median_ns / fell, now.median_ns
        if typical > KERNEL_SLOWER * usual:
            lost = (typical - usual) * now.times
            cause, more = _one_slower(c, was, now)
            yield cause, min(lost, most), _evidence(was, now) + more
    if new and taken > 0:
        longest = max(new, key=lambda one: one.times * one.mean_ns)
        cause, more = _one_slower(c, None, longest)
        yield (
            cause,
            min(taken, most),
            [
                f"{shortened(longest.name, 60)} ran, which usual windows have not: "
                f"{longest.times:,.1f} times {longest.mean_ns / 1e3:,.1f} us",
                *_marks(longest),
                *more,
            ],
        )


def _interrupted(c: Comparison, both: Pairs) -> tuple[str, float, list[str]] | None:
    """Few runs of kernels of several kinds much longer, though nothing of ours ran beside them."""
    hit = [
        (now.alone_tail_ns - max(was.alone_tail_ns, 0.0)) * now.alone_times
        for was, now in both
        if _has_tail(now) and not _has_tail(was)
    ]
    if len(hit) < KINDS_INTERRUPTED or sum(hit) < INTERRUPTED_SHARE * c.usual.length_ns:
        return None
    tail = sum(
        max((now.mean_ns - now.median_ns) - (was.mean_ns - was.median_ns), 0.0) * now.times
        for was, now in both
    )
    # While another process has the GPU, kernels that are due do not start either.
    late = max(c.more(Reason.WAITS_UNKNOWN, Reason.GAP, Reason.LAUNCH), 0.0)
    return (
        "noisy_neighbour",
        tail + late,
        [
            f"{len(hit)} kinds of kernels take {sum(hit) / 1e3:,.0f} us a {c.unit} more while "
            "nothing of ours ran beside them, in few long runs: something else had the GPU",
            f"{late / 1e3:,.0f} us a {c.unit} more in which kernels were due and did not start",
        ],
    )


def _has_tail(one: KernelGroup) -> bool:
    return one.alone_tail_ns > INTERRUPTED * one.median_ns


def _is_shared(both: Pairs) -> bool:
    """Whether usual windows are interrupted as well: means say little there, medians do."""
    return sum(_has_tail(was) for was, _ in both) >= KINDS_INTERRUPTED


def _is_uniform(both: Pairs) -> bool:
    """Nearly all slower, by nearly one factor or else at random: not the kernels' own doing."""
    weight = np.array([was.times * was.mean_ns for was, _ in both])
    weight /= max(weight.sum(), 1.0)
    ratio = np.log([max(now.mean_ns, 1) / max(was.mean_ns, 1) for was, now in both])
    restless = np.array([now.cv - was.cv > RESTLESS for was, now in both])
    middle = float(weight @ ratio)
    spread = math.sqrt(float(weight @ (ratio - middle) ** 2))
    alike = spread < max(UNIFORM_SPREAD, middle / 2) or float(weight @ restless) > 0.5
    slower = float(weight @ (ratio > math.log(KERNEL_SLOWER)))
    return len(both) >= 3 and slower > UNIFORM_SHARE and alike


def _all_slower(c: Comparison, both: Pairs, excess: float, most: float) -> Found:
    ratio = 1 + excess / sum(was.mean_ns * now.times for was, now in both)
    excess = min(excess, most)
    said = [f"{len(both)} kinds of kernels, all slower: {ratio:.2f} times on average"]
    foreign = c.slow.foreign_ns - c.usual.foreign_ns
    restless = float(np.median([now.cv - was.cv for was, now in both]))
    beside = float(np.median([now.accompanied - was.accompanied for was, now in both]))
    if foreign > 0.05 * c.usual.length_ns:
        yield (
            "noisy_neighbour",
            excess,
            [*said, f"another process ran {foreign / 1e3:,.0f} us a {c.unit} on the same GPU"],
        )
    elif beside > 0.3:
        yield "contention", excess, [*said, "more of the time beside other streams"]
    elif restless > RESTLESS:
        # While another process runs, kernels that are due do not start either.
        late = max(c.more(Reason.WAITS_UNKNOWN, Reason.GAP), 0)
        yield (
            "noisy_neighbour",
            excess + late,
            [*said, "and unevenly so, as where another process gets time slices"],
        )
    elif math.isnan(c.slow.clock_mhz / c.usual.clock_mhz):
        yield "clock_throttled", excess, [*said, "and evenly so, as with a lower clock"]


def _lower_clock(
    c: Comparison, both: Pairs, fell: float, most: float
) -> tuple[str, float, list[str]]:
    """What kernels took longer, each no more than the clock can have made it."""
    slower = [(was, now) for was, now in both if now.mean_ns > was.mean_ns]
    lost = sum(
        (min(now.mean_ns, was.mean_ns / fell) - was.mean_ns) * now.times for was, now in slower
    )
    held = f", held down by {c.slow.throttled}" if c.slow.throttled else ""
    return (
        "clock_throttled",
        min(lost, most),
        [
            f"{c.slow.clock_mhz:,.0f} MHz in place of {c.usual.clock_mhz:,.0f}{held}",
            f"{len(slower)} of {len(both)} kinds of kernels are slower",
        ],
    )


def _one_slower(c: Comparison, was: KernelGroup | None, now: KernelGroup) -> tuple[str, list[str]]:
    """(the cause, further evidence)."""
    if spill := _spill(was, now):
        return "register_spill", [spill]
    if _conflicts(now) > 2 * (_conflicts(was) if was else 0) + 1:
        return "bank_conflicts", []
    if _ATTENTION.search(now.name):
        if (one := _longest_context(c)) is not None:
            return "long_tail_request", one
        return "slow_kernel", []
    if was and now.accompanied > was.accompanied + 0.3:
        return "contention", []
    return ("gemm_regression" if _GEMM.search(now.name) else "slow_kernel"), []


def _spill(was: KernelGroup | None, now: KernelGroup) -> str:
    """What says that it spills registers; empty for nothing. CUPTI gives no local memory for
    kernels on Hopper (0), but registers: fewer leave room for more blocks, and make nothing
    slower but by spilling; as many as there are is where spilling begins."""
    if _spilled(now) > (_spilled(was) if was else 0):
        return f"{_spilled(now):,.0f} bytes of local memory a thread"
    if was is None:
        return ""
    said = f"{now.registers:.0f} registers a thread in place of {was.registers:.0f}"
    if was.registers > FEW_REGISTERS and now.registers < FEWER * was.registers:
        return f"{said}: the rest is kept in memory"
    if now.registers >= ALL_REGISTERS > was.registers:
        return f"{said}, and there are no more"
    return ""


def _longest_context(c: Comparison) -> list[str] | None:
    """Evidence of a request whose context is far longer than the others', in the slow windows
    and not in the usual ones; None: there is none. Attention lasts as long as the longest."""
    known = {key: one for key, one in {**c.usual.requests, **c.slow.requests}.items()
             if not math.isnan(one.tokens)}  # fmt: skip
    if len(known) < FEWEST_CONTEXTS:
        return None
    usual = float(np.median([one.tokens for one in known.values()]))
    key, longest = max(known.items(), key=lambda item: item[1].tokens)
    served = [_share(group.requests.get(key), group.windows) for group in (c.usual, c.slow)]
    if longest.tokens < LONG_CONTEXT * usual or served[1] < 0.5 or served[0] > 0.1:
        return None
    return [
        f"{longest.name}: a context of {longest.tokens:,.0f} tokens, the median of {len(known):,} "
        f"requests is {usual:,.0f}; in {served[1] * 100:.0f} % of the slow windows and "
        f"{served[0] * 100:.0f} % of the usual ones"
    ]


def _share(one: Served | None, windows: int) -> float:
    return 0.0 if one is None else one.windows / max(windows, 1)


@dataclass(frozen=True)
class Pieces:
    """What is launched in pieces: times a window and mean time, before and after."""

    before: float
    before_ns: float
    after: float
    after_ns: float


def in_pieces(c: Comparison) -> Pieces | None:
    """Kernels that are launched more often and shorter, under their own name or others', as a
    product of fewer rows is; None where they were no large part of the work."""
    a, b = c.usual.kernels, c.slow.kernels
    cut = [
        name
        for name in a
        if name not in b
        or (
            b[name].times >= PIECES * a[name].times and b[name].mean_ns <= SHORTER * a[name].mean_ns
        )
    ]
    now = [one for name, one in b.items() if name not in a or name in cut]
    before, after = sum(a[name].times for name in cut), sum(one.times for one in now)
    work = sum(a[name].times * a[name].mean_ns for name in cut)
    if not before or not after or work < 0.2 * sum(one.times * one.mean_ns for one in a.values()):
        return None
    pieces = Pieces(before, work / before, after, sum(o.times * o.mean_ns for o in now) / after)
    more = after >= PIECES * before and pieces.after_ns <= SHORTER * pieces.before_ns
    return pieces if more else None


def more_of_them(c: Comparison) -> tuple[float, list[str]]:
    """(how much more time a window takes in kernels with more blocks in all, their names)."""
    a, b = c.usual.kernels, c.slow.kernels
    more = [
        name
        for name in b
        if name in a
        and b[name].times * b[name].blocks > 1.3 * a[name].times * a[name].blocks
        and b[name].mean_ns > SHORTER * a[name].mean_ns
    ]
    ns = sum(b[name].times * b[name].mean_ns - a[name].times * a[name].mean_ns for name in more)
    return ns, [shortened(name, 60) for name in more[:3]]


def _evidence(was: KernelGroup, now: KernelGroup) -> list[str]:
    return [
        f"{shortened(now.name, 60)}: "
        f"{now.mean_ns / 1e3:,.1f} us in place of {was.mean_ns / 1e3:,.1f}, "
        f"{now.times:,.1f} times in each",
        *_marks(now),
    ]


def _marks(one: KernelGroup) -> list[str]:
    marks = []
    if _conflicts(one) > 1:
        marks.append(f"{_conflicts(one):,.1f} bank conflicts a request")
    return marks


def _spilled(one: KernelGroup) -> float:
    return _number(one, _SPILLS)


def _conflicts(one: KernelGroup) -> float:
    return _number(one, _CONFLICTS)


def _number(one: KernelGroup, keys: tuple[str, ...]) -> float:
    for key in keys:
        value = one.attributes.get(key)
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
