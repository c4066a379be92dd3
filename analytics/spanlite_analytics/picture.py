"""A trace as text: one line a span, with where, when and how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from spanlite.flags import SpanFlag
from spanlite.kinds import DEVICE_KINDS, kind_word
from spanlite.timewindow import format_time

from spanlite_analytics.folding import Line, choose, lines_of
from spanlite_analytics.intervals import I64, ends_of
from spanlite_analytics.tree import Mask, Tree, build_tree, copies_on_device
from spanlite_analytics.words import kind_plural, plural, size_words, time_words

DEVICE_WORDS = tuple(kind_word(kind) for kind in DEVICE_KINDS)
RANGE_WORDS = ("nvtx_range", "step", "request")
BAR_WIDTH = 24
#: A name in one line; kernel names can be thousands of letters long.
NAME_WIDTH = 100
_HEADER = (
    f"{'start':>10} {'duration':>9} {'self':>9}  {'where':<12} {'timeline':<{BAR_WIDTH}}  span"
)


@dataclass(frozen=True)
class TraceView:
    """A trace's spans (one row each, sorted by start) and their tree."""

    spans: pa.Table
    start_ns: I64
    duration_ns: I64
    tree: Tree
    #: Rows that are the GPU's side of the range above them: see `copies_on_device`.
    copies: Mask

    @property
    def first_ns(self) -> int:
        """Start of the earliest span."""
        return int(self.start_ns.min())

    @property
    def last_ns(self) -> int:
        """End of the latest span."""
        return int(ends_of(self.start_ns, self.duration_ns).max())


def _integers(spans: pa.Table, name: str) -> I64:
    return np.asarray(spans.column(name).fill_null(0).to_numpy(), np.int64)


def _words(spans: pa.Table, name: str) -> list[Any]:
    words: list[Any] = spans.column(name).to_pylist()
    return words


def view_of(spans: pa.Table) -> TraceView:
    """Build the tree of a trace in the archive's SPANS."""
    kinds = np.array(_words(spans, "kind"), dtype=object)
    on_device: Mask = np.isin(kinds, DEVICE_WORDS)
    is_range: Mask = np.isin(kinds, RANGE_WORDS)
    names = np.unique(np.array(_words(spans, "name"), dtype=object), return_inverse=True)[1]
    threadless = spans.column("thread_id").is_null().to_numpy()

    def copies_of(parents: I64) -> Mask:
        return copies_on_device(parents, is_range, names.reshape(-1), threadless)

    start_ns, duration_ns = _integers(spans, "start_ns"), _integers(spans, "duration_ns")
    tree = build_tree(
        _integers(spans, "span_id"),
        _integers(spans, "parent_span_id"),
        start_ns,
        duration_ns,
        on_device,
        copies_of,
    )
    return TraceView(spans, start_ns, duration_ns, tree, copies_of(tree.parents))


def heading(view: TraceView) -> Iterator[str]:
    """What the trace is, in two lines."""
    first = {name: view.spans.column(name)[0].as_py() for name in view.spans.column_names}
    weights = set(_words(view.spans, "sampling_weight"))
    errors = _words(view.spans, "status").count("error")
    odd = int((_integers(view.spans, "flags") != 0).sum())
    yield (
        f"trace {first['trace_id']}  {first['service'] or '(no service)'} "
        f"on {first['host'] or '(no host)'}"
    )
    parts = [
        format_time(view.first_ns),
        time_words(view.last_ns - view.first_ns),
        plural(view.spans.num_rows, "span"),
        f"device {time_words(int(view.tree.device_ns[view.tree.roots].sum()))}",
    ]
    if weights != {1.0}:
        parts.append(f"stands for {max(weights):g} such traces")
    if errors:
        parts.append(plural(errors, "error"))
    if odd:
        parts.append(f"{odd:,} flagged")
    yield " · ".join(parts)


def picture(view: TraceView, lines: int | None, details: bool = False) -> Iterator[str]:
    """The lines of the tree. `lines`: about how many (None: all). `details`: launch and ids."""
    shown = choose(view.tree, view.duration_ns, lines)
    columns = {name: view.spans.column(name) for name in view.spans.column_names}
    yield _HEADER
    for line in lines_of(view.tree, shown):
        if line.folded is not None:
            yield _folded_line(view, columns, line)
            continue
        span = {name: column[line.row].as_py() for name, column in columns.items()}
        yield _span_line(view, line, span)
        if details and (text := _details(span)):
            yield " " * (len(_HEADER) - 4) + _rails(line.more, of_span=False) + text


