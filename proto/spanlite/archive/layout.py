"""Where things lie in an archive.

    archive/
      _spanlite.json                              format, bucket count (fixed at creation)
      incoming/date=2026-12-01/hour=07/bucket=5/  kept spans, as the job commits them
      spans/date=2026-12-01/hour=07/bucket=5/     the same, compacted: closed hours only
      traces/date=2026-12-01/hour=07/             one row a trace, kept or not
      kernel_minutes/date=2026-12-01/hour=07/     roll-ups of all spans, before sampling
      ledger/date=2026-12-01/                     what came in, went out, was dropped

A span lies in the hour (UTC) of its own start. Names that start with `.` or `_` are not
data: every engine skips them. An hour is read from `spans/`, and from `incoming/` what has
not been compacted into it; `spanlite.archive.files` has the rule.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spanlite.bucket import DEFAULT_BUCKETS, check_bucket_count
from spanlite.errors import ArchiveError

FORMAT_FILE = "_spanlite.json"
FORMAT_VERSION = 1
INCOMING = "incoming"
SPANS = "spans"
TRACES = "traces"
KERNEL_MINUTES = "kernel_minutes"
LEDGER = "ledger"
NS_PER_HOUR = 3_600_000_000_000


def hour_folder(start_ns: int) -> str:
    """`date=YYYY-MM-DD/hour=HH` (UTC) of a Unix time in ns, which may be negative."""
    moment = datetime.fromtimestamp(start_ns // NS_PER_HOUR * 3600, UTC)
    return f"date={moment:%Y-%m-%d}/hour={moment:%H}"


def hour_start_ns(folder: str) -> int:
    """Inverse of `hour_folder`."""
    date, hour = folder.split("/")[:2]
    moment = datetime.strptime(f"{date[5:]} {hour[5:]} +0000", "%Y-%m-%d %H %z")
    return int(moment.timestamp()) * 1_000_000_000


@dataclass(frozen=True)
class Archive:
    """An archive that exists. `open` and `create` are the ways to get one."""

    root: Path
    bucket_count: int

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> Archive:
        """Open an archive. Raises ArchiveError where there is none."""
        path = Path(root)
        marker = path / FORMAT_FILE
        try:
            settings = json.loads(marker.read_text())
            version, buckets = settings["format_version"], settings["bucket_count"]
        except FileNotFoundError:
            raise ArchiveError(
                f"'{path}' is not a SpanLite archive ({FORMAT_FILE} is missing); "
                "`spanlite pipeline run --archive PATH` makes one"
            ) from None
        except NotADirectoryError:
            raise ArchiveError(f"'{path}' is a file, not a folder with an archive") from None
        except OSError as error:
            raise ArchiveError(f"cannot read '{marker}': {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"'{marker}' is damaged: {error}") from None
        if version != FORMAT_VERSION:
            raise ArchiveError(
                f"'{path}' has format version {version}; this spanlite reads {FORMAT_VERSION}"
            )
        return cls(path, check_bucket_count(buckets))

    @classmethod
    def create(cls, root: str | os.PathLike[str], bucket_count: int = DEFAULT_BUCKETS) -> Archive:
        """Open the archive, or make it.

        Raises ArchiveError where it has other buckets or the folder cannot be made.
        """
        path = Path(root)
        try:
            exists = (path / FORMAT_FILE).exists()
        except OSError as error:
            raise ArchiveError(f"cannot read '{path}': {error.strerror}") from None
        if exists:
            archive = cls.open(path)
            if archive.bucket_count != bucket_count:
                raise ArchiveError(
                    f"'{path}' was made with {archive.bucket_count} buckets, not {bucket_count}: "
                    "use that number, or another folder"
                )
            return archive
        check_bucket_count(bucket_count)
        draft = path / f".{FORMAT_FILE}.{os.getpid()}"
        text = json.dumps({"format_version": FORMAT_VERSION, "bucket_count": bucket_count}) + "\n"
        try:
            path.mkdir(parents=True, exist_ok=True)
            draft.write_text(text)
            draft.replace(path / FORMAT_FILE)
        except OSError as error:
            raise ArchiveError(f"cannot make an archive at '{path}': {error.strerror}") from None
        return cls(path, bucket_count)
