"""Why warps wait, from the profiler's stall reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PREFIX = "smsp__average_warps_issue_stalled_"
_SUFFIX = "_per_issue_active.ratio"
#: What is no wait: the warp that issues, and those that could.
_NO_WAITS = ("selected", "not_selected")
_REASONS = {
    "long_scoreboard": (
        "global or local memory",
        "more loads in flight: unroll, cp.async or TMA, wider accesses, more warps",
    ),
    "short_scoreboard": (
        "shared memory and special functions",
        "fewer or wider shared-memory accesses, no bank conflicts; shuffles for reductions",
    ),
    "mio_throttle": (
        "the queue of shared-memory and special-function instructions",
        "fewer such instructions: wider accesses, arithmetic in between",
    ),
    "lg_throttle": ("the queue of memory instructions", "fewer, wider global accesses"),
    "barrier": ("__syncthreads", "smaller blocks, even work, warp-level synchronisation"),
    "membar": ("memory fences", "fewer fences, narrower scope"),
    "wait": ("fixed latency of dependent instructions", "more independent work a thread"),
    "math_pipe_throttle": ("a busy arithmetic pipe", "other instructions, or the tensor pipe"),
    "gmma": ("the tensor pipe", "larger tiles, more wgmma in flight"),
    "no_instruction": ("instruction fetch", "a smaller loop body, less unrolling"),
    "imc_miss": ("constant memory", "constants at the same address for the whole warp"),
    "drain": ("stores at the end of warps", "fewer bytes stored, coalesced stores"),
    "tex_throttle": ("the texture unit", "plain loads in its place"),
    "branch_resolving": ("branches", "fewer branches; predication"),
    "sleeping": ("sleeping warps", "spin less, wake sooner"),
    "dispatch_stall": ("dispatch", "nothing in the source is the usual cause"),
}


@dataclass(frozen=True, slots=True)
class Latency:
    """What the warps mostly wait for."""

    what: str
    evidence: str
    advice: str


def latency(values: Mapping[str, float]) -> Latency | None:
    """None where the stall reasons were not collected."""
    waits = {
        name[len(_PREFIX) : -len(_SUFFIX)]: value
        for name, value in values.items()
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    }
    for name in _NO_WAITS:
        waits.pop(name, None)
    total = sum(waits.values())
    if not total:
        return None
    ranked = sorted(waits, key=lambda name: -waits[name])
    what, advice = _REASONS.get(ranked[0], (ranked[0].replace("_", " "), "see the stall reasons"))
    shares = ", ".join(f"{name} {waits[name] / total:.0%}" for name in ranked[:3])
    return Latency(what, f"warps wait: {shares}", advice)
