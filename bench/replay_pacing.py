"""How late replay dispatches, against a pacer made of asyncio.sleep, in turns on one machine.

Each rate is paced for some seconds in rounds; all events of all rounds count, so a stall of
the machine is in the figure. `ratio` is the peer's figure over ours: above 1, we are closer.
`late_wakes_pct` says how busy the machine was meanwhile: the share of 1 ms sleeps that
returned more than 1 ms late.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from spanlite_replay.pacing import Paced, Pacing, RealClock, pace, prepared
from spanlite_replay.timing import Timing

from bench._report import emit

I64 = npt.NDArray[np.int64]
RATES = (1_000, 10_000, 100_000)
GOAL_P99_US = 100.0
GOAL_RATE = 10_000
#: Ten times below what the goal allows an event to be late, in each second.
GOAL_DRIFT_US_PER_S = 10.0
LEAD_NS = 10_000_000


@dataclass
class Seen:
    """Deadlines and dispatches of one pacer at one rate, round after round."""

    due: list[I64] = field(default_factory=list)
    paced: list[Paced] = field(default_factory=list)

    def add(self, due_ns: I64, paced: Paced) -> None:
        """Keep one round."""
        self.due.append(due_ns)
        self.paced.append(paced)

    def p99_us(self) -> float:
        """Of all events of all rounds."""
        pairs = zip(self.paced, self.due, strict=True)
        return float(np.percentile(np.concatenate([p.observed_ns - d for p, d in pairs]), 99) / 1e3)

    def drift(self) -> float:
        """The median of the rounds, each with its own sign."""
        rounds = [Timing.of(d, p) for d, p in zip(self.due, self.paced, strict=True)]
        return float(np.median([one.drift_us_per_s for one in rounds if one is not None]))


def ours(due_ns: I64) -> Paced:
    """Our loop, with a target that counts what it is given."""
    launched = np.zeros(len(due_ns), dtype=np.int64)

    def launch(first: int, last: int) -> None:
        launched[first:last] += 1

    clock = RealClock()
    pacing = prepared(Pacing(priority=True), clock)
    paced = pace(due_ns, launch, clock, pacing, clock.now_ns() + LEAD_NS)
    if not (launched == 1).all():
        raise SystemExit("the pacer lost an event or sent one twice")
    return paced


def with_asyncio(due_ns: I64) -> Paced:
    """The usual way: sleep until each deadline, then go."""
    observed = np.empty(len(due_ns), dtype=np.int64)

    async def main() -> None:
        shift = int(due_ns[0]) - (time.monotonic_ns() + LEAD_NS)
        for number, due in enumerate(due_ns.tolist()):
            ahead = due - (time.monotonic_ns() + shift)
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)
            observed[number] = time.monotonic_ns() + shift

    asyncio.run(main())
    return Paced(observed)


def late_wakes_pct(count: int = 300) -> float:
    late = 0
    for _ in range(count):
        before = time.monotonic_ns()
        time.sleep(0.001)
        late += time.monotonic_ns() - before > 2_000_000
    return 100 * late / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    quick = parser.parse_args().quick
    rounds, seconds = (3, 2) if quick else (5, 6)
    busy = late_wakes_pct()
    for rate in RATES:
        due_ns = np.arange(rate * seconds, dtype=np.int64) * (1_000_000_000 // rate)
        mine, peer = Seen(), Seen()
        for _ in range(rounds):
            mine.add(due_ns, ours(due_ns))
            peer.add(due_ns, with_asyncio(due_ns))
        p99, other = mine.p99_us(), peer.p99_us()
        is_goal = rate == GOAL_RATE
        emit(
            f"replay.dispatch_error_us.p99.{rate}",
            p99,
            "us",
            goal=GOAL_P99_US if is_goal else None,
            peer="asyncio.sleep",
            ratio=other / p99,
            late_wakes_pct=round(busy, 1),
        )
        emit(
            f"replay.drift_us_per_s.{rate}",
            mine.drift(),
            "us/s",
            goal=GOAL_DRIFT_US_PER_S if is_goal else None,
            peer="asyncio.sleep",
        )


if __name__ == "__main__":
    main()
