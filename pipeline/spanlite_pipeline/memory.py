"""How a Python worker keeps its memory between batches."""

from __future__ import annotations

import ctypes

import pyarrow as pa

#: Parameters of glibc's mallopt, from <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Reuse freed arrays instead of giving them back to the kernel.

    The arrays of a batch are just large enough that glibc would fetch and return their
    pages each time; the page faults then take a fifth of the work. Does nothing where the
    C library has no mallopt.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)
        mallopt(_M_TOP_PAD, 16 << 20)
