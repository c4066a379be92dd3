"""How far this host's clock may be from UTC, as the kernel says."""

from __future__ import annotations

import ctypes


class _Timex(ctypes.Structure):
    """The begin of `struct timex`; the rest is not read (adjtimex(2))."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("rest", ctypes.c_char * 512),
    )


def clock_error_ns() -> int:
    """The kernel's bound on the clock's error: microseconds where NTP or PTP keeps it, else 16 s.

    Where nobody keeps it the bound grows by 500 ppm until then. 0 where the kernel does not say.
    To read it needs no right (adjtimex(2), `modes` 0).
    """
    timex = _Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):  # not Linux
        return 0
    return max(0, timex.maxerror) * 1000 if state >= 0 else 0
