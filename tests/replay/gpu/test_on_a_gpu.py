"""On a real GPU, where there is one: the smallest replay that has everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from spanlite.errors import ServiceError
from spanlite_replay.commands._faithful import fidelity_of
from spanlite_replay.plan import Plan
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.gpu.open import check_gpu, open_target

HERE = Path(__file__).parents[2] / "recordings"


@pytest.mark.gpu
def test_a_decode_step_is_replayed_as_it_was(
    import_rows: Callable[[Path], pa.Table], plan_of: Callable[..., Plan]
) -> None:
    try:
        check_gpu()
    except ServiceError as error:
        pytest.skip(str(error))
    plan = plan_of(import_rows(HERE / "graph_s1.json.gz"))
    report = run_plan(plan, open_target("test"))
    fidelity = fidelity_of(plan, report, None)
    assert report.closes and (fidelity.lost, fidelity.violations) == (0, 0)
    # Far from the goals, which bench/replay_fidelity.py holds: a test must not fail for noise.
    assert fidelity.makespan_ms.error is not None and abs(fidelity.makespan_ms.error) < 25
