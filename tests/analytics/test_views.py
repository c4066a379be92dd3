"""Reading while a compaction replaces files."""

from typing import Any

import pytest
from spanlite.timewindow import ALL_TIME
from spanlite_analytics.views import ATTEMPTS, FilesMovedError, reading

HOUR = 1_796_108_400_000_000_000


def span(trace: int, duration: int) -> dict[str, Any]:
    return {
        "trace_id": f"{trace:032x}", "span_id": 1, "start_ns": HOUR, "duration_ns": duration,
    }  # fmt: skip


def test_files_that_move_are_listed_anew(build: Any) -> None:
    build.spans(span(1, 5))
    attempts = []

    def work(con: Any) -> int:
        attempts.append(con)
        if len(attempts) == 1:  # compacted between listing and reading
            old = list(build.root.glob("incoming/**/*.parquet"))
            build.spans(span(1, 5), compacted=True)
            for path in old:
                path.unlink()
        return int(con.execute("SELECT sum(duration_ns) FROM spans").fetchone()[0])

    assert reading(build.archive, ALL_TIME, work) == 5
    assert len(attempts) == 2


def test_it_gives_up_in_the_end(build: Any) -> None:
    build.spans(span(1, 5))
    attempts = []

    def work(con: Any) -> None:
        attempts.append(con)
        for path in list(build.root.glob("incoming/**/*.parquet")):
            path.rename(path.with_name(f"again-{len(attempts)}.parquet"))
        con.execute("SELECT * FROM spans")

    with pytest.raises(FilesMovedError, match="run it again"):
        reading(build.archive, ALL_TIME, work)
    assert len(attempts) == ATTEMPTS
