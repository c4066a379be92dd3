import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from spanlite.errors import ServiceError
from spanlite_collectors.agent import ring

sys.path.insert(0, str(Path(__file__).parent))
DATA = Path(__file__).parents[4] / "shared" / "data" / "cupti"


@pytest.fixture(autouse=True)
def _library() -> None:
    try:
        ring.library()
    except ServiceError:
        pytest.skip("the ring library is not built: make agent")


@pytest.fixture
def recording() -> Callable[[str], list[dict]]:
    """Records of a real run on an H200, by name."""

    def load(name: str) -> list[dict]:
        path = DATA / f"{name}.jsonl.gz"
        if not path.exists():
            pytest.skip("the recordings of ../shared/data are not there")
        with gzip.open(path) as file:
            return [json.loads(line) for line in file]

    return load
