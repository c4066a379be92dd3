"""Goes through a space: builds ahead on all cores, times one at a time, keeps each."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spanlite.errors import ServiceError

from spanlite_analytics.lab.scan.build import BuildError, Built, build
from spanlite_analytics.lab.scan.deadline import Deadline
from spanlite_analytics.lab.scan.rank import ranks, timed
from spanlite_analytics.lab.scan.runner import DeviceLostError, Runner
from spanlite_analytics.lab.scan.search import strategy_of
from spanlite_analytics.lab.scan.spec import Config, Spec
from spanlite_analytics.lab.scan.store import Journal, Row

#: Called with the configurations done, all of them, and the latest.
Told = Callable[[int, int, Row | None], None]
#: Builds a configuration; raises BuildError.
Maker = Callable[[Spec, Config], Built]


@dataclass(frozen=True, slots=True)
class Done:
    """How a scan ended."""

    total: int
    #: Of these, from an earlier run.
    kept: int
    #: Run now.
    new: int


def scan(
    spec: Spec,
    journal: Journal,
    runner: Runner | None,
    told: Told,
    jobs: int | None = None,
    make: Maker = build,
) -> Done:
    """Try what the strategy asks for, until it asks no more. Without a runner: the theory alone.

    Raises ServiceError where the GPU's context is lost, and ends the process where a kernel does
    not end within the file's deadline; the journal then holds the culprit, and the next run goes
    on after it.
    """
    strategy = strategy_of(spec)
    jobs = jobs or os.cpu_count() or 1
    kept = len(journal.rows)
    told(kept, strategy.total, None)
    with ThreadPoolExecutor(jobs, thread_name_prefix="spanlite-build") as pool:
        try:
            while asked := strategy.ask(_times(journal)):
                # All are handed to the compilers at once; they are timed in this order.
                futures = [pool.submit(make, spec, config) for config in asked]
                for config, future in zip(asked, futures, strict=True):
                    row = _tried(spec, config, future, runner, journal)
                    journal.add(row)
                    told(len(journal.rows), strategy.total, row)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return Done(strategy.total, kept, len(journal.rows) - kept)


def _times(journal: Journal) -> dict[str, float | None]:
    return {
        key: timed(row.times_ns).median_ns if row.times_ns else None
        for key, row in journal.rows.items()
    }


def _tried(
    spec: Spec, config: Config, future: Future[Built], runner: Runner | None, journal: Journal
) -> Row:
    built = None
    try:
        built = future.result()
        if runner is None:
            return Row(config, built.theory, (), 0, built.flops, built.moved_bytes, {})
        with Deadline(spec.deadline_s, config, journal):
            got = runner.measure(built, spec.repeats)
        return Row(
            config,
            got.theory,
            got.times_ns,
            got.launches,
            built.flops,
            built.moved_bytes,
            got.clocks,
        )
    except BuildError as error:
        theory = built.theory if built else None
        return Row(config, theory, (), 0, None, None, {}, str(error))
    except DeviceLostError as error:
        row = Row(config, None, (), 0, None, None, {}, f"broke the context: {error}")
        journal.add(row)
        raise ServiceError(
            f"{row.key} broke the GPU's context ({error}); the same command goes on after it"
        ) from None


def table(spec: Spec, journal: Journal) -> list[dict[str, Any]]:
    """Rows for people and for Parquet: the timed by rank, then the rest in the order tried.

    Times in ns, TFLOP/s and GB/s from the file's `flops` and `bytes`.
    """
    rows = list(journal.rows.values())
    good = [row for row in rows if row.times_ns]
    found = [timed(row.times_ns) for row in good]
    placed = sorted(zip(ranks(found), found, good, strict=True), key=lambda item: item[1].median_ns)
    made = [_line(row, rank, t.median_ns, t.error_ns) for rank, t, row in placed]
    rest = sorted((r for r in rows if not r.times_ns), key=lambda r: -_occupancy(r))
    return made + [_line(row, None, None, None) for row in rest]


def _occupancy(row: Row) -> float:
    return row.theory.occupancy if row.theory else -1.0


def _line(row: Row, rank: int | None, median: float | None, error: float | None) -> dict[str, Any]:
    theory = row.theory
    return {
        "rank": rank,
        **row.config,
        "median_ns": median,
        "noise_ns": error,
        "tflops": row.flops / median / 1e3 if row.flops and median else None,
        "gbytes_per_s": row.moved_bytes / median if row.moved_bytes and median else None,
        "occupancy": theory.occupancy if theory else None,
        "blocks_per_sm": theory.blocks_per_sm if theory else None,
        "limited_by": theory.limited_by if theory else None,
        "registers": theory.registers if theory else None,
        "spill_bytes": theory.spill_bytes if theory else None,
        "shared_bytes": theory.shared_bytes if theory else None,
        "repeats": len(row.times_ns) or None,
        "launches_a_repeat": row.launches or None,
        "times_ns": list(row.times_ns),
        "sm_mhz": row.clocks.get("sm_mhz"),
        "memory_mhz": row.clocks.get("memory_mhz"),
        "temperature_c": row.clocks.get("temperature_c"),
        "power_w": row.clocks.get("power_w"),
        "throttled": row.clocks.get("throttled") or None,
        "error": row.error or None,
    }
