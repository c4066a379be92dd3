"""Names of kernels as people and other profilers write them: CUPTI gives them mangled."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any


@lru_cache(1)
def _library() -> tuple[Any, Any] | None:
    """(`__cxa_demangle`, `free`) of the C++ runtime that the agent's library uses anyway."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return demangle, free


@lru_cache(1 << 12)
def demangled(name: str) -> str:
    """`void f<float>(int)` for `_Z1fIfEvi`; any other text as it is."""
    found = _library() if name.startswith("_Z") else None
    if found is None:
        return name
    demangle, free = found
    address = demangle(name.encode(), None, None, None)
    if not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    free(address)
    return text
