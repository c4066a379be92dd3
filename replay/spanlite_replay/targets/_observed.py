"""The table of what a target observed, for targets that run device work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.errors import UsageError

from spanlite_replay.plan import Plan
from spanlite_replay.targets.base import I64, OBSERVED_SCHEMA, PLAN_DIGEST_KEY


def check_out(out: Path | None) -> Path | None:
    """Raises UsageError where `--out` is not a Parquet file."""
    if out is not None and out.suffix != ".parquet":
        raise UsageError(f"--out '{out}' must end in .parquet")
    return out


def observed_table(
    plan: Plan, at: I64, start_ns: I64, end_ns: I64, metadata: Mapping[bytes, bytes]
) -> pa.Table:
    """OBSERVED_SCHEMA of the spans at these positions of the plan's work; times of shape (at,)."""
    work, rec = plan.work, plan.recording
    assert work is not None
    order = np.argsort(start_ns, kind="stable")
    at, start_ns, end_ns = at[order], start_ns[order], end_ns[order]
    row, length = work.row[at], work.duration_ns[at]
    if plan.settings.unit == "span":
        length = plan.duration_ns[work.event[at]]
    columns = [
        rec.trace_low[rec.trace[row]],
        rec.trace_high[rec.trace[row]],
        rec.span_id[row],
        work.start_ns[at],
        work.start_ns[at] + length,
        start_ns,
        end_ns,
    ]
    told = {**metadata, PLAN_DIGEST_KEY: plan.digest().encode()}
    schema = OBSERVED_SCHEMA.with_metadata(told)
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)


def write_observed(observed: pa.Table, out: Path) -> None:
    """Write it, whole or not at all. Raises UsageError where it cannot be written."""
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        pq.write_table(observed, draft, compression="zstd")
        draft.replace(out)
    except OSError as error:
        raise UsageError(f"--out '{out}' cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
