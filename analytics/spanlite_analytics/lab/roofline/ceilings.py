"""What GPUs can do: bytes a second from device memory, FLOP a second of each type.

Dense rates, without structured sparsity, at the boost clock that the vendor's sheet goes by. A
type without a suffix is the tensor cores' (`fp32` has none: `tf32` does); `_vector` marks
the ordinary pipes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from spanlite.errors import UsageError

#: In the order that tables print them.
TYPES = ("fp64", "tf32", "bf16", "fp16", "fp8", "int8", "fp64_vector", "fp32_vector", "fp16_vector")
_TERA = 1e12


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of one GPU. `flops_per_s` lacks the types that it does not have."""

    name: str
    bytes_per_s: float
    flops_per_s: dict[str, float]
    sms: int
    source: str
    measured: bool = False

    def ridge(self, kind: str) -> float:
        """FLOP a byte at which a type's roof meets the memory's."""
        return self.flops_per_s[kind] / self.bytes_per_s


def _gpu(name: str, memory: float, sms: int, source: str, **tera: float) -> Ceilings:
    rates = {kind: value * _TERA for kind, value in tera.items()}
    return Ceilings(name, memory * _TERA, rates, sms, source)


_HOPPER_SXM = {
    "fp64": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9,
    "fp64_vector": 33.5, "fp32_vector": 66.9, "fp16_vector": 133.8,
}  # fmt: skip
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture (white paper) and H100 datasheet"
GPUS: tuple[Ceilings, ...] = (
    _gpu("H100 SXM", 3.35, 132, _H100_PAPER, **_HOPPER_SXM),
    _gpu(
        "H100 PCIe", 2.0, 114, _H100_PAPER,
        fp64=51.2, tf32=378, bf16=756, fp16=756, fp8=1513, int8=1513,
        fp64_vector=25.6, fp32_vector=51.2, fp16_vector=102.4,
    ),
    _gpu("H200", 4.8, 132, "NVIDIA H200 datasheet; rates of the H100 SXM's chip", **_HOPPER_SXM),
    _gpu(
        "A100", 2.039, 108, "NVIDIA A100 80GB SXM datasheet",
        fp64=19.5, tf32=156, bf16=312, fp16=312, int8=624,
        fp64_vector=9.7, fp32_vector=19.5, fp16_vector=78,
    ),
    _gpu(
        "B200", 7.7, 148, "NVIDIA Blackwell datasheet, HGX B200, half of the sparse rates",
        fp64=37, tf32=1100, bf16=2250, fp16=2250, fp8=4500, int8=4500,
        fp64_vector=37, fp32_vector=75,
    ),
)  # fmt: skip


def ceilings_of(name: str) -> Ceilings | None:
    """By a name such as traces have (`NVIDIA H100 80GB HBM3`); None where no word is known."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    known = {gpu.name.lower(): gpu for gpu in GPUS}
    if "h100" in words:
        return known["h100 pcie" if "pcie" in words else "h100 sxm"]
    for word in words:
        # Lenovo and cloud names write `A100-SXM4-80GB`; a GH200 has the H200's processor.
        found = known.get(word)
        if found is not None:
            return found
    return None


def named(name: str, measured: bool = False) -> Ceilings:
    """As asked for on a command line. Raises UsageError, which lists what is known."""
    found = ceilings_of(name)
    if found is None:
        listed = ", ".join(gpu.name for gpu in GPUS)
        raise UsageError(f"--gpu {name}: no ceilings are known; known: {listed}")
    if not measured:
        return found
    if found.name != "H200":
        raise UsageError("--measured: only an H200 was measured")
    return measured_h200()


@lru_cache
def _measurements() -> dict[str, Any]:
    text = files("spanlite_analytics.lab.roofline").joinpath("h200.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def measured_h200() -> Ceilings:
    """What an H200 reached: the best of copy, triad, read and write; large matrix products.

    Types that were not measured keep the sheet's rate, and INT8 too: PyTorch's product runs an
    Ampere kernel there, which says nothing of the chip.
    """
    sheet = next(gpu for gpu in GPUS if gpu.name == "H200")
    found = _measurements()
    about = found["about"]
    source = f"{about['command']} on {about['name']}, {about['date'][:10]}"
    rates = sheet.flops_per_s | found["flops_per_s"] | {"int8": sheet.flops_per_s["int8"]}
    best = max(found["bytes_per_s"].values())
    return Ceilings("H200", best, rates, sheet.sms, source, measured=True)
