"""One pacer, in a process of its own: `python -m bench._pacers PACER --rate N --out FILE`.

Writes `due_ns` and `seen_ns` of every event, and the pacer's version, to an .npz file. `seen_ns`
is read by what the pacer calls when it sends an event. Each peer keeps a schedule of its own:

- `loadgen`: MLPerf LoadGen's Server scenario. Its schedule is Poisson: `std::mt19937` and
  `std::exponential_distribution`, which `poisson_ns` repeats to the nanosecond. When it began
  is not told, so the origin is where its best event has no error: its true error is this or
  more. All queries are completed at the end, so that completions cost it nothing.
- `aiperf`: its RequestRateStrategy, with the constant arrival pattern, its own timer and
  uvloop, as in its timing manager. What it hands credits to only notes the time.
- `asyncio`: `asyncio.sleep` until each deadline.
- `ours`: `spanlite_replay.pacing.pace`, with the same two schedules.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
LEAD_NS = 20_000_000
#: Of MLPerf's own settings (`schedule_rng_seed`), so that nobody chose it.
SEED = 16159082839903944936 % 2**32
PACERS = ("ours", "loadgen", "aiperf", "asyncio")
DISTRIBUTIONS = {"loadgen": "mlcommons-loadgen", "aiperf": "aiperf"}
PLAIN = {"ours": "ours", "asyncio": "asyncio.sleep"}


def constant_ns(rate: int, count: int) -> I64:
    """Deadlines evenly spaced, from 0."""
    return np.arange(count, dtype=np.int64) * 1_000_000_000 // rate


def poisson_ns(rate: int, count: int, seed: int = SEED) -> I64:
    """LoadGen's Server schedule: the sum of exponential gaps, each cut to whole ns; from 0."""
    bits = np.random.MT19937()
    bits._legacy_seeding(seed)  # as std::mt19937 is seeded
    low, high = bits.random_raw(2 * (count - 1)).reshape(-1, 2).T.astype(np.float64)
    uniform = np.minimum((low + high * 2.0**32) / 2.0**64, np.nextafter(1.0, 0.0))
    gaps = (-np.log(1.0 - uniform) / rate * 1e9).astype(np.int64)
    return np.concatenate(([0], np.cumsum(gaps)))


def pin(cpu: int | None) -> None:
    """Keep the calling thread on one core."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def room(count: int) -> I64:
    """For the times; every page of it is there already, so that no pacer waits for one."""
    return np.full(count, -1, dtype=np.int64)


def ours(due_ns: I64, cpu: int | None) -> I64:
    """Our loop, with a target that notes the time."""
    from spanlite_replay.pacing import Pacing, RealClock, pace, prepared

    seen = room(len(due_ns))
    view, now = seen.data, time.monotonic_ns

    def launch(first: int, last: int) -> None:
        at = now()
        if last - first == 1:
            view[first] = at
        else:
            seen[first:last] = at

    pin(cpu)
    clock = RealClock()
    pacing = prepared(Pacing(priority=True), clock)
    origin = clock.now_ns() + LEAD_NS
    pace(due_ns, launch, clock, pacing, origin)
    if not (seen > 0).all():
        raise SystemExit("the pacer lost an event")
    return seen - origin + int(due_ns[0])


def with_asyncio(due_ns: I64, cpu: int | None) -> I64:
    """The usual way: sleep until each deadline, then go."""
    seen = room(len(due_ns))
    pin(cpu)

    async def main() -> None:
        origin = time.monotonic_ns() + LEAD_NS
        for number, due in enumerate(due_ns.tolist()):
            ahead = due - (time.monotonic_ns() - origin)
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)
            seen[number] = time.monotonic_ns() - origin

    asyncio.run(main())
    return seen


def loadgen(rate: int, due_ns: I64, cpu: int | None) -> I64:
    """MLPerf LoadGen's Server scenario."""
    import mlperf_loadgen as lg

    count, sent, now = len(due_ns), 0, time.monotonic_ns
    seen, ids = room(count), np.zeros(count, dtype=np.uint64) + np.uint64(1)
    seen_view, ids_view = seen.data, ids.data

    def issue(samples: list[Any]) -> None:
        nonlocal sent
        at = now()
        if not sent:
            pin(cpu)  # the thread that sends; LoadGen's log has a thread of its own
        for sample in samples:
            seen_view[sent] = at
            ids_view[sent] = sample.id
            sent += 1

    def flush() -> None:
        done = ids[:sent].tolist()
        lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in done])

    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.schedule_rng_seed = float(rate), SEED
    settings.server_target_latency_ns = 10**12
    settings.server_coalesce_queries = True  # what is overdue goes out together, as ours does
    settings.min_duration_ms = 1
    settings.min_query_count = settings.max_query_count = count
    output = lg.LogOutputSettings()
    logs = lg.LogSettings()
    logs.enable_trace = False
    with tempfile.TemporaryDirectory() as folder:
        output.outdir, output.copy_summary_to_stdout = folder, False
        logs.log_output = output
        sut = lg.ConstructSUT(issue, flush)
        qsl = lg.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(sut, qsl, settings, logs, "")
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)
    if sent != count:
        raise SystemExit(f"LoadGen sent {sent} of {count}")
    return seen - int((seen - due_ns).min())


def aiperf(rate: int, count: int, cpu: int | None) -> I64:
    """aiperf's pacing loop at a constant rate."""
    import uvloop
    from aiperf.plugin.enums import ArrivalPattern
    from aiperf.timing.strategies.request_rate import RequestRateStrategy

    seen = room(count)
    view, now = seen.data, time.perf_counter_ns
    sent = 0

    async def issue(_turn: object) -> bool:
        nonlocal sent
        view[sent] = now()
        sent += 1
        return sent < count

    turn = object()
    session = SimpleNamespace(build_first_turn=lambda: turn)
    pattern = ArrivalPattern.CONSTANT

    async def main() -> int:
        lifecycle = SimpleNamespace(started_at_perf_ns=time.perf_counter_ns() + LEAD_NS)
        strategy = RequestRateStrategy(
            config=SimpleNamespace(
                arrival_pattern=pattern, request_rate=float(rate), arrival_smoothness=None
            ),
            conversation_source=SimpleNamespace(next=lambda: session),
            scheduler=None,
            stop_checker=SimpleNamespace(can_start_new_session=lambda: True),
            credit_issuer=SimpleNamespace(try_issue_credit=issue),
            lifecycle=lifecycle,
        )
        await strategy.setup_phase()
        await strategy.execute_phase()
        return int(lifecycle.started_at_perf_ns)

    pin(cpu)
    origin = uvloop.run(main())
    # Its first event is due one interval after the start.
    return seen - origin - 1_000_000_000 // rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pacer", choices=PACERS)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--schedule", choices=["constant", "poisson"], default="constant")
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    make = poisson_ns if args.schedule == "poisson" else constant_ns
    due_ns = make(args.rate, args.count)
    if args.pacer == "ours":
        seen = ours(due_ns, args.cpu)
    elif args.pacer == "asyncio":
        seen = with_asyncio(due_ns, args.cpu)
    elif args.pacer == "loadgen":
        seen = loadgen(args.rate, due_ns, args.cpu)
    else:
        seen = aiperf(args.rate, args.count, args.cpu)
    name = DISTRIBUTIONS.get(args.pacer)
    version = f"{name} {metadata.version(name)}" if name else PLAIN[args.pacer]
    np.savez(args.out, due_ns=due_ns, seen_ns=seen, version=np.array(version))


if __name__ == "__main__":
    main()
