"""Rules of whole windows: what waits, streams, copies, hosts and requests explain.

Each takes a comparison and yields (cause, ns of a window that it explains, evidence).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spanlite_replay.bottlenecks.bounds import Bound, Reason
from spanlite_replay.bottlenecks.compared import Comparison
from spanlite_replay.bottlenecks.kernel_rules import Found, in_pieces, kernels, more_of_them

#: So much less runs at once where streams no longer do.
LESS_AT_ONCE = 0.95
#: As many waits more in a window, or half as many again.
MORE_WAITS = 1.5
#: So many times the launches are a cause of their own: a step without the graph that others have.
MORE_LAUNCHES = 1.5


def _measuring(c: Comparison) -> Found:
    yield (
        "profiler",
        c.more(Reason.MEASURING, Reason.LOADING),
        ["the profiler's own work, or CUDA loading modules, lay on the path"],
    )


def _fragmented(c: Comparison) -> Found:
    """The same operations in more, shorter launches."""
    parts = in_pieces(c)
    if parts is None:
        return
    a, b = c.usual, c.slow
    yield (
        "fragmented_batch",
        c.difference_ns,
        [
            f"{b.kernel_times:,.0f} kernels a {c.unit} in place of {a.kernel_times:,.0f}",
            f"what ran {parts.before:,.0f} times {parts.before_ns / 1e3:,.1f} us runs "
            f"{parts.after:,.0f} times {parts.after_ns / 1e3:,.1f}",
        ],
    )


def _more_work(c: Comparison) -> Found:
    """The same kernels, more of them or on larger grids."""
    more_ns, names = more_of_them(c)
    a, b = c.usual, c.slow
    yield (
        "more_work",
        more_ns,
        [
            f"{', '.join(names)}: more launches or larger grids; "
            f"{b.kernel_times:,.0f} kernels a {c.unit} in place of {a.kernel_times:,.0f}"
        ],
    )


def _stray_sync(c: Comparison) -> Found:
    a, b = c.usual, c.slow
    if b.waits < max(a.waits + 0.5, a.waits * MORE_WAITS):
        return
    yield (
        "stray_sync",
        # Waits also keep streams from running side by side.
        c.more(Bound.SYNC, Bound.LAUNCH, Bound.HOST) + _less_at_once(c),
        [f"{b.waits:.1f} waits for the device a {c.unit} in place of {a.waits:.1f}"],
    )


def _less_at_once(c: Comparison) -> float:
    """How much longer the device is busy than by kernels that take more, were none of that
    hidden, and by copies."""
    busier = c.slow.busy_ns - c.usual.busy_ns
    return max(busier - c.slower_kernels_ns - max(c.more(Bound.COPY), 0.0), 0.0)


def _serialised(c: Comparison) -> Found:
    """As much work, less of it at once, and the device no more idle than before."""
    a, b = c.usual, c.slow
    if b.parallel > LESS_AT_ONCE * a.parallel or b.idle_ns - a.idle_ns > b.busy_ns - a.busy_ns:
        return
    yield (
        "serialised_streams",
        _less_at_once(c),
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
            f"{b.copy_bytes / 1e6:,.2f} MB copied a {c.unit} in place of {a.copy_bytes / 1e6:,.2f}",
            f"at {b.copy_rate:,.2f} GB/s in place of {a.copy_rate:,.2f}",
        ],
    )


def _queue(c: Comparison) -> Found:
    yield "queueing", c.more(Bound.QUEUE), ["its streams ran other steps' work first"]


def _starved(c: Comparison) -> Found:
    """The device waits for launches; also where the host comes back late from its waits. From the
    launch on it is no longer the host's. A host that launches far more often is no busier than
    that: a cause of its own."""
    a, b = c.usual, c.slow
    late = (Reason.HOST, Reason.CALL, Reason.LAUNCH_CALL, Reason.SYNC_RETURN)
    waited = [float(np.sum([one.reason_ns[reason] for reason in late])) for one in (b, a)]
    often = b.launches > MORE_LAUNCHES * max(a.launches, 1.0)
    yield (
        "more_launches" if often else "launch_starvation",
        c.more(*late),
        [
            f"the device waited for the host {waited[0] / 1e3:,.0f} us a {c.unit} in place of "
            f"{waited[1] / 1e3:,.0f}",
            f"{b.launches:,.0f} launches a {c.unit} in place of {a.launches:,.0f}",
        ],
    )


RULES: tuple[Callable[[Comparison], Found], ...] = (
    _measuring, _fragmented, _more_work, _stray_sync, _serialised, _copies, kernels, _queue,
    _starved,
)  # fmt: skip
TITLES = {
    "profiler": "the measuring itself, or modules loaded late",
    "fragmented_batch": "the same work in more, smaller kernels",
    "more_work": "more work in each",
    "stray_sync": "the host waits for the device more often",
    "serialised_streams": "streams that ran side by side run one after the other",
    "copy_engine": "more time in copies",
    "queueing": "waiting behind other steps' work",
    "launch_starvation": "the device waits for a busy host",
    "more_launches": "the host launches far more often",
    "noisy_neighbour": "another process uses the same GPU",
    "contention": "kernels slowed by other streams",
    "clock_throttled": "all kernels slower alike: a lower clock",
    "slow_kernel": "one kernel got slower",
    "gemm_regression": "a matrix product got slower",
    "register_spill": "a kernel spills registers",
    "bank_conflicts": "a kernel has shared-memory bank conflicts",
    "long_tail_request": "one request does far more than the others",
}
