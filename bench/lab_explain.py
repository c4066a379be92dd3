"""What `lab explain` says of kernels with known limits, recorded on an H200 by our own collectors.

python -m bench.lab_explain [--quick] [--archive FOLDER]

tests/recordings/scores.spans.zst has four kernels whose limits are known, with the GPU's counters
as `spanlite collect --pm-sampling` sampled them; bench/h200/lab_explain_recording.py made it.
Builds an archive of it and explains each kernel. --archive keeps that archive, for
`spanlite lab explain all NAME --archive FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.timewindow import TimeWindow
from spanlite_analytics.lab.explain import Case, explain, sampled
from spanlite_analytics.lab.launches import gpu_of, heaviest
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

from bench._archive import ArchiveMaker
from bench._recordings import RECORDINGS
from bench._report import emit

RECORDING = RECORDINGS / "scores.spans.zst"
BUCKETS = 4
#: Kernels by a part of their names; the finding that must come first, and the counter that says so.
KNOWN = {
    "scores_slow": ("Neither device memory nor the tensor pipe is busy", "dram_pct"),
    "scores_tiled": ("Neither device memory nor the tensor pipe is busy", "dram_pct"),
    "CUDAFunctorOnSelf_add": ("Bound by device memory", "dram_pct"),
    "nvjet": ("Bound by the tensor pipe", "tensor_pct"),
}


def archive_of(recording: Path, folder: Path) -> Archive:
    """An archive of the recording, made and compacted the way the job does."""
    sink, maker = MemorySink(), ArchiveMaker(folder, BUCKETS)
    import_file(recording, sink)
    for batch, resource in sink.written:
        maker.write(batch, resource)
    return maker.finish()


def page_of(archive: Archive, name: str) -> dict[str, Any]:
    """Counters and findings of the heaviest kernel with such a name. Raises KeyError."""
    window = TimeWindow(None, None)
    match = heaviest(archive, window, name)
    if match is None:
        raise KeyError(name)
    seen = match.seen[0]
    found = sampled(archive, window, seen)
    sm, sms, _ = gpu_of(seen.gpu, None, None)
    case = Case(seen.name, sm, sms, seen.launch, seen, sampled=found)
    return {"seen": seen, "sampled": found, "findings": [f.what for f in explain(case)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it is quick")
    parser.add_argument("--archive", type=Path, metavar="FOLDER", help="keep the archive there")
    args = parser.parse_args()
    if not RECORDING.exists():
        print(f"{RECORDING.name} is absent: no GPU has recorded it yet", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        archive = archive_of(RECORDING, args.archive or Path(folder) / "archive")
        right = 0
        for name, (expected, counter) in KNOWN.items():
            page = page_of(archive, name)
            right += page["findings"][0] == expected
            value = getattr(page["sampled"], counter)
            of, spans = page["sampled"].of, page["sampled"].spans
            emit(f"lab.explain_sampled.{name}", value, "%", counter=counter, of=of, spans=spans)
            print(json.dumps({"kernel": name, "findings": page["findings"]}))
    emit("lab.explain_right", right, "kernels", len(KNOWN))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
