"""`--target dry`: nothing is run; the schedule is written, the same bytes for the same plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.errors import UsageError
from spanlite.ids import trace_id_strings

from spanlite_replay.plan import Fate, Plan
from spanlite_replay.targets.base import I64, Outcome

CHUNK = 65_536
FATES = np.array([fate.name.lower() for fate in Fate], dtype=object)


class DryTarget:
    """Writes one row an event, also for those that the rate limit dropped or thinned.

    `out` None: JSON lines to `stream`; a file ending in `.parquet` or `.jsonl` otherwise.
    Dispatch times are no part of it, so it is deterministic.
    """

    name = "dry"

    def __init__(self, out: Path | None, stream: TextIO) -> None:
        if out is not None and out.suffix not in (".parquet", ".jsonl"):
            raise UsageError(f"--out '{out}' must end in .parquet or .jsonl")
        self.out, self.stream = out, stream

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Write the schedule; every event is supported."""
        if self.out is None:
            _write_lines(plan, self.stream)
            self.stream.flush()
        else:
            self._write_file(plan, self.out)
        return np.ones(len(events), dtype=np.bool_)

    def _write_file(self, plan: Plan, out: Path) -> None:
        # Under a draft name first: a schedule is there whole or not at all.
        draft = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            if out.suffix == ".parquet":
                _write_parquet(plan, draft)
            else:
                with draft.open("w", encoding="utf-8", newline="\n") as stream:
                    _write_lines(plan, stream)
            draft.replace(out)
        except OSError as error:
            raise UsageError(f"--out '{out}' cannot be written: {error.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)

    def launch(self, events: I64) -> None:
        """Do nothing, at the right time."""

    def drain(self) -> Outcome:
        """Nothing is ever pending."""
        facts: dict[str, int | str] = {} if self.out is None else {"schedule": str(self.out)}
        return Outcome(facts=facts)


def schedule(plan: Plan) -> Iterator[pa.Table]:
    """The plan as rows, in order of deadline, some at a time."""
    rec = plan.recording
    for first in range(0, len(plan), CHUNK):
        part = slice(first, first + CHUNK)
        row, trace = plan.row[part], plan.trace[part]
        distinct, index = np.unique(trace, return_inverse=True)
        words = trace_id_strings(rec.trace_low[distinct], rec.trace_high[distinct])
        picked = rec.table.select(["kind", "name", "service"]).take(pa.array(row))
        yield pa.table(
            {
                "event": np.arange(first, first + len(row)),
                "due_ns": plan.due_ns[part],
                "recorded_ns": plan.recorded_ns[part],
                "duration_ns": plan.duration_ns[part],
                "spans": plan.spans[part],
                "fate": pa.array(FATES[plan.fate[part]], pa.string()),
                "trace_id": pa.array(words, pa.string()).take(pa.array(index)),
                "span_id": rec.span_id[row].view(np.int64),
                **{name: picked.column(name).cast(pa.string()) for name in picked.column_names},
            }
        )


def _write_lines(plan: Plan, stream: TextIO) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    for table in schedule(plan):
        stream.write("".join(encode(row) + "\n" for row in table.to_pylist()))


def _write_parquet(plan: Plan, path: Path) -> None:
    writer: pq.ParquetWriter | None = None
    for table in schedule(plan):
        if writer is None:
            metadata = {b"spanlite.plan_digest": plan.digest().encode()}
            schema = table.schema.with_metadata(metadata)
            writer = pq.ParquetWriter(path, schema, compression="zstd")
        writer.write_table(table.cast(writer.schema))
    if writer is not None:
        writer.close()
