"""Attributes as JSON text that any reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

_strict: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=float
).encode


def to_json(value: Any) -> str:
    """Compact JSON; NaN and infinities, for which JSON has no words, become text."""
    try:
        return _strict(value)
    except ValueError:
        return _strict(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    return value
