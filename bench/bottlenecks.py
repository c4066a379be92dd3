"""Which cause `spanlite bottlenecks` names first on recordings of seeded faults.

    python -m bench.bottlenecks [--quick] [--recordings FOLDER]

The recordings are made by bench/faults_record.py on a GPU and lie under tests/recordings/faults.
Where there are none yet, it says so and prints no figure of them. Healthy recordings are those
named `healthy_*` and the decode loops of tests/recordings; `compared` says in how many of them
there were steps enough to compare.

What-if answers are checked where both sides were recorded: the eager decode loop, asked how long
it would take as a CUDA graph, against the recording of that graph.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from spanlite_replay import whatif
from spanlite_replay.bottlenecks.diagnose import Diagnosis, diagnose
from spanlite_replay.bottlenecks.recorded import read
from spanlite_replay.recording import Recording

from bench._fault_names import FAULTS
from bench._recordings import RECORDINGS, rows_of
from bench._report import emit

FOLDER = RECORDINGS / "faults"


def diagnosis_of(path: Path) -> Diagnosis:
    """Of one recording, by itself."""
    return diagnose(Recording.from_table(rows_of(path)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same: it is quick")
    parser.add_argument("--recordings", type=Path, default=FOLDER)
    args = parser.parse_args()
    files = {path.name.removesuffix(".json.gz"): path for path in args.recordings.glob("*.json.gz")}
    right = _faults({name: files[name] for name in FAULTS if name in files})
    found = [name for name in FAULTS if name in files]
    missing = [name for name in FAULTS if name not in files]
    if missing:
        print(
            f"bench: no recordings of {len(missing)} of {len(FAULTS)} faults "
            f"({', '.join(missing)}): bench/faults_record.py makes them on a GPU",
            file=sys.stderr,
        )
    if found:
        emit("replay.bottleneck_top1", right, "faults", goal=11, of=len(found))
    healthy = [path for name, path in files.items() if name.startswith("healthy")]
    healthy += sorted(RECORDINGS.glob("*.json.gz"))
    alarms, compared = _alarms(healthy)
    emit(
        "replay.bottleneck_false_alarms",
        alarms,
        "recordings",
        goal=0,
        of=len(healthy),
        compared=compared,
    )
    for streams in (1, 4, 8):
        _graph_question(streams)
    return 0


def _graph_question(streams: int) -> None:
    """The answer from `eager_sN` against the median step of `graph_sN`."""
    asked, told = (
        read(Recording.from_table(rows_of(RECORDINGS / f"{mode}_s{streams}.json.gz")))
        for mode in ("eager", "graph")
    )
    answer = whatif.ask(
        whatif.prepare(asked), "", [whatif.merged_into_graphs()], [], reordered=True
    )
    truth = float(np.median(whatif.lengths_of(told, told.start, told.end)))
    emit(
        f"replay.whatif_graph_error_pct.s{streams}",
        (answer.predicted_ns - truth) / truth * 100,
        "%",
        asked_ms=round(answer.recorded_ns / 1e6, 4),
        answer_ms=round(answer.predicted_ns / 1e6, 4),
        range_ms=[round(answer.low_ns / 1e6, 4), round(answer.high_ns / 1e6, 4)],
        truth_ms=round(truth / 1e6, 4),
        within=answer.low_ns <= truth <= answer.high_ns,
    )


def _faults(files: dict[str, Path]) -> int:
    right = 0
    for name, path in files.items():
        causes = diagnosis_of(path).causes
        first = causes[0].name if causes else "none"
        right += first == name
        print(f"{name}: {', '.join(cause.name for cause in causes) or 'none'}", file=sys.stderr)
    return right


def _alarms(files: list[Path]) -> tuple[int, int]:
    """(recordings with causes, recordings in which there was something to compare)."""
    alarms = compared = 0
    for path in files:
        found = diagnosis_of(path)
        alarms += bool(found.causes)
        compared += "too few" not in found.compared
        if found.causes:
            print(f"{path.name}: {', '.join(c.name for c in found.causes)}", file=sys.stderr)
    return alarms, compared


if __name__ == "__main__":
    raise SystemExit(main())
