"""How many steps each covered step stands for, by kinds of steps.

Windows cover one step in hundreds, so by chance they hold more or fewer of the rare, long steps
than ran, and the shares of those steps' kernels would be off by as much. But of every step its name
and duration are known. So steps are told apart by name and, where their durations fall into clearly
separate groups, by group; a covered step then stands for the steps of its own kind
(post-stratification: W. G. Cochran, Sampling Techniques, 3rd edition, section 5A.9). A kind that a
window missed waits for the next one that covers it, so no step is forgotten.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
    #: Durations of the last covered ones, in ns.
    inside: deque[int] = field(default_factory=lambda: deque(maxlen=400))

    def learn(self, duration_ns: I64) -> None:
        """Steps outside of windows."""
        self.usual += np.bincount(bin_of(duration_ns), minlength=_BINS)
        if self.usual.sum() > _MOST:
            self.usual *= 0.5

    def slower_ns(self) -> float:
        """By how much a window slows its steps: so that they fit the others best.

        It costs each kernel about the same, so what is added is about the same for short and long
        steps.
        """
        if not self.inside or not self.usual.any():
            return 0.0
        smooth = np.convolve(self.usual, _KERNEL, "same")
        likely = np.log(smooth / smooth.sum() + 1e-4)
        inside = np.array(self.inside, np.float64)
        tries = np.linspace(0, float(np.median(inside)) / 2, 101)
        fits = likely[bin_of((inside - tries[:, None]).ravel())].reshape(len(tries), -1).sum(axis=1)
        return float(tries[int(np.argmax(fits))])


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

    def close(self, window: int, close_ns: int, steps: int, seen: int) -> Mapping[int, float]:
        """A window that covered `steps` has closed, `seen` ended since the last: what its steps,
        by their number, stand for. Steps that ended before `close_ns` must have been taken.

        Empty where the records of its steps are missing.
        """
        early, self._early = self._early, 0
        past = self._until(close_ns, seen)
        mine = past.where(past.covered & (past.records["window"] == window))
        # The ring may have dropped some steps: those that came stand for them too.
        self._wait(past, max(1.0, (seen - early) / max(len(past.records), 1)))
        if not len(mine.records) or not steps:
            return {}
        weights: dict[int, float] = {}
        for name, part in mine.by_name():
            weights |= self._weigh(self._names[name], part)
        scale = len(mine.records) / steps
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
            name.inside.extend(part.duration_ns[part.covered].tolist())
            usual_ns = part.duration_ns - np.where(part.covered, name.slower_ns(), 0.0)
            name.waiting += each * np.bincount(bin_of(usual_ns), minlength=_BINS)

    def _weigh(self, name: _Name, covered: Steps) -> dict[int, float]:
        """What covered steps of a name stand for: all of their kind that waited."""
        cuts = np.array(valleys(name.usual), np.int64)
        kind_of = np.searchsorted(cuts, np.arange(_BINS), side="right")
        kinds = kind_of[bin_of(covered.duration_ns - name.slower_ns())]
        out: dict[int, float] = {}
        for kind in np.unique(kinds).tolist():
            mine = covered.records["number"][kinds == kind].tolist()
            out |= dict.fromkeys(mine, float(name.waiting[kind_of == kind].sum()) / len(mine))
            name.waiting[kind_of == kind] = 0
        return out
