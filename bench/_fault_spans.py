"""From rings to committed recordings: cut by time, with what was measured beside them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """What NVML said, in order of time. Arrays of shape (samples,)."""

    at_ns: I64
    sm_mhz: I64
    reasons: I64
    watts: npt.NDArray[np.float64]

    def around(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """The mean clock in a stretch of time, or of the sample next to it, and the reasons."""
        first, last = np.searchsorted(self.at_ns, [start_ns, end_ns]).tolist()
        if first == last:
            near = min(max(first, 1), len(self.at_ns)) - 1
            first, last = near, near + 1
        if not len(self.at_ns):
            return {}
        reasons = int(np.bitwise_or.reduce(self.reasons[first:last]))
        found: dict[str, Any] = {"gpu.sm_clock_mhz": int(self.sm_mhz[first:last].mean())}
        words = [word for bit, word in _THROTTLES.items() if reasons & bit]
        return found | ({"gpu.throttled": ",".join(words)} if words else {})


#: NVML's bits that mean trouble, as the daemon's sampler names them.
_THROTTLES = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


def spans_of_rings(folder: Path, attributes: Mapping[str, Any]) -> pa.Table:
    """The archive's `spans` table of all rings in a folder, as the daemon makes it."""
    from spanlite.archive import schema
    from spanlite.archive.writer import SpanFileBuilder
    from spanlite.codec import Batch, BatchView, encode_batch
    from spanlite.v1 import spanlite_pb2 as pb
    from spanlite_collectors.agent.source import RingOptions, RingSource
    from spanlite_collectors.sinks import MemorySink

    sink = MemorySink()
    with tempfile.TemporaryDirectory(dir=folder) as copies:  # what is read is deleted
        for path in folder.glob("*.ring"):
            shutil.copyfile(path, Path(copies) / path.name)
            (Path(copies) / path.name).chmod(0o600)
        options = RingOptions([Path(copies)], attributes=attributes)
        source = RingSource(sink, options, say=print)
        source.step()
        source.stop()
    if sink.dropped:
        print(json.dumps({"dropped": sink.dropped}), flush=True)
    builder = SpanFileBuilder()
    header = pb.BatchHeader(bucket=0, bucket_count=1, producer="bench")
    for batch, resource in sink.written:
        builder.add(BatchView(encode_batch(Batch(header, batch, resource))))
    words = [item.name for item in schema.SPANS if pa.types.is_dictionary(item.type)]
    parts = [
        pq.read_table(io.BytesIO(data), read_dictionary=words) for _, data, _ in builder.finish()
    ]
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def cut(table: pa.Table, process: int, begin_ns: int, end_ns: int) -> pa.Table:
    """One process's spans that begin in a stretch of time."""
    start = table.column("start_ns").to_numpy()
    mine = table.column("process_id").to_numpy() == process
    chosen = mine & (start >= begin_ns) & (start <= end_ns)
    return table.filter(pa.array(chosen)).combine_chunks()


def annotated(
    table: pa.Table, clocks: Clocks | None, counted: Callable[[str, bool], Mapping[str, Any]],
    change_ns: int,
) -> pa.Table:  # fmt: skip
    """With clocks on steps, and on kernels what was counted of them.

    `counted(name, after)`: facts of the kernel that runs under a name before or after the change.
    """
    kinds, names = (table.column(one).cast(pa.string()).to_pylist() for one in ("kind", "name"))
    texts = table.column("attributes").cast(pa.string()).to_pylist()
    start, duration = (table.column(one).to_pylist() for one in ("start_ns", "duration_ns"))
    for row, kind in enumerate(kinds):
        facts: Mapping[str, Any] = {}
        if kind == "step" and clocks is not None:
            facts = clocks.around(start[row], start[row] + duration[row])
        elif kind == "kernel":
            facts = counted(names[row], start[row] >= change_ns)
        if facts:
            known = json.loads(texts[row]) if texts[row] else {}
            texts[row] = json.dumps(known | dict(facts), separators=(",", ":"))
    place = table.schema.get_field_index("attributes")
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(texts, pa.string()).cast(field.type))


def write(table: pa.Table, path: Path, facts: Mapping[str, Any]) -> int:
    """As a file of the archive's `spans` with `facts` in its metadata; returns its bytes."""
    entries = {b"recording": json.dumps(facts, separators=(",", ":")).encode()}
    text = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    pq.write_table(
        table.sort_by("start_ns").replace_schema_metadata(entries), path,
        compression="zstd", compression_level=19, write_statistics=False,
        use_dictionary=text, column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    )  # fmt: skip
    return path.stat().st_size


def facts_of(path: Path) -> dict[str, Any]:
    """What `write` was told."""
    metadata = pq.read_schema(path).metadata or {}
    found: dict[str, Any] = json.loads(metadata.get(b"recording", b"{}"))
    return found


def read_conflicts(csv_text: str) -> list[tuple[str, float]]:
    """(kernel, bank conflicts a shared-memory request) of each launch that ncu counted."""
    totals: dict[str, tuple[str, list[float]]] = {}
    lines = [line for line in csv_text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (KeyError, ValueError, AttributeError):
            continue
        _, sums = totals.setdefault(row["ID"], (row["Kernel Name"], [0.0, 0.0]))
        sums["bank_conflicts" not in row["Metric Name"]] += value
    return [(name, conflicts / max(asked, 1.0)) for name, (conflicts, asked) in totals.values()]


def names_of(counts: Sequence[tuple[str, float]], variants: Sequence[str]) -> dict[str, float]:
    """Counts by variant: ncu saw one launch of each, in their order, and cupy's own in between."""
    ours = [count for name, count in counts if name.startswith(("custom_", "expert_", "decode_"))]
    return dict(zip(variants, ours, strict=False))
