"""The requests of a plan: when each is due, and how many tokens it had."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite_replay.plan import Plan
from spanlite_replay.targets._http_prompts import MAX_TOKENS

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Attributes that hold token counts: OpenTelemetry's names, and its older ones.
INPUT_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
BLOCKS_KEY = "hash_ids"


@dataclass
class Requests:
    """Arrays of shape (requests,), sorted by event, then by time."""

    event: I64  # of the plan
    row: I64  # of the recording
    due_ns: I64  # after the plan's first event
    input_tokens: I64
    output_tokens: I64
    blocks: list[list[int]]  # ids of shared blocks of the prompt; empty where no log had any
    supported: Mask  # of the events asked for, shape (events,)
    why_not: dict[str, int] = field(default_factory=dict)  # events that cannot be sent

    def __len__(self) -> int:
        return len(self.event)

    def bounds(self, events: int) -> I64:
        """Where the requests of each event of the plan begin, and the end. (events + 1,)."""
        return np.searchsorted(self.event, np.arange(events + 1))


def requests_of(plan: Plan, events: I64) -> Requests:
    """The requests of `events`. An event is supported where it has one with token counts.

    A trace may hold several requests: each is sent at its distance from the first. Where one is
    part of another, as behind a gateway, the outermost with token counts is meant.
    """
    event, row, start_ns, _ = plan.span_rows(events)
    at = np.flatnonzero(plan.recording.is_kind("request")[row])
    told = [_told(text) for text in _attributes(plan, row[at])]
    inputs = np.array([one[0] for one in told], dtype=np.int64)
    outputs = np.array([one[1] for one in told], dtype=np.int64)
    counted = (inputs >= 0) & (outputs >= 0)
    inside = _inside_another(plan, event, row, at[counted])
    chosen = np.flatnonzero(counted & ~inside[at])
    why = [_why_not(*told[one][:2]) for one in chosen.tolist()]
    mine = event[at[chosen]]
    bad = {int(one): text for one, text in zip(mine.tolist(), why, strict=True) if text}
    silent = np.setdiff1d(events, mine)
    chosen = chosen[~np.isin(mine, list(bad))]
    chosen = chosen[np.lexsort((start_ns[at[chosen]], event[at[chosen]]))]
    blocks = [told[one][2] for one in chosen.tolist()]
    origin = int(plan.due_ns[0]) if len(plan) else 0
    reasons = Counter(bad.values()) + Counter({"without token counts": len(silent)})
    return Requests(
        event[at[chosen]],
        row[at[chosen]],
        start_ns[at[chosen]] - origin,
        inputs[chosen],
        outputs[chosen],
        blocks if any(blocks) else [],
        np.isin(events, event[at[chosen]]),
        dict(reasons),
    )


def _attributes(plan: Plan, row: I64) -> list[str | None]:
    column = plan.recording.table.column("attributes").take(pa.array(row))
    texts: list[str | None] = column.to_pylist()
    return texts


def _told(text: str | None) -> tuple[int, int, list[int]]:
    """(input tokens, output tokens, ids of blocks); -1 where it is not said."""
    try:
        attributes = json.loads(text) if text else {}
    except ValueError:
        attributes = {}
    if not isinstance(attributes, dict):
        attributes = {}
    blocks = attributes.get(BLOCKS_KEY)
    if not isinstance(blocks, list) or not all(type(one) is int for one in blocks):
        blocks = []
    inputs, outputs = _count(attributes, INPUT_KEYS), _count(attributes, OUTPUT_KEYS)
    return inputs, outputs, blocks


def _count(attributes: dict[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = attributes.get(key)
        if type(value) is int and value >= 0:
            return value
    return -1


def _why_not(inputs: int, outputs: int) -> str:
    if inputs == 0:
        return "with an empty prompt"
    if outputs == 0:
        return "with no output"
    return f"with a prompt of more than {MAX_TOKENS:,} tokens" if inputs > MAX_TOKENS else ""


def _inside_another(plan: Plan, event: I64, row: I64, counted: I64) -> Mask:
    """Which spans have one of `counted` (positions) above them in their trace. Shape (spans,)."""
    rec = plan.recording
    inside = np.zeros(len(row), dtype=np.bool_)
    several = np.bincount(event[counted], minlength=len(plan)) > 1
    at = np.flatnonzero(several[event])
    if not len(at):
        return inside
    own, parent = rec.span_id[row[at]].view(np.int64), rec.integers("parent_span_id", row[at], 0)
    keys = list(zip(event[at].tolist(), own.tolist(), strict=True))
    above = dict(zip(keys, zip(event[at].tolist(), parent.tolist(), strict=True), strict=True))
    is_counted = {keys[one] for one in np.flatnonzero(np.isin(at, counted)).tolist()}
    for key, position in zip(keys, at.tolist(), strict=True):
        seen = {key}
        while (key := above[key]) in above and key not in seen:
            inside[position] |= key in is_counted
            seen.add(key)
    return inside
