"""Which cause `spanlite bottlenecks` names first on recordings of seeded faults.

    python -m bench.bottlenecks [--quick] [--recordings FOLDER] [--half seen|blind]

The recordings are made by bench/faults_record.py on a GPU and lie under tests/recordings/faults:
each fault twice, as FAULT.strong and FAULT.weak, healthy steps first and then those with the
fault. Each is asked in four ways: `baseline`, the faulty steps against a healthy recording of
another process; `bare`, the same without what was measured beside the agent (clocks, bank
conflicts); `before`, against the healthy steps of the same process; `within`, the whole recording
without a word about what is healthy. Of each fault one strength is in the half called `seen`, by
which rules were corrected, the other in `blind`.

False alarms are causes in healthy recordings: each alone, its second half against its first, and
against the baseline and back; and in the decode loops of tests/recordings. `compared` says in how
many there were steps enough to compare.

What-if answers are checked where both sides were recorded.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.kinds import SpanKind
from spanlite_replay import whatif
from spanlite_replay.bottlenecks.diagnose import Diagnosis, diagnose
from spanlite_replay.bottlenecks.groups import CLOCK, THROTTLED
from spanlite_replay.bottlenecks.recorded import Recorded, read
from spanlite_replay.recording import Recording

from bench._fault_names import FAULTS, STRENGTHS
from bench._fault_spans import facts_of
from bench._recordings import RECORDINGS, rows_of
from bench._report import emit

FOLDER = RECORDINGS / "faults"
#: How the recordings are asked; the first is the figure that counts.
WAYS = ("baseline", "bare", "before", "within")
HALVES = ("seen", "blind")
#: Attributes that were measured beside the agent.
BESIDE = (CLOCK, THROTTLED, "bank_conflicts_per_request")


@dataclass(frozen=True)
class Faulty:
    """A recording, cut where it changes."""

    name: str
    whole: Recording
    before: Recording
    after: Recording

    @classmethod
    def of(cls, path: Path) -> Faulty:
        """Read it."""
        table = pq.read_table(path)
        change = int(facts_of(path)["change_ns"])
        late = pa.array(table.column("start_ns").to_numpy() >= change)
        early = pa.array(table.column("start_ns").to_numpy() < change)
        parts = (table, table.filter(early), table.filter(late))
        return cls(path.stem, *(Recording.from_table(part) for part in parts))


def baseline_of(name: str, folder: Path) -> Path:
    """The healthy recording of another process with the same workload."""
    same = name.rpartition(".")[2] if name.startswith(("healthy", "baseline")) else "a"
    return folder / f"baseline.{same}.parquet"


def ask(one: Faulty, way: str, folder: Path) -> Diagnosis:
    """One recording in one of WAYS."""
    if way == "within":
        return diagnose(one.whole)
    if way == "before":
        return diagnose(one.after, one.before)
    other = Faulty.of(baseline_of(one.name, folder)).whole
    return diagnose(one.after, other) if way == "baseline" else diagnose(bare(one.after), other)


def bare(recording: Recording) -> Recording:
    """Without clocks and bank conflicts, which the agent does not measure itself."""
    table = recording.table
    place = table.schema.get_field_index("attributes")
    field = table.schema.field(place)
    texts = table.column(place).cast(pa.string()).to_pylist()
    kept = [
        None
        if text is None
        else json.dumps({key: one for key, one in json.loads(text).items() if key not in BESIDE})
        for text in texts
    ]
    column = pa.array(kept, pa.string()).cast(field.type)
    return Recording.from_table(table.set_column(place, field, column))


def half_of(name: str) -> str:
    """Of a fault's two strengths one is seen, the other blind: in turn, as FAULTS lists them."""
    fault, _, strength = name.partition(".")
    seen = STRENGTHS[FAULTS.index(fault) % 2]
    return HALVES[strength != seen]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the same: it is quick")
    parser.add_argument("--recordings", type=Path, default=FOLDER)
    parser.add_argument("--half", choices=HALVES, help="of each fault this one only")
    args = parser.parse_args()
    faults = [
        path
        for path in sorted(args.recordings.glob("*.parquet"))
        if path.stem.partition(".")[0] in FAULTS and args.half in (None, half_of(path.stem))
    ]
    if not faults:
        print(f"bench: no recordings of faults in {args.recordings}", file=sys.stderr)
    _score(faults, args.recordings)
    _alarms(args.recordings)
    _questions(args.recordings)
    for streams in (1, 4, 8):
        _graph_question(streams)
    return 0


def _score(paths: list[Path], folder: Path) -> None:
    """Print what was named, and for each way and half how many first causes were right."""
    right: dict[tuple[str, str], list[bool]] = {}
    for path in paths:
        one = Faulty.of(path)
        said = []
        for way in WAYS:
            causes = [cause.name for cause in ask(one, way, folder).causes]
            good = causes[:1] == [one.name.partition(".")[0]]
            right.setdefault((way, half_of(one.name)), []).append(good)
            said.append(f"{way} {'ok' if good else ', '.join(causes[:3]) or 'none'}")
        print(f"{one.name} ({half_of(one.name)}): {'; '.join(said)}", file=sys.stderr)
    for way in WAYS:
        halves = {half: right[way, half] for half in HALVES if (way, half) in right}
        if not halves:
            continue
        worst = min(sum(one) for one in halves.values())
        name = "replay.bottleneck_top1" + ("" if way == WAYS[0] else f".{way}")
        each = {half: f"{sum(one)} of {len(one)}" for half, one in halves.items()}
        emit(name, worst, "faults", goal=11, of=len(FAULTS), **each)


