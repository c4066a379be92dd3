"""One JSON object a line on stdout: what every bench prints."""

from __future__ import annotations

import json
from typing import Any


def emit(
    metric: str,
    value: float,
    unit: str,
    goal: float | None = None,
    peer: str | None = None,
    ratio: float | None = None,
    **more: Any,
) -> None:
    """Print a figure, with four significant digits."""
    row: dict[str, Any] = {"metric": metric, "value": _short(value), "unit": unit}
    row |= {} if goal is None else {"goal": goal}
    row |= {} if peer is None else {"peer": peer}
    row |= {} if ratio is None else {"ratio": _short(ratio)}
    print(json.dumps(row | more), flush=True)


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.4g}")
