from typing import Any

import pytest
import spanlite_analytics
from spanlite.errors import ArchiveError, UsageError

HOUR = 1_796_108_400_000_000_000


def span(number: int, **rest: Any) -> dict[str, Any]:
    start = {"start_ns": HOUR + number, "duration_ns": 5}
    return {"trace_id": f"{number:032x}", "span_id": number, **start, **rest}


def test_load_keeps_nanoseconds(build: Any) -> None:
    build.spans(span(1), span(2, kind="step"))
    frame = spanlite_analytics.load(build.root).sort_values("span_id")
    assert frame["start_ns"].tolist() == [HOUR + 1, HOUR + 2]
    assert str(frame["start_ns"].dtype) == "int64"
    assert frame["start_time"].iloc[0].value == HOUR + 1


def test_load_window_columns_and_condition(build: Any) -> None:
    build.spans(span(1), span(2, kind="step"), span(3))
    frame = spanlite_analytics.load(
        build.archive, HOUR + 2, "2027-01-01", columns=["span_id"], where="kind = 'kernel'"
    )
    assert frame.to_dict("list") == {"span_id": [3]}
    assert len(spanlite_analytics.load(build.root, table="traces")) == 0


def test_query(build: Any) -> None:
    build.spans(span(1), span(2))
    frame = spanlite_analytics.query(build.root, "SELECT count(*)::INTEGER AS n FROM spans")
    assert frame["n"].tolist() == [2]


def test_mistakes(build: Any, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="no table 'span'"):
        spanlite_analytics.load(build.root, table="span")
    with pytest.raises(UsageError, match="nonsense"):
        spanlite_analytics.load(build.root, columns=["nonsense"])
    with pytest.raises(ArchiveError, match="not a SpanLite archive"):
        spanlite_analytics.load(tmp_path)


def test_all_is_complete_and_sorted() -> None:
    assert spanlite_analytics.__all__ == sorted(spanlite_analytics.__all__)
    assert all(hasattr(spanlite_analytics, name) for name in spanlite_analytics.__all__)
