"""What a run is made of: its assumptions, the ways its warps go, and what the rules are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spanlite_analytics.lab.audit.ptx import Function, Instruction
from spanlite_analytics.lab.audit.values import Mask, Value

if TYPE_CHECKING:
    from spanlite_analytics.lab.audit.machine import Machine

WARP = 32
#: Generic addresses of shared and local memory start here; pointers of parameters lie far below.
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
#: Each pointer parameter and global variable gets a region of its own.
REGION_BITS = 40


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run assumes: the block's shape and place, integers given, branches turned round."""

    block: tuple[int, int, int]
    block_index: int
    grid: int
    integer: int
    seed: int = 0
    #: Branches (function, instruction) whose first uniform outcome is turned round.
    turned: frozenset[tuple[str, int]] = frozenset()


@dataclass(slots=True)
class Level:
    """An entry of the stack: where its threads are, and where they wait for the others."""

    function: Function
    at: int
    until: int
    mask: Mask
    is_call: bool = False


@dataclass(slots=True)
class Join:
    """Contexts that part and meet again; `waiting` is how many have not come yet."""

    parent: Context
    waiting: int
    done: Mask


@dataclass(slots=True, eq=False)
class Context:
    """Warps that go one way together."""

    stack: list[Level]
    join: Join | None = None
    blocked: bool = False


class Watcher:
    """A rule that looks on. It overrides what it wants to see."""

    def step(self, machine: Machine, instruction: Instruction, mask: Mask) -> None:
        """Before an instruction is carried out by the threads of `mask`."""

    def access(self, machine: Machine, use: Access) -> None:
        """Memory is used."""

    def shuffle(self, machine: Machine, use: Shuffle) -> None:
        """Values go from lane to lane."""

    def asynchronous(self, machine: Machine, use: Asynchronous) -> None:
        """An asynchronous copy or matrix instruction, or a fence or wait for one."""

    def barrier(self, machine: Machine, warps: Mask) -> None:
        """Warps have met; `warps` holds one bool a warp."""

    def warp_barrier(self, machine: Machine, mask: Mask) -> None:
        """`__syncwarp()`."""


@dataclass(slots=True)
class Access:
    """One instruction's use of memory by the threads of `mask`."""

    instruction: Instruction
    mask: Mask
    space: str
    address: Value
    size_bytes: int
    reads: bool
    writes: bool
    atomic: bool = False
    generic: bool = False
    #: What is stored.
    value: Value | None = None


@dataclass(slots=True)
class Asynchronous:
    """What an asynchronous instruction does: a word for it, and where it applies."""

    what: str
    instruction: Instruction
    mask: Mask
    address: Value | None = None
    size_bytes: int = 0
    barrier: Value | None = None
    groups: int = 0


@dataclass(slots=True)
class Shuffle:
    """A shuffle, and what it gave to each thread."""

    instruction: Instruction
    mask: Mask
    given: Value
    result: Value


class OutOfStepsError(Exception):
    """The run has used up its instructions."""
