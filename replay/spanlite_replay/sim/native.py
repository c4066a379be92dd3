"""The event loop in C++, where a compiler is at hand; else the one in Python does the same.

engine.cpp is compiled once, with `$CXX` or g++, into the user's cache folder, under a name that
its text decides. `SPANLITE_SIM_NATIVE=0` does without.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from spanlite_replay._compiled import compiled
from spanlite_replay.sim.flat import Flat, Ran

F64 = npt.NDArray[np.float64]
SOURCE = Path(__file__).with_name("engine.cpp")
VARIABLE = "SPANLITE_SIM_NATIVE"
#: No contraction: fused operations would round otherwise than Python does.
OPTIONS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared")
#: With fewer spans the time to compile is not worth it.
WORTH_IT = 5_000

_SIZES = 4
_WORD, _NUMBER = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_double)


class _Program(ctypes.Structure):
    """`SpanliteProgram`."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("count", "calls", "segments", "paces")],  # _SIZES
        ("segment", _WORD),
        *[(name, _NUMBER) for name in ("after", "floor", "gap", "solo")],
        ("engine", _WORD),
        ("room", _NUMBER),
        *[(name, _WORD) for name in ("waiting_for", "then_from", "then_items")],
        *[(name, _WORD) for name in ("wakes_from", "wakes_items", "call_segment")],
        *[(name, _NUMBER) for name in ("call_after", "call_floor", "call_cost", "call_delay")],
        *[(name, _WORD) for name in ("call_waits", "call_next")],
        ("begins", _NUMBER),
        *[(name, _WORD) for name in ("last_call", "by_plan")],
        *[(name, _NUMBER) for name in ("pace", "start", "end", "returned")],
    )


def is_there() -> bool:
    """Whether large recordings can run so; compiles at the first call."""
    return os.environ.get(VARIABLE, "1") != "0" and _library() is not None


def run(flat: Flat) -> Ran:
    """Run it to the end; the same times as `engine.run`."""
    library = _library()
    assert library is not None
    count, calls = len(flat.solo), len(flat.call_cost)
    arrays: dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64]] = {
        name: getattr(flat, name)
        for name in flat.__dataclass_fields__
        if name not in ("then", "wakes")
    }
    for name, fan in (("then", flat.then), ("wakes", flat.wakes)):
        arrays |= {f"{name}_from": fan.start, f"{name}_items": fan.items}
    arrays |= {
        "start": np.full(count, -1.0),
        "end": np.zeros(count),
        "returned": np.zeros(calls),
    }
    program = _Program(count, calls, len(flat.begins), len(flat.pace))
    kept: dict[str, F64] = {}
    for field in _Program._fields_[_SIZES:]:
        name, kind = field[0], cast(Any, field[1])
        # A copy: the loop counts in some of them.
        array = np.array(arrays[name], np.int64 if kind is _WORD else np.float64, order="C")
        kept[name] = array.view(np.float64)
        setattr(program, name, ctypes.cast(array.ctypes.data, kind))
    given_up = int(library.spanlite_sim_run(ctypes.byref(program)))
    return Ran(kept["start"], kept["end"], kept["returned"], kept["begins"], given_up)


@cache
def _library() -> ctypes.CDLL | None:
    # Where there is none, the loop in Python is slower and says the same.
    if (library := compiled(SOURCE, "sim", OPTIONS)) is None:
        return None
    library.spanlite_sim_run.restype = ctypes.c_int64
    library.spanlite_sim_run.argtypes = [ctypes.POINTER(_Program)]
    return library
