"""Gives memory back to the system that a burst of spans took and nobody holds any more.

glibc returns what lies at the end of a heap; what is free below that it keeps. Bursts of large
arrays leave more of it each time, so that a daemon seems to grow for as long as it runs.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import pyarrow as pa

#: glibc's, by their numbers in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 1 << 20


@lru_cache(1)
def _trim() -> Any:
    """glibc's `malloc_trim`; None where the C library is another one."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


def keep_little() -> None:
    """Large arrays have a mapping each, which ends with them, and so do the ends of heaps.

    By itself glibc raises both limits to some 64 MiB in a process that frees large arrays, and
    `malloc_trim` leaves the ends of all threads' heaps but the first one's.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        change(_M_TRIM_THRESHOLD, _LARGE_BYTES)


def give_back() -> None:
    """Some milliseconds, so not all the time."""
    pa.default_memory_pool().release_unused()
    trim = _trim()
    if trim is not None:
        trim(0)
