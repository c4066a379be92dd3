"""How many steps each covered step stands for, by kinds of steps.

Windows cover one step in hundreds, so by chance they hold more or fewer of the rare, long steps
than ran, and the shares of those steps' kernels would be off by as much. But of every step its name
and duration are known. So steps are told apart by name and, where their durations fall into clearly
separate groups, by group; a covered step then stands for the steps of its own kind
(post-stratification: W. G. Cochran, Sampling Techniques, 3rd edition, section 5A.9). A kind that a
window missed waits for the next one that covers it, so no step is forgotten.

Inside a window a step's own duration is a poor witness: recording slows it, some by far more than
others, and a few slow steps of a common kind would outnumber a rare one's. How much it started on
the GPU, and how long that ran, hardly changes. So its duration is taken to be that of the covered
steps with about as much work, by their median.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spanlite_collectors.agent.layout import RECORDS, RecordType
from spanlite_collectors.agent.ring import Records

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

#: Bins of a histogram of durations: so many to each doubling, from 1 us on (to about 18 minutes).
_BINS_A_DOUBLING = 16
_BINS = 30 * _BINS_A_DOUBLING
_KERNEL = np.array([1, 2, 3, 2, 1]) / 9
#: Steps that the shape of the histogram is known from; older ones count half after so many.
_LEAST, _MOST = 200, 40_000
#: A valley between two groups is so much lower than either peak, and each has such a part.
_VALLEY, _LEAST_PART = 0.25, 0.005
_MOST_GROUPS = 6
#: More names than this are names that count something: those have one kind together.
_MOST_NAMES = 16
_REST = -1
#: Steps that may end at the same moment, on as many threads.
_AT_ONCE = 16
#: A covered step's duration is judged by so many others at most that started as much work as it
#: did, and for as long, to this part.
_LIKE, _ALIKE = 9, 0.10
#: A kind of which so many covered steps were to be expected, and none came, has no work of its own.
_EXPECTED = 20.0
#: Steps kept as records; at level `ranges` no window closes for hours.
_MOST_FRESH = 1 << 16
_FIELDS = ("records", "name")


def bin_of(duration_ns: F64 | I64) -> I64:
    """The bin of each duration, shape (n,)."""
    doublings = np.log2(np.maximum(np.asarray(duration_ns, np.float64) / 1e3, 1.0))
    return np.asarray(np.minimum(doublings * _BINS_A_DOUBLING, _BINS - 1), np.int64)


def valleys(histogram: F64) -> list[int]:
    """Where a histogram of durations falls into groups: the first bin of each but the first."""
    total = histogram.sum()
    if total < _LEAST:
        return []
    smooth = np.convolve(histogram, _KERNEL, "same")
    cuts: list[int] = []
    while len(cuts) < _MOST_GROUPS - 1:
        edges = [0, *sorted(cuts), _BINS]
        found = [
            cut
            for low, high in pairwise(edges)
            if (cut := _valley(histogram, smooth, low, high, _LEAST_PART * total)) is not None
        ]
        if not found:
            break
        cuts.append(min(found, key=lambda cut: float(smooth[cut])))
    return sorted(cuts)


def _valley(histogram: F64, smooth: F64, low: int, high: int, least: float) -> int | None:
    """The bin in the middle of the deepest valley between two bins, None where there is none."""
    part = smooth[low:high]
    left, right = np.maximum.accumulate(part), np.maximum.accumulate(part[::-1])[::-1]
    below = np.cumsum(histogram[low:high]) - histogram[low:high]
    enough = (below >= least) & (histogram[low:high].sum() - below >= least)
    depth = np.where(enough, part / np.maximum(np.minimum(left, right), 1e-12), np.inf)
    if not len(depth) or depth.min() > _VALLEY:
        return None
    lowest = np.flatnonzero(depth == depth.min())
    run = lowest[: 1 + np.flatnonzero(np.diff(lowest, append=_BINS * 2) > 1)[0]]
    return low + int(run[len(run) // 2])


@dataclass
class _Name:
    """Steps of one name."""

    #: Of steps that no window touched.
    usual: F64 = field(default_factory=lambda: np.zeros(_BINS))
    #: Steps that no covered one stands for yet.
    waiting: F64 = field(default_factory=lambda: np.zeros(_BINS))
    #: How many of those that wait were to be expected in windows that have closed since.
    expected: F64 = field(default_factory=lambda: np.zeros(_BINS))
    #: Of the last covered ones: ns, launches, and ns that these ran on the GPU.
    inside: deque[list[int]] = field(default_factory=lambda: deque(maxlen=400))

    def learn(self, duration_ns: I64) -> None:
        """Steps outside of windows."""
        self.usual += np.bincount(bin_of(duration_ns), minlength=_BINS)
        if self.usual.sum() > _MOST:
            self.usual *= 0.5

    def cover(self, duration_ns: I64, work: I64) -> F64:
        """Steps inside of windows; what they would have taken outside, shape (n,)."""
        self.inside.extend(np.column_stack([duration_ns, work]).tolist())
        inside, *of_inside = np.array(self.inside, np.float64).reshape(-1, 3).T
        alike = _alike(work.astype(np.float64), inside, np.stack(of_inside, 1))
        known = np.where(work[:, 0] > 0, alike, duration_ns)
        return np.asarray(known - self._slower_ns(inside))

    def _slower_ns(self, inside: F64) -> float:
        """By how much a window slows its steps: so that they fit the others best.

        It costs each kernel about the same, so what is added is about the same for short and long
        steps.
        """
        if not len(inside) or not self.usual.any():
            return 0.0
        smooth = np.convolve(self.usual, _KERNEL, "same")
        likely = np.log(smooth / smooth.sum() + 1e-4)
        tries = np.linspace(0, float(np.median(inside)) / 2, 101)
        fits = likely[bin_of((inside - tries[:, None]).ravel())].reshape(len(tries), -1).sum(axis=1)
        return float(tries[int(np.argmax(fits))])


def _alike(work: F64, inside: F64, of_inside: F64) -> F64:
    """The median duration of the steps whose work is most like each one's, shape (n,).

    `work`: of each step, shape (n, 2). `inside`, `of_inside`: the durations of those to choose
    from, these among them, and their work, shapes (m,) and (m, 2).
    """
    apart = np.abs(np.log1p(work)[:, None] - np.log1p(of_inside)).max(axis=2)
    nearest = np.argsort(apart, axis=1, kind="stable")[:, :_LIKE]
    like = np.take_along_axis(apart, nearest, axis=1) <= _ALIKE
    return np.asarray(np.nanmedian(np.where(like, inside[nearest], np.nan), axis=1), np.float64)


@dataclass(frozen=True)
class Steps:
    """Records of steps, and the number of each one's name. Shape (n,) both."""

    records: Records
    name: I64

    @classmethod
    def nothing(cls) -> Steps:
        """None."""
        return cls(np.empty(0, RECORDS[RecordType.STEP]), np.empty(0, np.int64))

    @classmethod
    def join(cls, parts: Sequence[Steps]) -> Steps:
        """One after the other."""
        return cls(*(np.concatenate([getattr(part, of) for part in parts]) for of in _FIELDS))

    @property
    def duration_ns(self) -> I64:
        """Shape (n,)."""
        return np.asarray(self.records["end_ns"] - self.records["start_ns"], np.int64)

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Which lie in a window as a whole, shape (n,)."""
        return np.asarray(self.records["covered"] != 0)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Steps:
        """Some of them."""
        return Steps(self.records[chosen], self.name[chosen])

    def by_name(self) -> Iterator[tuple[int, Steps]]:
        """The steps of each name."""
        for number in np.unique(self.name).tolist():
            yield number, self.where(self.name == number)


class StepKinds:
    """The steps of one process as they come, and the weights of covered ones."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, _Name] = {}
        #: The number of the first step that the last window did not count.
        self._counted = 0
        #: Steps of which it is not known yet which window closes after them.
        self._fresh: list[Steps] = []
        #: How many since the last window are kept as records no more.
        self._early = 0

    def take(self, records: Records, names: Mapping[int, str]) -> None:
        """Steps as they come; the text of each `name` in them."""
        texts, inverse = np.unique(records["name"], return_inverse=True)
        numbers = np.array([self._number(names.get(text, "")) for text in texts.tolist()], np.int64)
        self._fresh.append(Steps(records, numbers[inverse.ravel()]))
        if sum(len(part.records) for part in self._fresh) > _MOST_FRESH:
            self._let_wait()

    def _let_wait(self) -> None:
        """Steps outside of windows begin to wait before the next window closes."""
        fresh = Steps.join(self._fresh)
        outside = np.asarray(fresh.records["window"] == 0)
        self._wait(fresh.where(outside), 1.0)
        self._early += int(outside.sum())
        self._fresh = [fresh.where(~outside)]

    def _number(self, text: str) -> int:
        name = re.sub(r"[\d\W]+$", "", text)
        if name not in self._numbers and len(self._numbers) < _MOST_NAMES:
            self._numbers[name] = len(self._numbers)
        return self._numbers.get(name, _REST)

    def close(
        self, window: int, close_ns: int, steps: int, seen: int, work_of: Callable[[Records], I64]
    ) -> Mapping[int, float]:
        """A window that covered `steps` has closed, `seen` ended since the last: what its steps,
        by their number, stand for. Steps that ended before `close_ns` must have been taken.

        `work_of`: of records of covered steps, how many launches of theirs started something on the
        GPU and for how many ns that ran, shape (n, 2); zeros where that is not known.

        Empty where the records of its steps are missing.
        """
        early, self._early = self._early, 0
        past = self._until(close_ns, seen)
        covered = past.covered
        # The ring may have dropped some steps: those that came stand for them too.
        each = max(1.0, (seen - early) / max(len(past.records), 1))
        self._wait(past.where(~covered), each)
        weights: dict[int, float] = {}
        inside = past.where(covered)
        work = work_of(inside.records)
        for number, part in inside.by_name():
            name = self._names.setdefault(number, _Name())
            usual_ns = name.cover(part.duration_ns, work[inside.name == number])
            name.waiting += each * np.bincount(bin_of(usual_ns), minlength=_BINS)
            own = part.records["window"] == window
            if steps and own.any():
                weights |= self._weigh(name, part.where(own), usual_ns[own])
        # Empty without steps too.
        scale = len(weights) / max(steps, 1)
        return {number: round(max(1.0, weight * scale), 6) for number, weight in weights.items()}

    def skip(self, close_ns: int, seen: int) -> None:
        """A window has closed all steps of which stand for themselves."""
        self._early = 0
        past = self._until(close_ns, seen)
        self._wait(past.where(~past.covered), 1.0)

    def _until(self, close_ns: int, seen: int) -> Steps:
        """Steps that had ended when a window closed; they leave `_fresh`."""
        fresh = Steps.join([Steps.nothing(), *self._fresh])
        number = fresh.records["number"].astype(np.int64)
        ended = number[fresh.records["end_ns"] <= close_ns]
        if not len(ended):
            return Steps.nothing()
        # What ended as the window closed was counted before or after it: `seen` tells.
        by_time = int(ended.max()) + 1
        by_count = self._counted + seen
        self._counted = by_count if abs(by_count - by_time) <= _AT_ONCE else by_time
        before = number < self._counted
        self._fresh = [fresh.where(~before)]
        return fresh.where(before)

    def _wait(self, steps: Steps, each: float) -> None:
        """Steps begin to wait for a covered one of their kind, each for so many."""
        for number, part in steps.by_name():
            name = self._names.setdefault(number, _Name())
            name.learn(part.duration_ns[part.records["window"] == 0])
            name.waiting += each * np.bincount(bin_of(part.duration_ns), minlength=_BINS)

    def _weigh(self, name: _Name, covered: Steps, usual_ns: F64) -> dict[int, float]:
        """What covered steps of a name stand for: all of their kind that waited."""
        cuts = np.array(valleys(name.usual), np.int64)
        kind_of = np.searchsorted(cuts, np.arange(_BINS), side="right")
        kinds = kind_of[bin_of(usual_ns)]
        name.expected += len(kinds) * name.waiting / max(name.waiting.sum(), 1e-12)
        covers = np.unique(kinds)
        out: dict[int, float] = {}
        for kind in np.unique(kind_of).tolist():
            own = kind_of == kind
            if kind not in covers:
                if name.expected[own].sum() < _EXPECTED:
                    continue
                kind = covers[np.argmin(np.abs(covers - kind))]
            mine = covered.records["number"][kinds == kind].tolist()
            for number in mine:
                out[number] = out.get(number, 0.0) + float(name.waiting[own].sum()) / len(mine)
            name.waiting[own] = name.expected[own] = 0
        return out
