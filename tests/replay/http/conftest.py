"""Plans of requests, and servers of known speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording

pytest.importorskip("aiohttp")

#: 2026-12-01T07:00:00Z
HOUR = 1_796_108_400_000_000_000
MS = 1_000_000


def _attributes(inputs: int | None, outputs: int | None) -> str:
    return f'{{"gen_ai.usage.input_tokens":{inputs},"gen_ai.usage.output_tokens":{outputs}}}'


@pytest.fixture(scope="session")
def make_requests(
    make_rows: Callable[[list[dict[str, Any]]], pa.Table],
) -> Callable[..., Plan]:
    """`make_requests([(due_ms, input, output), ...])`: a plan, each request a trace of its own."""

    def make(requests: Sequence[tuple[float, int, int]], speed: int = 1) -> Plan:
        rows = [
            {
                "trace": number + 1,
                "start_ns": HOUR + int(due * MS),
                "duration_ns": MS,
                "kind": "request",
                "name": "chat",
                "service": "llm",
                "attributes": _attributes(inputs, outputs),
            }
            for number, (due, inputs, outputs) in enumerate(requests)
        ]
        settings = PlanSettings(unit="request", speed=Fraction(speed))
        return build_plan(Recording.from_table(make_rows(rows)), settings)

    return make


@pytest.fixture
def azure_log(tmp_path: Path) -> Callable[..., Path]:
    """`azure_log(count, every_ms)`: a log of requests."""

    def make(count: int, every_ms: int) -> Path:
        path = tmp_path / "log.csv"
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        for number in range(count):
            at = number * every_ms
            lines.append(
                f"2023-11-16 18:{at // 60_000:02d}:{at // 1000 % 60:02d}.{at % 1000:03d},9,4"
            )
        path.write_text("\n".join(lines) + "\n")
        return path

    return make
