"""One bucket of traces: from messages to files, with whole traces decided exactly once.

`accept` takes a message, `flush` decides what is due and gives files. Everything that a
restart needs is in the store (see `restore`); what is kept in memory is computed from it.
Time is passed in, so that tests are in charge of it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.archive.layout import INCOMING, KERNEL_MINUTES, LEDGER, TRACES
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import trace_hash
from spanlite.codec import BatchView, is_batch, read_header
from spanlite.errors import WireError
from spanlite.v1 import spanlite_pb2 as pb

from spanlite_pipeline import decisions, dedup, lite, pending, tables
from spanlite_pipeline.frames import DEAD_LETTER, Message, Output, file_output, table_output
from spanlite_pipeline.ledger import Entry, LedgerCounts, count_arrival
from spanlite_pipeline.lite import FULL, LiteBuffer
from spanlite_pipeline.pending import Arrival, PendingBatch
from spanlite_pipeline.rollups import RollUps
from spanlite_pipeline.sampling import Budget, RuleSet
from spanlite_pipeline.settings import BucketSettings
from spanlite_pipeline.state import Store
from spanlite_pipeline.summaries import ROW, Grouping, Rows, Words, add_roots, for_rules, merge
from spanlite_pipeline.summaries import summarise as summarise_batch

Array = npt.NDArray[Any]
_META = struct.Struct("<q")  # number of the last batch that a flush has counted
_META_KEY, _BUDGET_KEY, _COUNTS_KEY = "m", "g", "k"
NO_POLICY = "none"
#: One file is cut off at so many rows, to bound memory while a bucket is flushed.
MAX_FILE_ROWS = 1 << 20


def fingerprint(rules: str) -> int:
    """Tells whether stored matches belong to these rules."""
    return int.from_bytes(hashlib.blake2b(rules.encode(), digest_size=8).digest())


class Bucket:
    """The state and the work of one bucket."""

    def __init__(
        self, bucket: int, store: Store, settings: BucketSettings, rules: RuleSet | None = None
    ) -> None:
        self.bucket, self._store, self._settings = bucket, store, settings
        self._rules = rules or RuleSet.from_yaml(settings.rules)
        self._fingerprint = fingerprint(settings.rules)
        self._policies = [*self._rules.policy_names, NO_POLICY]  # -1: the last
        self._dedup = dedup.Deduplicator(store, settings.dedup_ttl_ms)
        self._cache = decisions.DecisionCache(
            store, settings.decision_ttl_ms, settings.decision_limit
        )
        self._budget = Budget(settings.bucket_count)
        self._lites = LiteBuffer(store, bucket, settings.bucket_count)
        self._pending: dict[int, PendingBatch] = {}
        self._open: list[Rows] = []  # the first is merged, the others came since
        self._rollups, self._counts, self._refused = RollUps(), LedgerCounts(), LedgerCounts()
        self._names, self._senders = Words(), Words()
        self._counted = self._last = -1  # numbers of batches
        self._pending_bytes = self._fresh_spans = 0
        self._open_before = 0  # spans that were open after the last flush
        self.spans_in = self.spans_out = 0  # since this object was made
        self._restore()

    @property
    def busy(self) -> bool:
        """Whether a flush would have anything to do, now or later."""
        return bool(self._pending or self._refused or len(self._lites))

    @property
    def open_spans(self) -> int:
        """Spans that wait for a decision."""
        return sum(batch.open_spans for batch in self._pending.values())

    # -- a message comes in ------------------------------------------------------------

    def accept(self, message: Message, now_ms: int) -> list[Output]:
        """Take one message. Gives dead letters, and files where limits force a flush."""
        if message.value and not is_batch(message.value):
            self._lites.add(message)
            return self._take_lites(now_ms) if len(self._lites) >= FULL else []
        spans, raw = 0, message.value
        try:
            if not raw:
                raise WireError("empty", "a message without a value")
            header = read_header(raw)
            spans = header.span_count
            self._check(header)
            lost = self._dedup.accept(header, now_ms) if header.producer else 0
            if lost is None:
                self._refuse("duplicate", spans)
                return []
            view = self._view(raw, header, lost)
        except WireError as error:
            self._refuse(error.reason, spans)
            return [(DEAD_LETTER, self._dead_letter(message, error, now_ms))]
        self._admit(view, raw, lost, now_ms)
        return self.flush(now_ms) if self._over_limits() else []

    def _take_lites(self, now_ms: int) -> list[Output]:
        """Make batches of the messages of one span each; gives dead letters."""
        if not len(self._lites):
            return []
        batches, bad = self._lites.take()
        for raw in batches:
            self._admit(BatchView(raw), raw, 0, now_ms)
        for _, error in bad:
            self._refuse(error.reason, 0)
        return [(DEAD_LETTER, self._dead_letter(m, error, now_ms)) for m, error in bad]

    def _view(self, raw: bytes, header: pb.BatchHeader, lost: int) -> BatchView:
        try:
            return BatchView(raw)
        except WireError:
            # It did arrive, and no batch in the store will say so.
            count_arrival(self._refused, header, lost)
            raise

    def _check(self, header: pb.BatchHeader) -> None:
        if (header.bucket, header.bucket_count) != (self.bucket, self._settings.bucket_count):
            raise WireError(
                "wrong_bucket",
                f"bucket {header.bucket} of {header.bucket_count}, expected {self.bucket} "
                f"of {self._settings.bucket_count}",
            )

    def _refuse(self, reason: str, spans: int) -> None:
        """Count what is dropped at the door; these counts have no batch in the store."""
        job = self._settings.job
        self._refused.add(Entry("pipeline", job, "in", "", self.bucket), spans, 1)
        self._refused.add(Entry("pipeline", job, "dropped", reason, self.bucket), spans, 1)
        self._store.put(_COUNTS_KEY, self._refused.to_bytes())
        self.spans_in += spans

    def _dead_letter(self, message: Message, error: WireError, now_ms: int) -> bytes:
        letter = pb.DeadLetter(
            reason=error.reason,
            detail=error.detail,
            topic=self._settings.topic,
            partition=message.partition,
            offset=message.offset,
            key=str(self.bucket).encode(),
            payload=message.value,
            received_ns=now_ms * 1_000_000,
        )
        return bytes(letter.SerializeToString())

    def _admit(self, view: BatchView, raw: bytes, lost: int, now_ms: int) -> None:
        grouping = Grouping(view)
        matches = self._match(view, grouping)
        self._last += 1
        arrival = Arrival(now_ms, lost, self._fingerprint, matches)
        entry = pending.pack_entry(arrival, raw)
        batch = self._take(self._last, entry, view, grouping)
        self._store.put(batch.key, entry)
        self._summarise(batch, view, grouping, arrival, len(raw))
        self._count_batch(view, lost)
        self.spans_in += view.count

    def _match(self, view: BatchView, grouping: Grouping) -> npt.NDArray[np.uint64]:
        bits = self._rules.span_matches(view, self._budget)
        out = np.zeros(grouping.traces, np.uint64)
        if view.count and bits.any():
            out[grouping.present] = grouping.reduce(np.bitwise_or, bits)
        return out

    def _take(self, number: int, entry: bytes, view: BatchView, grouping: Grouping) -> PendingBatch:
        counts = np.zeros(grouping.traces, np.int64)
        counts[grouping.present] = grouping.counts
        batch = PendingBatch(number, entry, view, counts)
        self._pending[number] = batch
        self._pending_bytes += len(entry)
        return batch

    def _summarise(
        self, batch: PendingBatch, view: BatchView, grouping: Grouping, arrival: Arrival, size: int
    ) -> None:
        """Add the batch's unresolved traces to the open ones."""
        if view.count == 0:
            return
        rows = summarise_batch(view, grouping, arrival.matches, size)
        add_roots(rows, view, grouping, self._names)
        rows["sender"] = self._senders.code(_sender(view))
        rows["seen_ms"], rows["batch"] = arrival.seen_ms, batch.number
        self._fresh_spans += view.count
        unresolved = ~batch.resolved[grouping.present]
        self._open.append(rows if unresolved.all() else rows[unresolved])

    def _count_batch(self, view: BatchView, lost: int) -> None:
        """Count a batch that no flush has counted yet."""
        count_arrival(self._counts, view.header, lost)
        self._rollups.add(view, *_sender(view))
        job = self._settings.job
        self._counts.add(Entry("pipeline", job, "in", "", self.bucket), view.count, 1)

    def _over_limits(self) -> bool:
        limits = self._settings
        if self._pending_bytes > limits.max_pending_bytes:
            return True
        if self._fresh_spans <= limits.max_trace_spans:
            return False
        # Many spans: only now is it worth looking whether they are of one trace.
        rows = merge([np.empty(0, ROW), *self._open])
        largest = int(rows["spans"].max(initial=0))
        self._open, self._fresh_spans = [rows], largest
        return largest > limits.max_trace_spans

    # -- a restart ---------------------------------------------------------------------

    def _restore(self) -> None:
        entries = dict(self._store.items())
        if _META_KEY in entries:
            self._counted = self._last = _META.unpack(entries[_META_KEY])[0]
        if _BUDGET_KEY in entries:
            self._budget = Budget.from_bytes(entries[_BUDGET_KEY])
        if _COUNTS_KEY in entries:
            self._refused = LedgerCounts.from_bytes(entries[_COUNTS_KEY])
        for key, value in entries.items():
            if key.startswith(dedup.PREFIX):
                self._dedup.restore(key, value)
            elif key.startswith(lite.PREFIX):
                self._lites.restore(key, value)
        self._cache.restore({k: v for k, v in entries.items() if k.startswith(decisions.PREFIX)})
        numbers = [int(k[len(pending.PREFIX) :]) for k in entries if k.startswith(pending.PREFIX)]
        for number in sorted(numbers):
            bits = entries.get(f"{pending.RESOLVED_PREFIX}{number}")
            self._restore_batch(number, entries[f"{pending.PREFIX}{number}"], bits)

    def _restore_batch(self, number: int, entry: bytes, bits: bytes | None) -> None:
        raw = pending.unpack_raw(entry)
        view = BatchView(raw, checked=True)
        grouping = Grouping(view)
        arrival = pending.unpack_arrival(entry, grouping.traces)
        batch = self._take(number, entry, view, grouping)
        batch.restore(bits)
        self._last = max(self._last, number)
        fresh = number > self._counted
        if fresh or arrival.fingerprint != self._fingerprint:
            # Also counts names for `rare` again, as the budget is from the last flush.
            matches = self._match(view, grouping)
            if arrival.fingerprint != self._fingerprint:
                arrival.matches = matches
        self._summarise(batch, view, grouping, arrival, len(raw))
        if fresh:
            self._count_batch(view, arrival.lost)
        else:
            self._open_before += batch.open_spans

    # -- a flush -----------------------------------------------------------------------

    def flush(self, now_ms: int, drain: bool = False) -> list[Output]:
        """Decide traces that are due (all of them in a drain), and write what is decided."""
        outputs = self._take_lites(now_ms)
        rows = merge([np.empty(0, ROW), *self._open])
        hashes = trace_hash(rows["low"], rows["high"])
        known, weights, policies = self._cache.find(hashes)
        due = ~known & (self._due(rows, now_ms) | drain)
        verdict = self._rules.decide(for_rules(rows[due]), self._budget, now_ms * 1_000_000)
        weights[due], policies[due] = np.where(verdict.kept, verdict.weight, 0.0), verdict.policy
        done = known | due
        self._cache.add(hashes[done], weights[done], policies[done], now_ms)
        outputs += self._write(hashes[done], weights[done])
        outputs += self._trace_rows(rows, weights, policies, known, due)
        outputs += self._other_rows(now_ms)
        self._keep_open(rows[~done])
        self._forget(now_ms)
        return outputs

    def _due(self, rows: Rows, now_ms: int) -> npt.NDArray[np.bool_]:
        limits = self._settings
        due = rows["seen_ms"] <= now_ms - limits.decision_wait_ms
        due |= rows["spans"] > limits.max_trace_spans
        if self._pending_bytes > limits.max_pending_bytes:
            # Traces that began in the older half of the batches, so that half is freed.
            numbers = np.array(list(self._pending))
            due |= rows["batch"] <= np.median(numbers)
        return np.asarray(due, np.bool_)

    def _write(self, hashes: Array, weights: Array) -> list[Output]:
        """Files with the kept spans of these traces; resolved batches leave the state."""
        before = self.open_spans
        order = np.argsort(hashes)
        hashes, weights = hashes[order], weights[order]
        builder, outputs, kept = SpanFileBuilder(), [], 0
        for batch in list(self._pending.values()):
            first_time = batch.number > self._counted
            each = batch.resolve(hashes, weights) if len(hashes) else None
            if each is not None and (each > 0).any():
                kept += batch.write(builder, each)
                if builder.rows >= MAX_FILE_ROWS:
                    outputs += self._files(builder)
            if each is not None or first_time:
                self._save(batch, first_time)
        outputs += self._files(builder)
        self._count_flush(before, kept)
        return outputs

    def _save(self, batch: PendingBatch, first_time: bool) -> None:
        batch.save(self._store, first_time)
        if batch.resolved.all():
            del self._pending[batch.number]
            self._pending_bytes -= len(batch.entry)

    def _files(self, builder: SpanFileBuilder) -> list[Output]:
        outputs = []
        for folder, content, rows in builder.finish():
            path = f"{INCOMING}/{folder}/bucket={self.bucket}"
            outputs.append(file_output(path, content))
            self._counts.add(Entry("archive", INCOMING, "out", "", self.bucket), rows, 1)
        return outputs

    def _count_flush(self, before: int, kept: int) -> None:
        after, job, bucket = self.open_spans, self._settings.job, self.bucket
        counts = self._counts
        counts.add(Entry("pipeline", job, "out", "", bucket), kept)
        counts.add(Entry("archive", INCOMING, "in", "", bucket), kept)
        dropped = before - after - kept
        counts.add(Entry("pipeline", job, "dropped", "sampled_out", bucket), dropped)
        self.spans_out += kept
        # What is open now, less what was open after the flush before.
        counts.add(Entry("pipeline", job, "open", "", bucket), after - self._open_before)
        self._open_before = after

    def _trace_rows(
        self, rows: Rows, weights: Array, policies: Array, known: Array, due: Array
    ) -> list[Output]:
        outputs = []
        for late, pick in ((False, due), (True, known)):
            if pick.any():
                table = tables.traces_table(
                    rows[pick],
                    weights[pick],
                    self._known_policies(policies[pick]),
                    self._policies,
                    late,
                    self._names,
                    self._senders,
                    self.bucket,
                )
                outputs.append(table_output(TRACES, tables.pack(table)))
        return outputs

    def _known_policies(self, codes: Array) -> Array:
        """Indexes into `_policies`; a cached decision may be of rules that had more of them."""
        last = len(self._policies) - 1
        return np.where((codes < 0) | (codes > last), last, codes)

    def _other_rows(self, now_ms: int) -> list[Output]:
        outputs = []
        if len(self._rollups):
            outputs.append(table_output(KERNEL_MINUTES, tables.pack(self._rollups.to_arrow())))
            self._rollups = RollUps()
        self._counts.update(self._refused.items())
        if self._counts:
            table = self._counts.to_arrow(now_ms * 1_000_000)
            outputs.append(table_output(LEDGER, tables.pack(table)))
            self._counts = LedgerCounts()
        if self._refused:
            self._refused = LedgerCounts()
            self._store.remove(_COUNTS_KEY)
        return outputs

    def _keep_open(self, rows: Rows) -> None:
        rows = rows.copy()
        if len(self._names) > 2 * len(rows) + 1024:
            has = rows["root_name"] >= 0
            rows["root_name"][has] = self._names.keep_only(rows["root_name"][has])
        if len(self._senders) > 2 * len(rows) + 1024:
            rows["sender"] = self._senders.keep_only(rows["sender"])
        self._open, self._fresh_spans = [rows], 0

    def _forget(self, now_ms: int) -> None:
        self._cache.purge(now_ms)
        self._dedup.purge(now_ms)
        self._counted = self._last
        self._store.put(_META_KEY, _META.pack(self._last))
        self._store.put(_BUDGET_KEY, self._budget.to_bytes())


def _sender(view: BatchView) -> tuple[str, str]:
    """(service, host) of a batch."""
    resource = view.resource
    return str(resource.get("service.name", "")), str(resource.get("host.name", ""))
