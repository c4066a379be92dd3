"""How many blocks of a kernel an SM holds, by CUDA's own rules.

`occupancy` computes it for arrays of launch configurations; `limits_of` says what an SM of a
compute capability holds.
"""

from spanlite.occupancy.limits import KNOWN_GPUS, SM_LIMITS, SmLimits, known_gpu, limits_of
from spanlite.occupancy.rules import UNLIMITED, Limiter, Occupancy, occupancy

__all__ = [
    "KNOWN_GPUS",
    "SM_LIMITS",
    "UNLIMITED",
    "Limiter",
    "Occupancy",
    "SmLimits",
    "known_gpu",
    "limits_of",
    "occupancy",
]
