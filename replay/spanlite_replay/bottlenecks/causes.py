"""What made slow windows slow: two groups of windows compared, causes ranked by the time they
explain. Where nothing differs by more than chance, there is no cause."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import Bound, Reason
from spanlite_replay.bottlenecks.groups import Group, KernelGroup
from spanlite_replay.bottlenecks.recorded import ancestor
from spanlite_replay.bottlenecks.report import Analysis

#: So many windows a comparison needs on each side.
FEWEST = 3
#: A cause explains at least this share of the difference, and of a usual window.
SHARE_OF_DIFFERENCE, SHARE_OF_WINDOW = 0.15, 0.02
#: A kernel is slower where its mean grew by this.
KERNEL_SLOWER = 1.08
#: Nearly all kernels slower by nearly the same factor: it is not the kernels.
UNIFORM_SHARE, UNIFORM_SPREAD = 0.7, 0.25
#: A request this many times the median, among at least so many.
LONG_TAIL, FEWEST_REQUESTS = 3.0, 4
#: and of the next longest: lengths of requests have a tail by nature, an outlier stands alone.
STANDS_ALONE = 2.0
#: Durations of one kernel vary by so much more (deviation by mean): something interrupts them.
RESTLESS = 0.25
_GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|xmma|_mm_|matmul", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|flash|fmha|sdpa", re.IGNORECASE)
_SPILLS = ("local_memory_per_thread", "local memory per thread", "local_bytes_per_thread")
_CONFLICTS = ("shared_bank_conflicts", "shared bank conflicts", "bank_conflicts_per_request")


@dataclass(frozen=True)
class Cause:
    """One cause, the time that it explains, and what speaks for it."""

    name: str
    title: str
    explained_ns: float  # of all slow windows
    share: float  # of the difference between slow and usual windows
    evidence: list[str]


@dataclass(frozen=True)
class Comparison:
    """Slow windows against usual ones."""

    usual: Group
    slow: Group

    @property
    def difference_ns(self) -> float:
        """How much longer a slow window takes."""
        return self.slow.length_ns - self.usual.length_ns

    def more(self, *which: Bound | Reason) -> float:
        """How much more of some bounds or reasons a slow window has."""
        total = 0.0
        for one in which:
            table = "bound_ns" if isinstance(one, Bound) else "reason_ns"
            total += float(getattr(self.slow, table)[one] - getattr(self.usual, table)[one])
        return total

    @property
    def is_significant(self) -> bool:
        """Enough windows, enough of a difference, and more than chance."""
        a, b = self.usual, self.slow
        if min(a.windows, b.windows) < FEWEST:
            return False
        error = math.sqrt(a.spread_ns**2 / a.windows + b.spread_ns**2 / b.windows)
        return self.difference_ns > max(3 * error, 0.05 * a.length_ns)


def find_long_tail(analysis: Analysis) -> list[Cause]:
    """A request that takes several times as long as the others, with as many more steps."""
    rec, windows = analysis.rec, analysis.rec.windows
    request = np.flatnonzero(rec.kind == SpanKind.REQUEST)
    if windows.unit != "step" or len(request) < FEWEST_REQUESTS:
        return []
    place = np.full(len(rec.start), -1, np.int64)
    place[request] = np.arange(len(request))
    source, goal = rec.work.link_from, rec.work.link_to
    linked = np.isin(source, windows.span) & (place[goal] >= 0)
    within = ancestor(rec.parent, rec.kind == SpanKind.REQUEST, rec.parent[windows.span])
    served = np.concatenate((place[goal[linked]], place[within[within >= 0]]))
    steps = np.bincount(served, minlength=len(request)).astype(np.float64)
    took = (rec.end - rec.start)[request].astype(np.float64)
    usual, usual_steps = float(np.median(took)), float(np.median(steps))
    worst = int(took.argmax())
    if took[worst] < LONG_TAIL * usual or steps[worst] < LONG_TAIL * max(usual_steps, 1):
        return []
    if took[worst] < STANDS_ALONE * np.sort(took)[-2]:
        return []
    name = rec.names[int(rec.name[request[worst]])]
    said = (
        f"{name}: {took[worst] / 1e6:,.1f} ms and {steps[worst]:,.0f} steps; the median of "
        f"{len(request):,} requests {usual / 1e6:,.1f} ms and {usual_steps:,.0f}"
    )
    title = TITLES["long_tail_request"]
    return [Cause("long_tail_request", title, float(took[worst] - usual), 1.0, [said])]


def find_causes(comparison: Comparison) -> list[Cause]:
    """Causes, the one that explains most first; none where the groups do not differ."""
    if not comparison.is_significant:
        return []
    difference = comparison.difference_ns
    floor = max(SHARE_OF_DIFFERENCE * difference, SHARE_OF_WINDOW * comparison.usual.length_ns)
    found: dict[str, Cause] = {}
    for rule in _RULES:
        for name, explained, evidence in rule(comparison):
            excluded = _EXCLUDES.get(name, ())
            if explained < floor or any(other in found for other in excluded):
                continue
            share = min(explained / difference, 1.0)
            total = share * difference * comparison.slow.windows
            if name not in found or total > found[name].explained_ns:
                found[name] = Cause(name, TITLES[name], total, share, evidence)
    return sorted(found.values(), key=lambda cause: -cause.explained_ns)


Found = Iterator[tuple[str, float, list[str]]]


def _measuring(c: Comparison) -> Found:
    yield (
        "profiler",
        c.more(Reason.MEASURING, Reason.LOADING),
        ["the profiler's own work, or CUDA loading modules, lay on the path"],
    )


def _fragmented(c: Comparison) -> Found:
    """More launches for the same work."""
    a, b = c.usual, c.slow
    if b.kernel_times < 1.5 * a.kernel_times or b.blocks > 1.5 * max(a.blocks, 1):
        return
    yield (
        "fragmented_batch",
        c.difference_ns,
        [
            f"{b.kernel_times:,.0f} kernels a window in place of {a.kernel_times:,.0f}",
            f"{b.blocks / max(b.kernel_times, 1):,.0f} blocks a kernel in place of "
            f"{a.blocks / max(a.kernel_times, 1):,.0f}",
        ],
    )


def _more_work(c: Comparison) -> Found:
    """The same kernels, more of them or larger ones."""
    a, b = c.usual, c.slow
    if b.blocks < 1.3 * max(a.blocks, 1):
        return
    yield (
        "more_work",
        c.more(Bound.COMPUTE, Bound.MEMORY, Bound.LAUNCH, Bound.HOST),
        [f"{b.blocks:,.0f} blocks a window in place of {a.blocks:,.0f}"],
    )


def _stray_sync(c: Comparison) -> Found:
    a, b = c.usual, c.slow
    if b.waits < a.waits + 0.5:
        return
    yield (
        "stray_sync",
        # Waits also keep streams from running side by side.
        c.more(Bound.SYNC, Bound.LAUNCH, Bound.HOST) + max(b.busy_ns - b.work_ns / a.parallel, 0),
        [f"{b.waits:.1f} waits for the device a window in place of {a.waits:.1f}"],
    )


def _serialised(c: Comparison) -> Found:
    a, b = c.usual, c.slow
    if b.parallel > 0.85 * a.parallel or b.work_ns > 1.3 * a.work_ns:
        return
    yield (
        "serialised_streams",
        b.busy_ns - b.work_ns / a.parallel,
        [
            f"{b.parallel:.2f} things ran at once in place of {a.parallel:.2f}, on "
            f"{b.streams} and {a.streams} streams",
        ],
    )


def _copies(c: Comparison) -> Found:
    a, b = c.usual, c.slow
    yield (
        "copy_engine",
        c.more(Bound.COPY),
        [
            f"{b.copy_bytes / 1e6:,.2f} MB copied a window in place of {a.copy_bytes / 1e6:,.2f}",
            f"at {b.copy_rate:,.2f} GB/s in place of {a.copy_rate:,.2f}",
        ],
    )


def _queue(c: Comparison) -> Found:
    yield "queueing", c.more(Bound.QUEUE), ["its streams ran other steps' work first"]


def _starved(c: Comparison) -> Found:
    a, b = c.usual, c.slow
    extra = c.more(Reason.HOST, Reason.CALL, Reason.LAUNCH_CALL, Reason.LAUNCH)
    yield (
        "launch_starvation",
        extra,
        [
            f"the device waited for the host {(b.bound_ns[Bound.HOST]) / 1e3:,.0f} us a window in "
            f"place of {(a.bound_ns[Bound.HOST]) / 1e3:,.0f}",
            f"{b.launches:,.0f} launches a window, {a.launches:,.0f} before",
        ],
    )


def _kernels(c: Comparison) -> Found:
    """Slower kernels: all of them alike, or some, or others in their place."""
    a, b = c.usual.kernels, c.slow.kernels
    # Kernels that nobody waited for explain nothing, however slow.
    most = c.more(Bound.COMPUTE, Bound.MEMORY, Bound.CONTENTION, Bound.QUEUE)
    both = [(a[name], b[name]) for name in a if name in b]
    new = [b[name] for name in b if name not in a]
    gone = sum(a[name].times * a[name].mean_ns for name in a if name not in b)
    excess = sum((now.mean_ns - was.mean_ns) * now.times for was, now in both)
    if both and _is_uniform(both) and excess > sum(one.times * one.mean_ns for one in new) - gone:
        yield from _all_slower(c, both, excess, most)
        return
    for was, now in both:
        if now.mean_ns > KERNEL_SLOWER * was.mean_ns:
            lost = (now.mean_ns - was.mean_ns) * now.times
            yield _one_slower(was, now), min(lost, most), _evidence(was, now)
    taken = sum(one.times * one.mean_ns for one in new) - gone
    if new and taken > 0:
        longest = max(new, key=lambda one: one.times * one.mean_ns)
        yield (
            _one_slower(None, longest),
            min(taken, most),
            [
                f"{_short(longest.name)} ran, which usual windows have not: "
                f"{longest.times:,.1f} times {longest.mean_ns / 1e3:,.1f} us",
                *_marks(longest),
            ],
        )


def _is_uniform(both: list[tuple[KernelGroup, KernelGroup]]) -> bool:
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


def _all_slower(
    c: Comparison, both: list[tuple[KernelGroup, KernelGroup]], excess: float, most: float
) -> Found:
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
            [*said, f"another process ran {foreign / 1e3:,.0f} us a window on the same GPU"],
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
    else:
        yield "clock_throttled", excess, [*said, "and evenly so, as with a lower clock"]


def _one_slower(was: KernelGroup | None, now: KernelGroup) -> str:
    if _spilled(now) > (_spilled(was) if was else 0):
        return "register_spill"
    if _conflicts(now) > 2 * (_conflicts(was) if was else 0) + 1:
        return "bank_conflicts"
    if was and now.accompanied > was.accompanied + 0.3:
        return "contention"
    is_product = _GEMM.search(now.name) and not _ATTENTION.search(now.name)
    return "gemm_regression" if is_product else "slow_kernel"


def _evidence(was: KernelGroup, now: KernelGroup) -> list[str]:
    return [
        f"{_short(now.name)}: {now.mean_ns / 1e3:,.1f} us in place of {was.mean_ns / 1e3:,.1f}, "
        f"{now.times:,.1f} times a window",
        *_marks(now),
    ]


def _marks(one: KernelGroup) -> list[str]:
    marks = []
    if _spilled(one):
        marks.append(f"{_spilled(one):,.0f} bytes of local memory a thread")
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


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"


TITLES = {
    "profiler": "the measuring itself, or modules loaded late",
    "fragmented_batch": "the same work in more, smaller kernels",
    "more_work": "more work in a window",
    "stray_sync": "the host waits for the device more often",
    "serialised_streams": "streams that ran side by side run one after the other",
    "copy_engine": "more time in copies",
    "queueing": "waiting behind other steps' work",
    "launch_starvation": "the device waits for a busy host",
    "noisy_neighbour": "another process uses the same GPU",
    "contention": "kernels slowed by other streams",
    "clock_throttled": "all kernels slower alike: a lower clock",
    "slow_kernel": "one kernel got slower",
    "gemm_regression": "a matrix product got slower",
    "register_spill": "a kernel spills registers",
    "bank_conflicts": "a kernel has shared-memory bank conflicts",
    "long_tail_request": "one request does far more than the others",
}
#: A cause that another one already explains is not named beside it.
_EXCLUDES = {
    "more_work": ("fragmented_batch",),
    "stray_sync": ("fragmented_batch",),
    "serialised_streams": ("stray_sync",),
    "launch_starvation": ("fragmented_batch", "stray_sync", "serialised_streams"),
    "clock_throttled": ("fragmented_batch",),
    "slow_kernel": ("fragmented_batch",),
    "gemm_regression": ("fragmented_batch",),
}
_RULES: tuple[Callable[[Comparison], Found], ...] = (
    _measuring, _fragmented, _more_work, _stray_sync, _serialised, _copies, _kernels, _queue,
    _starved,
)  # fmt: skip
