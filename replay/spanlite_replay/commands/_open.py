"""A plan for `plan` and `replay`: made from an archive, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spanlite.archive.reader import ArchiveReader
from spanlite.bucket import DEFAULT_BUCKETS
from spanlite.errors import UsageError
from spanlite.settings import archive_of
from spanlite.timewindow import window_of

from spanlite_replay.commands._flags import refuse_transforms, settings_of
from spanlite_replay.commands._progress import Progress
from spanlite_replay.plan import Plan, build_plan
from spanlite_replay.planfile import Provenance, is_plan, read_plan
from spanlite_replay.recording import read_recording
from spanlite_replay.requestlog import is_request_log, read_requests
from spanlite_replay.work import Deps


def open_plan(
    args: argparse.Namespace,
    columns: Sequence[str] | None,
    deps: Deps | None,
    progress: Progress,
) -> tuple[Plan, Provenance]:
    """The plan that `args.archive` and the flags ask for. Raises SpanLiteError.

    `columns` of the archive (None: all); `deps`: find the order of the GPU work too.
    """
    path = archive_of(args)
    if is_request_log(path):
        return _logged(args, path, deps, progress)
    if args.time_unit is not None:
        raise UsageError("--time-unit says what the numbers of a request log are: give such a log")
    if is_plan(path):
        return _saved(args, path, deps, progress)
    settings, window = settings_of(args), window_of(args)
    reader = ArchiveReader(path)
    with progress.doing(f"reading {window}"):
        recording = read_recording(reader, window, columns)
    if recording.left_out:
        progress.say(f"traces left out, their times being centuries away: {recording.left_out:,}")
    with progress.doing(f"planning {len(recording.start_ns):,} spans"):
        plan = build_plan(recording, settings)
        if deps is not None:
            plan = plan.with_work(deps)
    return plan, Provenance(str(path), str(window), reader.archive.bucket_count)


def _logged(
    args: argparse.Namespace, path: Path, deps: Deps | None, progress: Progress
) -> tuple[Plan, Provenance]:
    settings, window = settings_of(args), window_of(args)
    with progress.doing(f"reading {path}"):
        plan = build_plan(read_requests(path, window, args.time_unit), settings)
    plan = plan if deps is None else plan.with_work(deps)
    return plan, Provenance(str(path), str(window), DEFAULT_BUCKETS)


def _saved(
    args: argparse.Namespace, path: Path, deps: Deps | None, progress: Progress
) -> tuple[Plan, Provenance]:
    refuse_transforms(args)
    with progress.doing(f"reading {path}"):
        plan, provenance = read_plan(path)
    asked = getattr(args, "deps", None)
    if asked is not None and plan.work is not None and plan.work.deps != asked:
        raise UsageError(
            f"'{path}' was saved with --deps {plan.work.deps}: leave --deps out, or save another"
        )
    if deps is not None and plan.work is None:
        plan = plan.with_work(deps)
    start_at_ns = settings_of(args).start_at_ns
    return (plan if start_at_ns is None else plan.moved_to(start_at_ns)), provenance
