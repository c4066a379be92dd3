"""What requests took: figures for the report, and spans for an archive."""

from __future__ import annotations

import io
import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.archive.layout import INCOMING, LEDGER, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.errors import UsageError
from spanlite.kinds import SpanKind
from spanlite.schema import LINK_TYPE, MINUS_ONE_IS_NONE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

from spanlite_replay.plan import Plan
from spanlite_replay.respan import REPLAY_ID_ATTRIBUTE, IdMap
from spanlite_replay.targets._http_client import OK, Seen, reasons
from spanlite_replay.targets._http_requests import Requests

I64 = npt.NDArray[np.int64]
_STATUS_OK, _STATUS_ERROR = 1, 2


@dataclass(frozen=True)
class Spread:
    """Percentiles of one figure, in ms."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, values_ns: I64) -> Spread | None:
        """None where there are no values."""
        if not len(values_ns):
            return None
        ms = values_ns / 1e6
        p50, p90, p95, p99, p999 = np.percentile(ms, [50, 90, 95, 99, 99.9]).tolist()
        return cls(len(ms), float(ms.mean()), p50, p90, p95, p99, p999, float(ms.max()))


@dataclass(frozen=True)
class RequestFigures:
    """All requests of a replay. Latencies count from the intended send time and are of those
    that succeeded; `send_error` is of all that were sent: headers written minus intended."""

    url: str
    model: str
    requests: int
    succeeded: int
    failed_why: dict[str, int]
    unsupported_why: dict[str, int]
    ttft_ms: Spread | None
    inter_token_ms: Spread | None
    per_output_token_ms: Spread | None
    latency_ms: Spread | None
    send_error_ms: Spread | None
    asked_per_s: float
    sent_per_s: float
    output_tokens_per_s: float
    #: Planned and counted by the server, of the requests for which it counted.
    tokens: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a terminal."""
        out = [
            f"  requests  {self.requests:,} sent to {self.url} as '{self.model}', "
            f"{self.succeeded:,} succeeded",
            f"  rate      {self.sent_per_s:,.2f} requests/s of {self.asked_per_s:,.2f} asked, "
            f"{self.output_tokens_per_s:,.1f} output tokens/s",
        ]
        for word, spread in (
            ("TTFT", self.ttft_ms),
            ("ITL", self.inter_token_ms),
            ("TPOT", self.per_output_token_ms),
            ("latency", self.latency_ms),
            ("sent", self.send_error_ms),
        ):
            if spread is not None:
                late = " late" if word == "sent" else ""
                out.append(
                    f"  {word:<9} p50 {spread.p50:,.3f} ms, p90 {spread.p90:,.3f} ms, "
                    f"p99 {spread.p99:,.3f} ms, p99.9 {spread.p999:,.3f} ms, "
                    f"max {spread.max:,.3f} ms{late}"
                )
        if self.tokens:
            out.append(
                f"  tokens    input {self.tokens['input_counted']:,} of "
                f"{self.tokens['input_planned']:,} planned, output "
                f"{self.tokens['output_counted']:,} of {self.tokens['output_planned']:,}"
            )
        out += [f"  left out  {count:,} {why}" for why, count in self.unsupported_why.items()]
        return out


def check_out(out: Path) -> None:
    """Before anything is sent. Raises SpanLiteError where results could not be written there."""
    if out.suffix not in (".parquet", ""):
        raise UsageError(f"--out '{out}' must end in .parquet, or be the folder of an archive")
    if out.suffix and not out.parent.is_dir():
        raise UsageError(f"--out '{out}' cannot be written: there is no folder '{out.parent}'")
    if not out.suffix and (out / LEDGER).exists():
        raise UsageError(
            f"--out '{out}' is an archive whose job keeps a ledger, and these spans would be in no "
            "balance: give a folder of their own"
        )


def joined(parts: list[Seen]) -> Seen:
    """What all clients saw, by request."""
    names = [name for name in Seen.__dataclass_fields__ if name not in ("how", "gaps_ns")]
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    how = [word for one in parts for word in one.how]
    gaps = [gap for one in parts for gap in np.split(one.gaps_ns, np.cumsum(one.gaps_of)[:-1])]
    order = np.argsort(columns["request"], kind="stable")
    in_order = [gaps[at] for at in order.tolist()]
    return Seen(
        **{name: values[order] for name, values in columns.items()},
        how=[how[at] for at in order.tolist()],
        gaps_ns=np.concatenate(in_order) if in_order else np.empty(0, np.int64),
    )