def _rails(more: tuple[bool, ...], of_span: bool = True) -> str:
    if len(more) <= 1 and of_span:
        return ""
    above = more[1:-1] if of_span else more[1:]
    rails = "".join("│  " if follows else "   " for follows in above)
    return rails + (("├─ " if more[-1] else "└─ ") if of_span else "     ")


def _where(span: dict[str, Any], is_copy: bool) -> str:
    if is_copy:
        return "gpu side"
    if span["device"] is not None:
        stream = "" if span["stream"] is None else f" s{span['stream']}"
        return f"gpu{span['device']}{stream}"
    return "" if span["thread_id"] is None else f"t{span['thread_id']}"


def _bar(view: TraceView, start_ns: int, duration_ns: int) -> str:
    whole = max(view.last_ns - view.first_ns, 1)
    left = min((start_ns - view.first_ns) * BAR_WIDTH // whole, BAR_WIDTH - 1)
    left = max(left, 0)
    right = -(-(start_ns - view.first_ns + max(duration_ns, 0)) * BAR_WIDTH // whole)
    return (" " * left + "▇" * max(right - left, 1)).ljust(BAR_WIDTH)


def _span_line(view: TraceView, line: Line, span: dict[str, Any]) -> str:
    offset = span["start_ns"] - view.first_ns
    name = span["name"]
    if len(name) > NAME_WIDTH:
        name = name[: NAME_WIDTH - 1] + "…"
    where = _where(span, bool(view.copies[line.row]))
    marks = " [error]" if span["status"] == "error" else ""
    if line.closed:
        marks += f" (+{plural(int(view.tree.below[line.row]), 'span')})"
    return (
        f"{time_words(offset):>10} {time_words(span['duration_ns']):>9} "
        f"{time_words(int(view.tree.self_ns[line.row])):>9}  {where:<12.12} "
        f"{_bar(view, span['start_ns'], span['duration_ns'])}  "
        f"{_rails(line.more)}{name} ({span['kind']}){marks}"
    )


def _folded_line(view: TraceView, columns: dict[str, Any], line: Line) -> str:
    rows = line.folded
    assert rows is not None
    kinds = Counter(columns["kind"].take(pa.array(rows)).to_pylist())
    first, *others = kinds.most_common(3)
    parts = [kind_plural(first[1], first[0], "more ")]
    parts += [kind_plural(count, kind) for kind, count in others]
    parts += ["..."] if len(kinds) > 3 else []
    inside = int(view.tree.below[rows].sum())
    text = f"… {', '.join(parts)}" + (f" with {plural(inside, 'span')} inside" if inside else "")
    total = time_words(int(np.maximum(view.duration_ns[rows], 0).sum()))
    offset = time_words(int(view.start_ns[rows].min()) - view.first_ns)
    gap = " " * (9 + 2 + 12 + 1 + BAR_WIDTH + 2)
    return f"{offset:>10} {total:>9} {gap}{_rails(line.more)}{text}"


def _details(span: dict[str, Any]) -> str:
    parts = []
    if span["grid_x"]:
        parts.append(_launch(span))
    if span["bytes"]:
        copy = f" {span['copy_kind']}" if span["copy_kind"] else ""
        parts.append(f"{size_words(span['bytes'])}{copy}")
    ids = ("context", "correlation_id", "graph_id", "graph_node_id")
    parts += [f"{key} {span[key]}" for key in ids if span[key] is not None]
    if span["flags"]:
        parts.append(f"flags {flag_words(span['flags'])}")
    if span["links"]:
        parts.append("links " + ", ".join(link["trace_id"] for link in span["links"]))
    if span["attributes"]:
        parts.append(span["attributes"])
    return " · ".join(parts)


def _launch(span: dict[str, Any]) -> str:
    def shape(of: str) -> str:
        return "x".join(str(span[f"{of}_{axis}"] or 1) for axis in "xyz")

    text = f"grid {shape('grid')} block {shape('block')}"
    if span["cluster_x"]:
        text += f" cluster {shape('cluster')}"
    if span["registers_per_thread"]:
        text += f" regs {span['registers_per_thread']}"
    shared = (span["static_shared_bytes"] or 0) + (span["dynamic_shared_bytes"] or 0)
    return text + (f" shared {size_words(shared)}" if shared else "")


def flag_words(flags: int) -> str:
    """`orphan, partial` for a span's flags; bits of no known flag as a number."""
    words = [f.name.lower() for f in SpanFlag if f and f in SpanFlag(flags) and f.name]
    unknown = flags & ~sum(SpanFlag)
    return ", ".join([*words, *([str(unknown)] if unknown else [])])
