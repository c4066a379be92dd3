"""What an import read, kept, used and refused: as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from spanlite_collectors.importers._json_text import whole_text


@dataclass
class KindCount:
    """Records of one kind of the source. read = kept + used + refused."""

    read: int = 0
    #: Became a span.
    kept: int = 0
    #: Not a span, but its content went into others: names, links, clocks.
    used: int = 0
    refused: int = 0


@dataclass
class ImportReport:
    """The account of one file."""

    path: str
    format: str
    kinds: dict[str, KindCount] = field(default_factory=dict)
    #: Why records were refused, and how many.
    reasons: Counter[str] = field(default_factory=Counter)
    #: Attributes that were not kept because they only link records or repeat columns.
    left_out: Counter[str] = field(default_factory=Counter)
    span_kinds: Counter[str] = field(default_factory=Counter)
    #: How device spans found their parent: `correlation`, `external_id`,
    #: `correlation_order` (its call is missing, those before and after it agree on the
    #: trace) or `none`.
    placed: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    traces: int = 0
    steps: int = 0
    requests: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A file's name is any bytes; what of it is no text cannot be printed.
        self.path = whole_text(self.path)

    @property
    def spans(self) -> int:
        """Spans handed to the sink."""
        return sum(count.kept for count in self.kinds.values())

    def kept(self, kind: str, count: int = 1) -> None:
        """Records that become spans."""
        entry = self.kinds.setdefault(kind, KindCount())
        entry.read += count
        entry.kept += count

    def used(self, kind: str, count: int = 1) -> None:
        """Records whose content goes into spans."""
        entry = self.kinds.setdefault(kind, KindCount())
        entry.read += count
        entry.used += count

    def refused(self, kind: str, reason: str, count: int = 1) -> None:
        """Records that become nothing, with the reason."""
        entry = self.kinds.setdefault(kind, KindCount())
        entry.read += count
        entry.refused += count
        self.reasons[reason] += count

    def see_times(self, start_ns: int, end_ns: int) -> None:
        """Widen the time range."""
        self.start_ns = start_ns if self.start_ns is None else min(self.start_ns, start_ns)
        self.end_ns = end_ns if self.end_ns is None else max(self.end_ns, end_ns)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "path": self.path,
            "format": self.format,
            "spans": self.spans,
            "traces": self.traces,
            "steps": self.steps,
            "requests": self.requests,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "kinds": {name: vars(count) for name, count in sorted(self.kinds.items())},
            "reasons": dict(sorted(self.reasons.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "span_kinds": dict(sorted(self.span_kinds.items())),
            "placed": dict(sorted(self.placed.items())),
            "flags": dict(sorted(self.flags.items())),
            "notes": self.notes,
        }

    def table(self) -> str:
        """For people."""
        width = max([len(name) for name in self.kinds] + [16])
        lines = [f"{self.path} ({self.format})"]
        lines.append(f"  {'kind':<{width}} {'read':>10} {'kept':>10} {'used':>10} {'refused':>10}")
        total = KindCount()
        for name, count in sorted(self.kinds.items(), key=lambda item: -item[1].read):
            lines.append(_line(name, count, width))
            for key, value in vars(count).items():
                setattr(total, key, getattr(total, key) + value)
        lines.append(_line("total", total, width))
        lines += [f"  {key}: {_pairs(values)}" for key, values in self._details() if values]
        lines.append(f"  {self.spans} spans in {self.traces} traces{self._range()}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _details(self) -> list[tuple[str, Counter[str]]]:
        return [
            ("spans by kind", self.span_kinds),
            ("device spans placed by", self.placed),
            ("flags", self.flags),
            ("refused because", self.reasons),
            ("attributes left out", self.left_out),
        ]

    def _range(self) -> str:
        if self.start_ns is None or self.end_ns is None:
            return ""
        seconds = (self.end_ns - self.start_ns) / 1e9
        return f", {seconds:.6f} s from {_utc(self.start_ns)}"


def _line(name: str, count: KindCount, width: int) -> str:
    cells = (count.read, count.kept, count.used, count.refused)
    return f"  {name:<{width}} " + " ".join(f"{cell:>10}" for cell in cells)


def _pairs(values: Counter[str]) -> str:
    return ", ".join(f"{key} {count}" for key, count in values.most_common())


def _utc(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    try:
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{day}.{rest:09d}Z"