def succeeded(seen: Seen) -> npt.NDArray[np.bool_]:
    """Which requests ended well, shape (sent,)."""
    return np.array([one == OK for one in seen.how], dtype=np.bool_)


def figures(seen: Seen, requests: Requests, origin_ns: int, url: str, model: str) -> RequestFigures:
    """The figures of what was sent; the gaps of failed requests are in those between tokens."""
    good = succeeded(seen)
    intended = origin_ns + requests.due_ns[seen.request]
    planned_in, planned_out = (
        getattr(requests, name)[seen.request] for name in ("input_tokens", "output_tokens")
    )
    spoke = good & (seen.first_ns > 0)
    counted = good & (seen.input_tokens >= 0) & (seen.output_tokens >= 0)
    tokens = np.where(seen.output_tokens >= 0, seen.output_tokens, seen.pieces)
    several = spoke & (tokens > 1)
    per_token = (seen.last_ns - seen.first_ns)[several] / (tokens[several] - 1)
    went = seen.sent_ns > 0
    return RequestFigures(
        url=url,
        model=model,
        requests=len(seen.request),
        succeeded=int(good.sum()),
        failed_why=reasons(seen.how),
        unsupported_why=requests.why_not,
        ttft_ms=Spread.of((seen.first_ns - intended)[spoke]),
        inter_token_ms=Spread.of(seen.gaps_ns),
        per_output_token_ms=Spread.of(per_token),
        latency_ms=Spread.of((seen.end_ns - intended)[good]),
        send_error_ms=Spread.of((seen.sent_ns - intended)[went]),
        asked_per_s=_rate(intended),
        sent_per_s=_rate(seen.sent_ns[went]),
        output_tokens_per_s=_tokens_per_s(seen, tokens, good),
        tokens={
            "input_planned": int(planned_in[counted].sum()),
            "input_counted": int(seen.input_tokens[counted].sum()),
            "output_planned": int(planned_out[counted].sum()),
            "output_counted": int(seen.output_tokens[counted].sum()),
        }
        if counted.any()
        else {},
    )


def _rate(times_ns: I64) -> float:
    if len(times_ns) < 2:
        return 0.0
    span_ns = int(times_ns.max() - times_ns.min())
    return (len(times_ns) - 1) * 1e9 / span_ns if span_ns else 0.0


def _tokens_per_s(seen: Seen, tokens: I64, good: npt.NDArray[np.bool_]) -> float:
    if not good.any():
        return 0.0
    span_ns = int(seen.end_ns[good].max() - seen.sent_ns[good].min())
    return float(tokens[good].sum()) * 1e9 / span_ns if span_ns > 0 else 0.0


@dataclass(frozen=True)
class Spans:
    """The requests as spans (SPAN_SCHEMA), each with a link to the one it is a replay of."""

    spans: pa.RecordBatch
    service: list[str]  # of each
    replay_id: str
    url: str

    def files(self, bucket_count: int) -> list[tuple[str, int, bytes]]:
        """(hour folder, bucket, Parquet bytes) as the archive has them."""
        low, high = (self.spans.column(f"trace_id_{half}").to_numpy() for half in ("low", "high"))
        bucket = bucket_of(low, high, bucket_count)
        service = np.array(self.service, dtype=object)
        out = []
        for number in np.unique(bucket).tolist():
            builder = SpanFileBuilder()
            for name in sorted({*service[bucket == number]}):
                rows = np.flatnonzero((bucket == number) & (service == name))
                builder.add(self._view(rows, name, number, bucket_count))
            out += [(hour, number, data) for hour, data, _ in builder.finish()]
        return out

    def _view(self, rows: I64, service: str, bucket: int, bucket_count: int) -> BatchView:
        header = pb.BatchHeader(
            bucket=bucket, bucket_count=bucket_count, producer=f"replay/{self.replay_id}"
        )
        resource = {
            "service.name": service,
            "server.address": self.url,
            REPLAY_ID_ATTRIBUTE: self.replay_id,
        }
        return BatchView(encode_batch(Batch(header, self.spans.take(pa.array(rows)), resource)))

    def write(self, out: Path) -> None:
        """One `.parquet` file, or an archive in a folder. Raises SpanLiteError."""
        if out.suffix == ".parquet":
            tables = [pq.read_table(io.BytesIO(data)) for _, _, data in self.files(1)]
            _write(out, pa.concat_tables(tables) if tables else None)
            return
        archive = Archive.create(out)
        for hour, bucket, data in self.files(archive.bucket_count):
            folder = archive.root / INCOMING / hour / f"bucket={bucket}"
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".replay-{uuid.uuid4().hex}"
            draft.write_bytes(data)
            draft.replace(folder / f"part-{draft.name[1:]}.parquet")


