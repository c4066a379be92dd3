"""Whether every span is accounted for: at each hop, in = out + dropped + open.

`open` is what a hop still holds: its rows are changes, so their sum is what is undecided
now. The archive's hop is checked against the files themselves: what the pipeline sent
out must be there as rows, unless `retain` dropped it by age. A window leaves that hop out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import duckdb
from spanlite.archive.files import read_footer, retry
from spanlite.archive.layout import Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.timewindow import ALL_TIME, TimeWindow

from spanlite_analytics.views import reading

#: In the order of the data's way; a hop that is not listed comes last.
HOPS = ("collector", "wire", "pipeline", "archive")
ARCHIVE_HOP = "archive"


@dataclass(frozen=True)
class Hop:
    """The balance of one hop, in spans (and messages, where the hop counts them)."""

    name: str
    came_in: int = 0
    went_out: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    still_open: int = 0
    messages_in: int = 0
    dropped_messages: dict[str, int] = field(default_factory=dict)

    @property
    def difference(self) -> int:
        """0 where it closes; above 0 where spans are missing."""
        accounted = self.went_out + sum(self.dropped.values()) + self.still_open
        return self.came_in - accounted

    @property
    def closes(self) -> bool:
        """Whether the balance is exact."""
        return self.difference == 0


@dataclass(frozen=True)
class Link:
    """Two figures of neighbouring hops that must be the same spans."""

    what: str
    left: int
    right: int

    @property
    def closes(self) -> bool:
        """Whether both are equal."""
        return self.left == self.right


@dataclass(frozen=True)
class Balance:
    """All hops of a window."""

    window: TimeWindow
    hops: tuple[Hop, ...]
    links: tuple[Link, ...]

    @property
    def closes(self) -> bool:
        """Whether every hop and every link does."""
        return all(h.closes for h in self.hops) and all(k.closes for k in self.links)

    @property
    def lost(self) -> int:
        """Spans that are known to be lost: accounted for, and gone all the same."""
        return sum(hop.dropped.get("lost", 0) for hop in self.hops)


_SUMS = """
SELECT hop, direction, reason, sum(spans)::BIGINT AS spans, sum(messages)::BIGINT AS messages
FROM ledger GROUP BY hop, direction, reason
"""


def _hop_of(name: str, rows: list[tuple[str, str, int, int]]) -> Hop:
    def total(direction: str, column: int = 2) -> int:
        return sum(int(row[column]) for row in rows if row[0] == direction)

    drops = sorted(row for row in rows if row[0] == "dropped")
    return Hop(
        name,
        came_in=total("in"),
        went_out=total("out"),
        dropped={row[1] or "unknown": row[2] for row in drops},
        still_open=total("open"),
        messages_in=total("in", 3),
        dropped_messages={row[1] or "unknown": row[3] for row in drops if row[3]},
    )


def _hops(con: duckdb.DuckDBPyConnection) -> dict[str, Hop]:
    rows: dict[str, list[tuple[str, str, int, int]]] = {}
    for hop, *rest in con.execute(_SUMS).fetchall():
        rows.setdefault(hop, []).append((rest[0], rest[1], rest[2], rest[3]))
    return {name: _hop_of(name, group) for name, group in rows.items()}


def count_rows(archive: Archive) -> int:
    """Spans in the archive, from the footers of its files alone. Raises ArchiveError."""
    # A file that a compaction replaces meanwhile means: list anew, so that each counts once.
    return retry(lambda: sum(int(read_footer(p).num_rows) for p in ArchiveReader(archive).files()))


def _archive_hop(hops: dict[str, Hop], rows: int) -> Hop | None:
    """What the pipeline sent out against the rows that the files really hold."""
    told = hops.get(ARCHIVE_HOP, Hop(ARCHIVE_HOP))
    pipeline = hops.get("pipeline", Hop("pipeline"))
    if told == Hop(ARCHIVE_HOP) and pipeline == Hop("pipeline") and rows == 0:
        return None
    return replace(told, came_in=told.came_in or pipeline.went_out, went_out=rows)


def balance(archive: Archive, window: TimeWindow = ALL_TIME) -> Balance:
    """Sum the ledger up. Raises ArchiveError where a file cannot be read."""
    hops = reading(archive, window, _hops)
    hop = None
    if window == ALL_TIME:
        hop = _archive_hop(hops, count_rows(archive))
    # In a window there is nothing to hold against each other: the ledger's time is when a
    # span was counted, a file's hour is when it started, and `retain` drops by hours.
    hops.pop(ARCHIVE_HOP, None)
    if hop is not None:
        hops[ARCHIVE_HOP] = hop
    order = [*HOPS, *sorted(set(hops) - set(HOPS))]
    links = []
    if "pipeline" in hops and ARCHIVE_HOP in hops:
        out, into = hops["pipeline"].went_out, hops[ARCHIVE_HOP].came_in
        links.append(Link("pipeline out = archive in", out, into))
    return Balance(window, tuple(hops[n] for n in order if n in hops), tuple(links))
