"""`wgmma`: its registers are fenced before it and waited for after it."""

from __future__ import annotations

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.operands import vector
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import Asynchronous, Watcher
from spanlite_analytics.lab.audit.values import Mask


class MatrixOrder(Watcher):
    """Follows accumulators from wgmma.fence to wgmma.wait_group."""

    def __init__(self, machine: Machine) -> None:
        self.fenced = False
        self.groups: list[set[str]] = []
        self.open: set[str] = set()
        #: Accumulators that other instructions wrote since the last fence.
        self.written: set[str] = set()
        self.accumulators: set[str] = {
            register
            for instruction in machine.entry.code
            if instruction.name == "wgmma" and instruction.has("mma_async")
            for register in vector(instruction.operands[0])
        }

    def asynchronous(self, machine: Machine, use: Asynchronous) -> None:
        """The four instructions of the protocol."""
        if use.what == "wgmma":
            names = set(vector(use.instruction.operands[0]))
            if not self.fenced or names & self.written:
                machine.report(
                    "async-order",
                    use.instruction,
                    "no wgmma.fence since its registers were last written",
                )
            self.open |= names
        elif use.what == "wgmma-fence":
            self.fenced = True
            self.written.clear()
        elif use.what == "wgmma-commit":
            self.groups.append(self.open)
            self.open = set()
        elif use.what == "wgmma-wait":
            keep = use.groups
            self.groups = self.groups[len(self.groups) - keep :] if keep else []

    def step(self, machine: Machine, instruction: Instruction, mask: Mask) -> None:
        """Any other use of an accumulator."""
        if not self.accumulators or instruction.name == "wgmma":
            return
        pending = self.open.union(*self.groups)
        names = {n for text in instruction.operands for n in vector(text.strip("[]"))}
        if names & pending:
            machine.report(
                "async-order",
                instruction,
                "it uses an accumulator that a wgmma is still to write: wgmma.wait_group is due",
            )
        # A copy is how the compiler sets the first values; it knows to place the fence behind it.
        if instruction.operands and instruction.name not in ("st", "mov"):
            self.written |= set(vector(instruction.operands[0])) & self.accumulators