def _write(out: Path, table: pa.Table | None) -> None:
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        if table is not None:
            pq.write_table(table, draft, compression="zstd")
            draft.replace(out)
    except OSError as error:
        raise UsageError(f"--out '{out}' cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def spans_of_requests(
    plan: Plan, requests: Requests, seen: Seen, intended_ns: I64, to_unix_ns: int, replay_id: str,
    url: str,
) -> Spans:  # fmt: skip
    """`intended_ns`: of each sent request, on CLOCK_MONOTONIC; `to_unix_ns` makes it Unix time."""
    rec, row = plan.recording, requests.row[seen.request]
    old_low, old_high = rec.trace_low[rec.trace[row]], rec.trace_high[rec.trace[row]]
    ids, old_span = IdMap.of(replay_id), rec.span_id[row]
    low, high = ids.traces(old_low, old_high)
    good = succeeded(seen)
    links = pa.StructArray.from_arrays(
        [pa.array(old_low), pa.array(old_high), pa.array(old_span)], fields=list(LINK_TYPE)
    )
    picked = rec.table.select(["name", "service"]).take(pa.array(row))
    known = {
        "trace_id_low": low,
        "trace_id_high": high,
        "span_id": ids.spans(old_span),
        "start_ns": intended_ns + to_unix_ns,
        "duration_ns": np.maximum(seen.end_ns - intended_ns, 0),
        "kind": np.full(len(row), int(SpanKind.REQUEST), np.uint8),
        "name": picked.column("name").cast(pa.string()).combine_chunks().dictionary_encode(),
        "status": np.where(good, _STATUS_OK, _STATUS_ERROR).astype(np.uint8),
        "attributes": pa.array(_attributes(requests, seen, intended_ns)).dictionary_encode(),
        "links": pa.ListArray.from_arrays(pa.array(np.arange(len(row) + 1, dtype=np.int32)), links),
    }
    arrays = [_column(item, known.get(item.name), len(row)) for item in SPAN_SCHEMA]
    spans = pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)
    service = [word or "" for word in picked.column("service").cast(pa.string()).to_pylist()]
    return Spans(spans, service, replay_id, url)


def _column(item: pa.Field, values: Any, count: int) -> pa.Array:
    if values is None:
        if item.nullable:
            return pa.nulls(count, item.type)
        none = -1 if item.name in MINUS_ONE_IS_NONE else 0
        return pa.array(np.full(count, none), item.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values if values.type == item.type else values.cast(item.type)
    return pa.array(values, item.type)


def _attributes(requests: Requests, seen: Seen, intended_ns: I64) -> list[str]:
    out = []
    ends = np.cumsum(seen.gaps_of)
    for at, number in enumerate(seen.request.tolist()):
        gaps = seen.gaps_ns[ends[at] - seen.gaps_of[at] : ends[at]]
        told: dict[str, Any] = {
            "gen_ai.usage.input_tokens": int(seen.input_tokens[at]),
            "gen_ai.usage.output_tokens": int(seen.output_tokens[at]),
            "gen_ai.request.max_tokens": int(requests.output_tokens[number]),
            "spanlite.replay.input_tokens": int(requests.input_tokens[number]),
            "spanlite.replay.send_error_ns": _since(seen.sent_ns[at], intended_ns[at]),
            "spanlite.replay.ttft_ns": _since(seen.first_ns[at], intended_ns[at]),
            "spanlite.replay.last_token_ns": _since(seen.last_ns[at], intended_ns[at]),
            "http.response.status_code": int(seen.status[at]) or None,
            "error.type": None if seen.how[at] == OK else seen.how[at],
        }
        if len(gaps):
            told["spanlite.replay.inter_token_p50_ns"] = int(np.median(gaps))
            told["spanlite.replay.inter_token_max_ns"] = int(gaps.max())
        said = {key: value for key, value in told.items() if value is not None and value != -1}
        out.append(json.dumps(said, separators=(",", ":")))
    return out


def _since(moment_ns: np.int64, intended_ns: np.int64) -> int | None:
    return int(moment_ns - intended_ns) if moment_ns else None
