"""The two Python functions of the job, as Flink runs them: thin shells around the logic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, TRACES

from spanlite_pipeline import tables
from spanlite_pipeline.bucket_state import Bucket
from spanlite_pipeline.frames import WAKE_UP, Output, read_message
from spanlite_pipeline.memory import keep_freed_memory
from spanlite_pipeline.sampling import RuleSet
from spanlite_pipeline.settings import BucketSettings

OUTPUT_TYPE = Types.ROW([Types.INT(), Types.PRIMITIVE_ARRAY(Types.BYTE())])
#: Fires when the job is drained: the watermark then goes to its end.
_DRAIN_MS = (1 << 63) - 2


class _FlinkStore:
    """MapState as a Store."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def put(self, key: str, value: bytes) -> None:
        self._state.put(key, value)

    def remove(self, key: str) -> None:
        self._state.remove(key)

    def items(self) -> Iterable[tuple[str, bytes]]:
        return [(key, bytes(value)) for key, value in self._state.items()]


class BucketFunction(KeyedProcessFunction):  # type: ignore[misc]
    """Keyed by bucket: messages in; files, dead letters and rows of small tables out."""

    def __init__(self, settings: BucketSettings, bucket_of_key: dict[int, int]) -> None:
        self._settings, self._bucket_of_key = settings, bucket_of_key

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called by Flink, also after each restart: memory is empty, the state is not."""
        keep_freed_memory()
        descriptor = MapStateDescriptor(
            "bucket", Types.STRING(), Types.PRIMITIVE_ARRAY(Types.BYTE())
        )
        self._store = _FlinkStore(runtime_context.get_map_state(descriptor))
        self._rules = RuleSet.from_yaml(self._settings.rules)
        self._buckets: dict[int, Bucket] = {}
        self._timers: dict[int, int] = {}
        group = runtime_context.get_metrics_group()
        self._spans_in, self._spans_out = group.counter("spans_in"), group.counter("spans_out")

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        """Take a message."""
        message = read_message(value)
        bucket = self._bucket(message.bucket)
        now_ms = ctx.timer_service().current_processing_time()
        if message.is_wake_up:
            yield Row(*WAKE_UP)
        else:
            yield from self._report(bucket, bucket.accept(message, now_ms))
        if bucket.busy:
            self._set_timer(message.bucket, now_ms, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        """Flush the bucket; at a drain, for good."""
        key = ctx.get_current_key()
        number = self._bucket_of_key[key if isinstance(key, int) else key[0]]
        bucket = self._bucket(number)
        now_ms = ctx.timer_service().current_processing_time()
        drain = timestamp == _DRAIN_MS
        self._timers.pop(number, None)
        yield from self._report(bucket, bucket.flush(now_ms, drain))
        if bucket.busy and not drain:
            self._set_timer(number, now_ms, ctx)

    def _bucket(self, number: int) -> Bucket:
        found = self._buckets.get(number)
        if found is None:
            found = Bucket(number, self._store, self._settings, self._rules)
            self._buckets[number] = found
        return found

    def _set_timer(self, number: int, now_ms: int, ctx: Any) -> None:
        """One processing-time timer a bucket, spread evenly so that flushes take turns."""
        if number in self._timers:
            return
        interval = self._settings.flush_interval_ms
        phase = number * interval // self._settings.bucket_count
        due = (now_ms - phase) // interval * interval + interval + phase
        self._timers[number] = due
        ctx.timer_service().register_processing_time_timer(due)
        ctx.timer_service().register_event_time_timer(_DRAIN_MS)

    def _report(self, bucket: Bucket, outputs: list[Output]) -> Iterator[Row]:
        self._spans_in.inc(bucket.spans_in)
        self._spans_out.inc(bucket.spans_out)
        bucket.spans_in = bucket.spans_out = 0
        for kind, payload in outputs:
            yield Row(kind, payload)


class TableFunction(KeyedProcessFunction):  # type: ignore[misc]
    """Rows of small tables from all buckets, merged into one file a table and interval."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called by Flink."""
        self._parts = {
            name: runtime_context.get_list_state(
                ListStateDescriptor(name, Types.PRIMITIVE_ARRAY(Types.BYTE()))
            )
            for name in (TRACES, KERNEL_MINUTES, LEDGER)
        }
        self._timer = 0

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        """Keep the rows until the timer; without rows, wake up."""
        name, _, rows = bytes(value).partition(b"\n")
        if name:
            self._parts[name.decode()].add(rows)
        timers = ctx.timer_service()
        if timers.current_watermark() >= _DRAIN_MS:
            yield from self._flush()
        elif self._timer == 0:
            now_ms = timers.current_processing_time()
            self._timer = now_ms // self._interval_ms * self._interval_ms + self._interval_ms
            timers.register_processing_time_timer(self._timer)
            timers.register_event_time_timer(_DRAIN_MS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        """Write the files."""
        self._timer = 0
        yield from self._flush()

    def _flush(self) -> Iterator[Row]:
        for name, state in self._parts.items():
            parts = [bytes(part) for part in state.get()]
            if parts:
                state.clear()
                for kind, payload in tables.finish(name, parts):
                    yield Row(kind, payload)