def healthy(folder: Path) -> Iterator[tuple[str, Diagnosis]]:
    """What is said of healthy recordings, however they are asked."""
    for path in sorted((*folder.glob("healthy.*.parquet"), *folder.glob("baseline.*.parquet"))):
        one = Faulty.of(path)
        yield f"{one.name} within", diagnose(one.whole)
        yield f"{one.name} before", diagnose(one.after, one.before)
        if one.name.startswith("healthy"):
            other = Faulty.of(baseline_of(one.name, folder))
            yield f"{one.name} baseline", diagnose(one.whole, other.whole)
            yield f"{other.name} against {one.name}", diagnose(other.whole, one.whole)
    for path in sorted(RECORDINGS.glob("*.json.gz")):
        yield f"{path.stem} within", diagnose(Recording.from_table(rows_of(path)))


def _alarms(folder: Path) -> None:
    asked = alarms = compared = 0
    for name, found in healthy(folder):
        asked += 1
        alarms += bool(found.causes)
        compared += "too few" not in found.compared
        if found.causes:
            named = ", ".join(cause.name for cause in found.causes)
            print(f"{name}: {named} ({found.compared})", file=sys.stderr)
    emit("replay.bottleneck_false_alarms", alarms, "answers", goal=0, of=asked, compared=compared)


_PRODUCTS = re.compile(r"nvjet|gemm|cutlass", re.IGNORECASE)
#: Recording -> the question that its healthy half is asked, given how many times as fast its
#: products are in the other half, which did what is asked about.
QUESTIONS: dict[str, Callable[[float], whatif.Change]] = {
    "serialised_streams.strong": lambda ratio: whatif.streams_remapped(1),
    "whatif.half_products": lambda ratio: whatif.kernels_times(_PRODUCTS.pattern, ratio),
    "gemm_regression.strong": lambda ratio: whatif.kernels_times(_PRODUCTS.pattern, ratio),
}
#: The same of the faulty half, whose remedy is the healthy half.
REMEDIES: dict[str, Callable[[float], whatif.Change]] = {
    "copy_engine.strong": lambda ratio: whatif.copies_dropped("htod"),
    "gemm_regression.strong": lambda ratio: whatif.kernels_times(_PRODUCTS.pattern, 1 / ratio),
}


def _questions(folder: Path) -> None:
    """Predictions from one half of a recording against the other half."""
    for backwards, questions in ((False, QUESTIONS), (True, REMEDIES)):
        for name, change in questions.items():
            path = folder / f"{name}.parquet"
            if not path.exists():
                continue
            one = Faulty.of(path)
            healthy_half, faulty_half = read(one.before), read(one.after)
            ratio = _product_ns(healthy_half) / max(_product_ns(faulty_half), 1.0)
            asked, told = healthy_half, faulty_half
            if backwards:
                asked, told = told, asked
            reordered = name.startswith("serialised")
            answer = whatif.ask(whatif.prepare(asked), "", [change(ratio)], [], reordered)
            word = "remedy" if backwards else "whatif"
            _emit_answer(f"replay.{word}_error_pct.{name}", answer, told)


def _product_ns(rec: Recorded) -> float:
    """Mean time of a matrix product."""
    names = np.array([bool(_PRODUCTS.search(name)) for name in rec.names])[rec.name]
    rows = np.flatnonzero(names & (rec.kind == SpanKind.KERNEL))
    return float((rec.end - rec.start)[rows].mean()) if len(rows) else 0.0


def _graph_question(streams: int) -> None:
    """The answer from `eager_sN` against the median step of `graph_sN`."""
    asked, told = (
        read(Recording.from_table(rows_of(RECORDINGS / f"{mode}_s{streams}.json.gz")))
        for mode in ("eager", "graph")
    )
    answer = whatif.ask(
        whatif.prepare(asked), "", [whatif.merged_into_graphs()], [], reordered=True
    )
    _emit_answer(f"replay.whatif_graph_error_pct.s{streams}", answer, told)


def _emit_answer(metric: str, answer: whatif.Answer, told: Recorded) -> None:
    truth = float(np.median(whatif.lengths_of(told, told.start, told.end)))
    emit(
        metric,
        (answer.predicted_ns - truth) / truth * 100,
        "%",
        asked_ms=round(answer.recorded_ns / 1e6, 4),
        answer_ms=round(answer.predicted_ns / 1e6, 4),
        range_ms=[round(answer.low_ns / 1e6, 4), round(answer.high_ns / 1e6, 4)],
        truth_ms=round(truth / 1e6, 4),
        within=answer.low_ns <= truth <= answer.high_ns,
    )


if __name__ == "__main__":
    raise SystemExit(main())
