"""What an application writes, through the real agent library into a real ring."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from applications import AGENT, run


@pytest.fixture
def spans(tmp_path):
    """Runs code under the agent and gives the spans that the daemon makes of it."""
    source = pytest.importorskip("spanlite_collectors.agent.source")
    sinks = pytest.importorskip("spanlite_collectors.sinks")
    if not AGENT.exists():
        pytest.skip("the agent is not built: make agent")

    def collect(code: str, sampled=lambda resource, sample: None) -> list[dict]:
        run("from spanlite import instrument\n" + code, tmp_path)
        sink = sinks.MemorySink()
        rings = source.RingSource(sink, source.RingOptions([tmp_path]), sampled=sampled)
        rings.step()
        assert list(tmp_path.iterdir()) == []
        rows = [row for batch, _ in sink.written for row in batch.to_pylist()]
        for row in rows:
            row["said"] = json.loads(row["attributes"] or "{}")
            row["trace"] = f"{row['trace_id_high']:016x}{row['trace_id_low']:016x}"
        return rows

    return collect
