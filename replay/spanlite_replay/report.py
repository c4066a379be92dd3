"""What a replay did: how well it kept time, and where every event went."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite_replay.plan import Count, Fate, Plan
from spanlite_replay.timing import ENOUGH_FOR_DRIFT, Timing

if TYPE_CHECKING:
    from spanlite_replay.targets._http_results import RequestFigures


@dataclass(frozen=True)
class Report:
    """The whole result. `closes` says whether every planned event is accounted for."""

    target: str
    unit: str
    digest: str
    planned: Count
    fates: dict[str, Count]
    dropped_why: dict[str, int]
    traces: int
    left_out: dict[str, int]
    moved_ns: int
    interrupted: bool
    timing: Timing | None
    facts: dict[str, int | str] = field(default_factory=dict)
    why_failed: str = ""
    #: What the target saw, as `targets.base.OBSERVED_SCHEMA`; not part of the JSON.
    observed: pa.Table | None = field(default=None, repr=False)
    #: What requests took, from the target `http`.
    requests: RequestFigures | None = None

    @property
    def closes(self) -> bool:
        """planned = launched + dropped + thinned + unsupported + failed, events and spans."""
        events = sum(count.events for count in self.fates.values())
        spans = sum(count.spans for count in self.fates.values())
        return (events, spans) == (self.planned.events, self.planned.spans)

    def conservation(self) -> str:
        """The line that is always printed."""
        terms = " + ".join(f"{count.events:,} {word}" for word, count in self.fates.items())
        return f"{self.planned.events:,} planned {'=' if self.closes else '≠'} {terms}"

    def to_json(self) -> str:
        """One JSON object."""
        body: dict[str, Any] = asdict(replace(self, observed=None))
        del body["observed"]
        body["closes"] = self.closes
        body["conservation"] = self.conservation()
        return json.dumps(body, ensure_ascii=False)

    def to_text(self) -> str:
        """Lines for a terminal."""
        spans = " + ".join(f"{count.spans:,} {word}" for word, count in self.fates.items())
        lines = [
            f"replay to {self.target}, one event a {self.unit}"
            + (", interrupted" if self.interrupted else ""),
            f"  plan      {self.planned.events:,} events, {self.planned.spans:,} spans, "
            f"{self.traces:,} traces, digest {self.digest[:16]}",
            *[f"  left out  {count:,} {word}" for word, count in self.left_out.items() if count],
            *self._timing_lines(),
            f"  events    {self.conservation()}",
            f"  spans     {self.planned.spans:,} planned = {spans}",
            *[f"  dropped   {count:,} {word}" for word, count in self.dropped_why.items() if count],
            *([] if self.requests is None else self.requests.lines()),
            *[f"  {word:<9} {value}" for word, value in self.facts.items()],
        ]
        if self.why_failed:
            lines.append(f"  failed    {self.why_failed}")
        return "\n".join(lines)

    def _timing_lines(self) -> list[str]:
        t = self.timing
        if t is None:
            return []
        lines = [
            f"  rate      {t.achieved_per_s:,.1f} events/s of {t.asked_per_s:,.1f} asked",
            f"  error     p50 {t.error_p50_us:,.1f} us, p99 {t.error_p99_us:,.1f} us, "
            f"p99.9 {t.error_p999_us:,.1f} us, max {t.error_max_us:,.1f} us",
            f"  drift     {t.drift_us_per_s:+,.3f} us/s"
            if t.dispatched >= ENOUGH_FOR_DRIFT
            else f"  drift     not told: {t.dispatched:,} events are too few",
        ]
        if t.missed is not None:
            lines.append(f"  missed    {t.missed:,} events later than --tolerance")
        if self.moved_ns:
            lines.append(f"  moved     {self.moved_ns / 1e6:,.3f} ms later by --late reanchor")
        return lines


def count_fates(plan: Plan, fate: npt.NDArray[np.uint8]) -> dict[str, Count]:
    """Events and spans of each fate but PLANNED, in the order of the conservation line."""
    events = np.bincount(fate, minlength=len(Fate))
    spans = np.bincount(fate, weights=plan.spans, minlength=len(Fate)).astype(np.int64)
    return {
        one.name.lower(): Count(int(events[one]), int(spans[one]))
        for one in Fate
        if one is not Fate.PLANNED
    }
