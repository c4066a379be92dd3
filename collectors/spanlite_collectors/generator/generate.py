"""From planned steps to record batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind, SpanStatus
from spanlite.schema import LINK_TYPE, SPAN_SCHEMA

from spanlite_collectors.generator.config import DecodeConfig
from spanlite_collectors.generator.engine import Engine, Request, StepPlan
from spanlite_collectors.generator.layout import Layouts
from spanlite_collectors.generator.template import Template, make_template
from spanlite_collectors.generator.timeline import Chunk, Jitter, step_times

Generated = tuple[pa.RecordBatch, dict[str, Any]]
U64 = np.uint64
Ints = npt.NDArray[np.int64]


def generate(config: DecodeConfig) -> Iterator[Generated]:
    """Record batches in SPAN_SCHEMA, each with the resource (process) it belongs to.

    A batch holds whole traces: some steps of one process, or requests that have ended.
    Its rows are in track order: step, ranges, calls, then device operations by stream, each
    by start. Traces of all buckets are mixed.
    """
    kinds = [_Kind(config, local) for local in range(config.processes)]
    seeds = np.random.SeedSequence(config.seed).spawn(config.hosts * config.processes)
    processes = [
        _Process(config, i // config.processes, kinds[i % config.processes], seed)
        for i, seed in enumerate(seeds)
    ]
    made = 0
    while made < config.spans:
        # The process that is furthest behind goes next, so that batches come by time.
        process = min(processes, key=lambda item: item.engine.clock_ns)
        for spans in process.chunk(config.spans - made):
            made += spans.num_rows
            yield spans, process.resource
    for process in processes:
        if process.engine.running:
            yield process.cut_off(), process.resource


class _Kind:
    """What the processes of the same place on each host share."""

    def __init__(self, config: DecodeConfig, local: int) -> None:
        self.pid = 4_000 + 100 * local
        self.templates = (make_template(config, graph=False), make_template(config, graph=True))
        self.layouts = [
            Layouts(template, local * config.devices, self.pid + 7) for template in self.templates
        ]


class _Process:
    """One engine process: its plan, its identifiers and its spans."""

    def __init__(
        self, config: DecodeConfig, host: int, kind: _Kind, seed: np.random.SeedSequence
    ) -> None:
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.jitter = Jitter(self.rng)
        self.templates, self.layouts = kind.templates, kind.layouts
        self.span_id = int(self.rng.integers(1, 1 << 64, dtype=U64))
        self.correlation = 1_000 + int(self.rng.integers(1 << 16))
        self.engine = Engine(config, self.rng, self.templates, self._span_ids)
        self.resource = {
            "service.name": config.service,
            "host.name": f"gpu-{host}",
            "process.pid": kind.pid,
            "telemetry.sdk.name": "spanlite",
        }

    def _span_ids(self, count: int) -> int:
        """The first of `count` ids in a row, none of which is 0."""
        if self.span_id + count > (1 << 64):
            self.span_id = 1
        first, self.span_id = self.span_id, self.span_id + count
        return first

    def chunk(self, wanted: int) -> list[pa.RecordBatch]:
        """Plan and make the next steps, about `wanted` spans at most."""
        plans: list[StepPlan] = []
        done: list[Request] = []
        spans = 0
        while len(plans) < self.config.chunk_steps and spans < wanted:
            plan, ended = self.engine.plan_step()
            plans.append(plan)
            done += ended
            spans += self.templates[plan.template].rows
            for request in ended:
                request.finished_ns = -len(plans)  # the step, until its time is known
        batches = self._steps(plans, done)
        return [*batches, request_spans(done)] if done else batches

    def cut_off(self) -> pa.RecordBatch:
        """Requests that the end of the generation cut short."""
        for request in self.engine.running:
            request.finished_ns = self.engine.clock_ns
        return request_spans(self.engine.running, SpanFlag.PARTIAL)

    def _steps(self, plans: list[StepPlan], done: list[Request]) -> list[pa.RecordBatch]:
        made = []
        begin, end = np.zeros((2, len(plans)), dtype=np.int64)
        for number, template in enumerate(self.templates):
            chosen = [i for i, plan in enumerate(plans) if plan.template == number]
            if chosen:
                made.append((template, chosen, *self._times(template, [plans[i] for i in chosen])))
        # Both kinds of steps share one engine: none may start before the last has ended.
        for _, chosen, _, duration, earliest in made:
            begin[chosen], end[chosen] = earliest, earliest + duration[:, 0]
        tick = self.config.device_tick_ns
        overlap = np.maximum(np.append(0, end[:-1] - begin[1:]), 0)
        late = np.cumsum(-(-overlap // tick) * tick)
        begin, end = begin + late, end + late
        self.engine.clock_ns = max(self.engine.clock_ns, int(end[-1]) + 50_000)
        _note_times(plans, done, begin, end)
        return [
            self._batch(template, [plans[i] for i in chosen], start + begin[chosen, None], duration)
            for template, chosen, start, duration, _ in made
        ]

    def _times(self, template: Template, plans: list[StepPlan]) -> Any:
        chunk = Chunk(
            earliest_ns=np.array([plan.earliest_ns for plan in plans]),
            batch=np.array([len(plan.requests) for plan in plans]),
            scale=np.array([plan.scale for plan in plans]),
            slow=np.array([plan.slow for plan in plans]),
        )
        return step_times(template, chunk, self.jitter, self.config.device_tick_ns)

    def _batch(
        self,
        template: Template,
        plans: list[StepPlan],
        start: Ints,
        duration: Ints,
    ) -> pa.RecordBatch:
        steps, rows = start.shape
        layout = self.layouts[int(template.graph)].of(steps)
        ids = self._span_ids(steps * rows) + (np.arange(steps) * rows).astype(U64)
        id_of = ids[layout.step]
        traces = self.rng.integers(1, 1 << 64, size=(2, steps), dtype=U64)
        each = template.call_row.size  # correlation ids of a step
        correlation = (self.correlation + np.arange(steps) * each)[layout.step] + layout.correlation
        correlation[layout.uncorrelated] = 0
        self.correlation += steps * each
        status, attributes = _step_marks(plans, template, layout.order)
        columns: dict[str, Any] = layout.fixed | {
            "trace_id_low": traces[0][layout.step],
            "trace_id_high": traces[1][layout.step],
            "span_id": id_of + layout.row,
            "parent_span_id": (id_of + layout.parent) * layout.rooted,
            "start_ns": start.ravel()[layout.order],
            "duration_ns": duration.ravel()[layout.order],
            "status": status,
            "attributes": attributes,
            "correlation_id": correlation,
            "links": _step_links(plans, len(layout.row)),
        }
        return to_batch(columns)


def to_batch(columns: dict[str, Any]) -> pa.RecordBatch:
    """Columns by name, numpy or Arrow, as a batch in SPAN_SCHEMA."""
    arrays = []
    for item in SPAN_SCHEMA:
        values = columns[item.name]
        if isinstance(values, np.ndarray):
            values = pa.array(np.ascontiguousarray(values, item.type.to_pandas_dtype()))
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def _note_times(
    plans: list[StepPlan],
    done: list[Request],
    begin: Ints,
    end: Ints,
) -> None:
    for i, plan in enumerate(plans):
        for request in plan.joined:
            request.started_ns, request.first_token_ns = int(begin[i]), int(end[i])
    for request in done:
        request.finished_ns = int(end[-1 - request.finished_ns])


def _step_marks(
    plans: list[StepPlan], template: Template, order: Ints
) -> tuple[npt.NDArray[np.uint8], pa.DictionaryArray]:
    """Status and attributes: the step's on its first row, a failure's on its last call."""
    status = np.zeros(len(order), dtype=np.uint8)
    text = np.full(len(order), -1, dtype=np.int32)
    words = [json.dumps({"error.type": "cudaErrorLaunchTimeout"})]
    for i, plan in enumerate(plans):
        status[i * template.rows] = SpanStatus.OK
        text[i * template.rows] = len(words)
        words.append(
            f'{{"step": {plan.number}, "batch_size": {len(plan.requests)}, '
            f'"prefill_tokens": {plan.prefill_tokens}}}'
        )
        if plan.failed:
            call = i * template.rows + int(template.call_row[-1, -1])
            status[[i * template.rows, call]] = SpanStatus.ERROR
            text[call] = 0
    text = text[order]
    index = pa.array(np.maximum(text, 0), mask=text < 0)
    return status[order], pa.DictionaryArray.from_arrays(index, words)


def _step_links(plans: list[StepPlan], rows: int) -> pa.ListArray:
    """Links of the first rows, one a step, to the requests it serves."""
    served = [request for plan in plans for request in plan.requests]
    ends = np.cumsum([len(plan.requests) for plan in plans])
    offsets = np.full(rows + 1, len(served), dtype=np.int32)
    offsets[0], offsets[1 : len(plans) + 1] = 0, ends
    ids = np.array([request.ids for request in served], dtype=U64).reshape(-1, 3)
    values = pa.StructArray.from_arrays(
        [pa.array(ids[:, i].copy()) for i in range(3)], fields=list(LINK_TYPE)
    )
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def request_spans(requests: list[Request], flags: SpanFlag = SpanFlag.NONE) -> pa.RecordBatch:
    """The traces of ended requests: the request, and its queue, prefill and decode."""
    count = len(requests)
    arrival, started, first, finished = np.array(
        [(r.arrival_ns, r.started_ns, r.first_token_ns, r.finished_ns) for r in requests],
        dtype=np.int64,
    ).T
    part = np.repeat(np.arange(4), count)
    trace_low, trace_high, ids = np.tile(np.array([r.ids for r in requests], dtype=U64).T, 4)
    failed = np.tile([r.error is not None for r in requests], 4)
    text = pa.array(
        [
            json.dumps(
                {"prompt_tokens": r.prompt_tokens, "output_tokens": r.made}
                | ({"error.type": r.error} if r.error else {})
            )
            for r in requests
        ]
        + [None] * (3 * count),
        pa.string(),
    )
    zeros = np.zeros(4 * count, dtype=np.int64)
    columns: dict[str, Any] = dict.fromkeys(SPAN_SCHEMA.names, zeros) | {
        "trace_id_low": trace_low,
        "trace_id_high": trace_high,
        "span_id": ids + part.astype(U64),
        "parent_span_id": np.where(part == 0, U64(0), ids),
        "start_ns": np.concatenate([arrival, arrival, started, first]),
        "duration_ns": np.concatenate(
            [finished - arrival, started - arrival, first - started, finished - first]
        ),
        "kind": np.where(part == 0, SpanKind.REQUEST, SpanKind.HOST),
        "name": pa.DictionaryArray.from_arrays(
            part.astype(np.int32), ["request", "queue", "prefill", "decode"]
        ),
        "status": np.where(
            failed & (part % 3 == 0), SpanStatus.ERROR, np.where(part == 0, SpanStatus.OK, 0)
        ),
        "attributes": text.dictionary_encode(),
        "device": zeros - 1,
        "context": zeros - 1,
        "stream": zeros - 1,
        "flags": zeros + int(flags),
        "links": pa.nulls(4 * count, pa.list_(LINK_TYPE)),
    }
    return to_batch(columns)
