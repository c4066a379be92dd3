"""What GPUs can do at most, from their makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """Peak rates. `flops`: dense 16-bit tensor operations a second."""

    name: str
    flops: float
    bytes_per_s: float
    sms: int

    @property
    def ridge(self) -> float:
        """Operations a byte above which a kernel is bound by arithmetic."""
        return self.flops / self.bytes_per_s


_GPUS = (
    (r"H200", Gpu("H200", 989e12, 4.8e12, 132)),
    (r"H100.*PCIe", Gpu("H100 PCIe", 756e12, 2.0e12, 114)),
    (r"GH200|H100", Gpu("H100", 989e12, 3.35e12, 132)),
    (r"B200|GB200", Gpu("B200", 2250e12, 8.0e12, 148)),
    (r"A100.*80GB", Gpu("A100 80GB", 312e12, 2.0e12, 108)),
    (r"A100", Gpu("A100", 312e12, 1.555e12, 108)),
    (r"L40S", Gpu("L40S", 362e12, 0.864e12, 142)),
    (r"V100", Gpu("V100", 125e12, 0.9e12, 80)),
)
#: Where the name is not recorded. Its ridge lies between those of A100 and H100.
UNKNOWN = Gpu("unknown GPU (taken for an H100)", 989e12, 3.35e12, 132)


def gpu_of(name: str) -> Gpu:
    """By the name that the driver gives."""
    for pattern, gpu in _GPUS:
        if re.search(pattern, name):
            return gpu
    return UNKNOWN
