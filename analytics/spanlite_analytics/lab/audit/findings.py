"""What a rule says, and the list of rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
_ORDER: dict[str, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of fault: how grave it is, what it is, and what to do about it."""

    name: str
    severity: Severity
    summary: str
    advice: str


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "shared-race",
            "error",
            "Two threads use the same shared memory, one writes, and nothing orders them",
            "Put __syncthreads() between the two accesses on every path, or __syncwarp() where "
            "both threads are of one warp.",
        ),
        Rule(
            "divergent-barrier",
            "error",
            "A barrier that not all of the threads it waits for reach",
            "Move the barrier out of the branch, or make the branch the same for the whole block.",
        ),
        Rule(
            "atomic-order",
            "error",
            "Blocks hand data over through a flag or counter that does not order it",
            "Put __threadfence() before the atomic that publishes and after the one that observes, "
            "or use cuda::atomic_ref with memory_order_release and memory_order_acquire.",
        ),
        Rule(
            "scope-wide",
            "warning",
            "A fence or atomic with a wider scope than the data it guards",
            "Use the narrowest scope that holds all who look: __threadfence_block() or a barrier "
            "for shared memory, device scope for global memory that no host or other GPU reads.",
        ),
        Rule(
            "scope-narrow",
            "error",
            "A fence or atomic of block scope on data that other blocks use",
            "Use device scope: atomicAdd() and not atomicAdd_block(), __threadfence() and not "
            "__threadfence_block().",
        ),
        Rule(
            "shuffle-redundant",
            "warning",
            "A shuffle that brings each lane a value it has already",
            "Remove it, and use the register that holds the value.",
        ),
        Rule(
            "shuffle-mask",
            "error",
            "A warp instruction whose mask does not name the lanes that execute it",
            "Compute the mask with __ballot_sync() before the branch, or move the instruction out "
            "of it.",
        ),
        Rule(
            "local-memory",
            "warning",
            "Registers live in local memory, that is, in global memory behind the caches",
            "For spills: fewer live values, a smaller block or a higher -maxrregcount. For arrays: "
            "unroll the loops that index them, so that each index is a constant.",
        ),
        Rule(
            "uncoalesced",
            "warning",
            "A warp's access to global memory touches more 32-byte sectors than its data needs",
            "Let neighbouring lanes use neighbouring addresses: turn the loop or the layout round "
            "(arrays of fields), or stage the tile through shared memory.",
        ),
        Rule(
            "unvectorised",
            "warning",
            "A thread loads neighbouring values one by one",
            "Load them at once: float4, half2 or uint4 through an aligned pointer.",
        ),
        Rule(
            "generic-address",
            "warning",
            "Shared memory is used through generic addresses",
            "Let the compiler see the array: index it directly, inline the function, or convert "
            "the pointer with __cvta_generic_to_shared().",
        ),
        Rule(
            "async-order",
            "error",
            "An asynchronous copy or matrix instruction lacks its fence or its wait",
            "Wait for it before its result is used (cp.async.wait_group, mbarrier.try_wait, "
            "wgmma.wait_group), and fence what it reads (fence.proxy.async, wgmma.fence).",
        ),
        Rule(
            "endless-loop",
            "error",
            "A loop that nothing can end: the load it waits for was moved out of it",
            "Make the flag an atomic, or volatile, so that each turn loads it again.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place of one kernel. `line` 0: the place is not known."""

    rule: str
    kernel: str
    file: str
    line: int
    evidence: str
    ptx_line: int = 0
    instruction: str = ""

    @property
    def severity(self) -> Severity:
        """That of its rule."""
        return RULES[self.rule].severity

    @property
    def advice(self) -> str:
        """That of its rule."""
        return RULES[self.rule].advice


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Gravest first, then by place; each place once a rule. Without a line, PTX's is the place."""
    unique = {
        (f.rule, f.kernel, f.file, f.line, 0 if f.line else f.ptx_line): f
        for f in reversed(list(findings))
    }
    return sorted(
        unique.values(), key=lambda f: (_ORDER[f.severity], f.file, f.line, f.rule, f.kernel)
    )
