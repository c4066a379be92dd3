"""JSON in and out: what a source says becomes text and numbers that every reader takes.

JSON can spell half a character ("\\ud800"), which no UTF-8 can hold: such text would fail in
the first program after us that writes it. All JSON that spans come from is read by `load_json`
or by `JsonStream`, and both hand it through `without_surrogates`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

_strict: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=float
).encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: How deep attributes may lie in each other. Readers get as far as their stack goes, and that
#: of a job's worker is half used before it starts; OTLP allows about 50.
MAX_DEPTH = 64
#: How a surrogate begins in JSON; without it there is none, which is quick to see.
ESCAPE = "\\u"


def load_json(data: str | bytes) -> Any:
    """A whole document; half characters become U+FFFD.

    Raises ValueError, as `json.loads` does, also where it is nested too deeply.
    """
    # json's own decoding of bytes lets surrogates through.
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
    try:
        value = json.loads(text)
        if ESCAPE in text:
            value = without_surrogates(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def whole_text(text: str) -> str:
    """The text with U+FFFD for each half of a character."""
    return text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text)


def without_surrogates(value: Any) -> Any:
    """A JSON value with all its texts, and keys, whole. Raises RecursionError."""
    if type(value) is str:
        return whole_text(value)
    if isinstance(value, dict):
        return {whole_text(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    return value


def to_json(value: Any) -> str:
    """Compact JSON; NaN and infinities, for which JSON has no words, become text.

    Raises ValueError where it is nested too deeply.
    """
    try:
        try:
            text = _strict(value)
        except ValueError:
            text = _strict(_finite(value))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Some lists are many brackets that lie beside each other; only then it has to be measured.
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise ValueError("nested too deeply")
    return whole_text(text)


def _is_deeper(value: Any, levels: int) -> bool:
    inner: Any = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple):
        return False
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, Decimal) and not math.isfinite(float(value)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    return value
