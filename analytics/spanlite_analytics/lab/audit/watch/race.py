"""Two threads at the same byte of shared memory, one of them writing, with nothing between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import WARP, Access, Asynchronous, Watcher
from spanlite_analytics.lab.audit.values import Ints, Mask, Value
from spanlite_analytics.lab.audit.watch.clocks import Clocks

_NOBODY, _SEVERAL = -1, -2


class _Shadow:
    """The last to touch each byte in one way: thread, time, instruction."""

    def __init__(self, size_bytes: int) -> None:
        self.thread: NDArray[np.int32] = np.full(size_bytes, _NOBODY, np.int32)
        self.time: Ints = np.zeros(size_bytes, np.int64)
        self.instruction: NDArray[np.int32] = np.zeros(size_bytes, np.int32)


class SharedRace(Watcher):
    """Keeps, for each byte, the last write and the last read, and whether an order exists."""

    def __init__(self, machine: Machine) -> None:
        size = machine.shared_bytes + 16
        self.size = size
        self.written, self.atomics = _Shadow(size), _Shadow(size)
        # A second reader of a byte must not hide the first: two are kept, of different warps.
        self.read, self.read_too = _Shadow(size), _Shadow(size)
        self.clocks = Clocks(-(-machine.threads // WARP))
        self.code: dict[int, Instruction] = {}
        self.pending = _Pending(machine, size)

    def barrier(self, machine: Machine, warps: Mask) -> None:
        """Warps have met."""
        self.clocks.meet(warps)
        self.pending.barrier()

    def warp_barrier(self, machine: Machine, mask: Mask) -> None:
        """Lanes have met."""
        self.clocks.meet_within(machine.by_warp(mask))

    def access(self, machine: Machine, use: Access) -> None:
        """Check the bytes against what came before, then remember this use."""
        if use.space != "shared" or not self.size:
            return
        mask = use.mask & use.address.known
        if not mask.any():
            return
        threads = np.flatnonzero(mask)
        first = use.address.bits[threads]
        self.code[use.instruction.index] = use.instruction
        at = (first[:, None] + np.arange(use.size_bytes)).ravel()
        who = np.repeat(threads, use.size_bytes)
        inside = (at >= 0) & (at < self.size)
        at, who = at[inside], who[inside]
        self.pending.check(machine, use, at, who)
        if use.atomic:
            self._compare(machine, use, self.written, at, who)
            self._compare(machine, use, self.read, at, who)
            self._keep(self.atomics, use, at, who)
        elif use.writes:
            self._within(machine, use, at, who)
            for shadow in (self.written, self.read, self.read_too, self.atomics):
                self._compare(machine, use, shadow, at, who)
            self._keep(self.written, use, at, who)
        else:
            self._compare(machine, use, self.written, at, who)
            self._compare(machine, use, self.atomics, at, who)
            self._keep_read(use, at, who)

    def _compare(self, machine: Machine, use: Access, shadow: _Shadow, at: Ints, who: Ints) -> None:
        other = shadow.thread[at].astype(np.int64)
        suspect = (other != who) & (other >= 0)
        if not suspect.any():
            return
        at, who, other = at[suspect], who[suspect], other[suspect]
        free = ~self.clocks.ordered(who // WARP, other // WARP, shadow.time[at])
        if free.any():
            index = int(np.argmax(free))
            before = self.code.get(int(shadow.instruction[at[index]]), use.instruction)
            self._tell(machine, use, before, int(at[index]), int(who[index]), int(other[index]))

    def _within(self, machine: Machine, use: Access, at: Ints, who: Ints) -> None:
        """Two threads store different values to one byte with the same instruction."""
        order = np.argsort(at, kind="stable")
        same = (np.diff(at[order]) == 0) & (np.diff(who[order]) != 0)
        if not same.any():
            return
        index = int(np.argmax(same))
        first, second = int(who[order][index]), int(who[order][index + 1])
        if use.value is not None and use.value.number[first] != use.value.number[second]:
            self._tell(machine, use, use.instruction, int(at[order][index]), second, first)

    def _tell(
        self, machine: Machine, use: Access, before: Instruction, at: int, who: int, other: int
    ) -> None:
        def verb(i: Instruction) -> str:
            return {"st": "writes", "ld": "reads", "atom": "updates", "red": "updates"}.get(
                i.name, "uses"
            )

        warps = "the same warp" if who // WARP == other // WARP else "another warp"
        line = f" at line {before.place.line}" if before.place.line else ""
        machine.report(
            "shared-race",
            use.instruction,
            f"thread {who} {verb(use.instruction)} byte {at}, thread {other} of {warps} "
            f"{verb(before)} it{line}, and no barrier orders the two",
        )

    def _keep(self, shadow: _Shadow, use: Access, at: Ints, who: Ints) -> None:
        shadow.thread[at] = who
        shadow.time[at] = self.clocks.now[who // WARP]
        shadow.instruction[at] = use.instruction.index

    def _keep_read(self, use: Access, at: Ints, who: Ints) -> None:
        """The first and the last of the readers of each byte."""
        last = self.read.thread[at]
        moved = (last >= 0) & (last != who)
        old = at[moved]
        for name in ("thread", "time", "instruction"):
            getattr(self.read_too, name)[old] = getattr(self.read, name)[old]
        self._keep(self.read, use, at, who)
        # Of several lanes that read one byte at once, the first goes beside the last.
        self._keep(self.read_too, use, at[::-1], who[::-1]) if len(at) > len(
            np.unique(at)
        ) else None

    def asynchronous(self, machine: Machine, use: Asynchronous) -> None:
        """Copies that are under way."""
        self.code[use.instruction.index] = use.instruction
        landed = self.pending.take(machine, use)
        for at, who in landed:
            self.written.thread[at] = who
            self.written.time[at] = self.clocks.now[who // WARP]
            self.written.instruction[at] = use.instruction.index


class _Pending:
    """Bytes of shared memory that asynchronous copies are still to write, or still read."""

    def __init__(self, machine: Machine, size: int) -> None:
        #: For `cp.async`: who copies each byte, and in which of its groups.
        self.owner: NDArray[np.int32] = np.full(size, _NOBODY, np.int32)
        self.group: Ints = np.zeros(size, np.int64)
        self.committed: Ints = np.zeros(machine.threads, np.int64)
        #: For bulk copies: the mbarrier that tells, and which threads have waited on it.
        self.bulk: NDArray[np.int64] = np.full(size, _NOBODY, np.int64)
        self.waited: dict[int, Mask] = {}
        #: Bytes that ordinary stores wrote, which asynchronous reads do not see yet.
        self.unfenced: Mask = np.zeros(size, np.bool_)
        self.sent: Mask = np.zeros(size, np.bool_)
        self.size = size
        self.fresh_fence = False

    def barrier(self) -> None:
        """A block barrier makes no asynchronous copy finish."""

    def check(self, machine: Machine, use: Access, at: Ints, who: Ints) -> None:
        """An ordinary access meets a copy under way."""
        if (self.owner[at] >= 0).any():
            place = int(at[int(np.argmax(self.owner[at] >= 0))])
            machine.report(
                "async-order",
                use.instruction,
                f"byte {place} is still being copied by cp.async: nobody has waited for its group",
            )
        bars = self.bulk[at]
        for bar in np.unique(bars[bars >= 0]):
            here = who[bars == bar]
            waited = self.waited.get(int(bar), np.zeros(machine.threads, np.bool_))
            if not waited[here].all() and not self._ordered(waited):
                machine.report(
                    "async-order",
                    use.instruction,
                    "a bulk copy is still to write these bytes: nobody has waited on its mbarrier",
                )
        if use.writes:
            if self.sent[at].any():
                machine.report(
                    "async-order",
                    use.instruction,
                    "a bulk store still reads these bytes: cp.async.bulk.wait_group.read is due",
                )
            self.unfenced[at] = True

    def _ordered(self, waited: Mask) -> bool:
        """One thread has waited, and a barrier has told the others: good enough."""
        return bool(waited.any())

    def take(self, machine: Machine, use: Asynchronous) -> list[tuple[Ints, Ints]]:
        """Note what is under way; return bytes that have landed, with the thread that waited."""
        threads = np.flatnonzero(use.mask)
        if use.what == "copy" and use.address is not None:
            at, who = self._bytes(use.address, use.size_bytes, threads)
            self.owner[at] = who
            self.group[at] = self.committed[who]
        elif use.what in ("commit", "copies-to-barrier"):
            self.committed[threads] += 1
        elif use.what == "wait":
            return [self._land(threads, use.groups)]
        elif use.what == "bulk-load" and use.address is not None and use.barrier is not None:
            at, who = self._bytes(use.address, use.size_bytes, threads)
            self.bulk[at] = use.barrier.bits[who]
            self.waited[int(use.barrier.bits[threads[0]])] = np.zeros(machine.threads, np.bool_)
        elif use.what == "barrier-wait" and use.barrier is not None:
            self._barrier_wait(machine, use, threads)
        elif use.what == "proxy-fence":
            self.unfenced[:] = False
        elif use.what == "bulk-store" and use.address is not None:
            self._bulk_store(machine, use, threads)
        elif use.what == "bulk-wait":
            self.sent[:] = False
        elif use.what == "wgmma" and self.unfenced.any():
            machine.report(
                "async-order",
                use.instruction,
                "it reads shared memory that ordinary stores wrote, no fence.proxy.async since",
            )
            self.unfenced[:] = False
        return []

    def _bytes(self, address: Value, size: int, threads: Ints) -> tuple[Ints, Ints]:
        known = threads[address.known[threads]]
        at = (address.bits[known][:, None] + np.arange(size)).ravel()
        who = np.repeat(known, size)
        inside = (at >= 0) & (at < self.size)
        return at[inside], who[inside]

    def _land(self, threads: Ints, groups: int) -> tuple[Ints, Ints]:
        at = np.flatnonzero(self.owner >= 0)
        who = self.owner[at].astype(np.int64)
        done = np.isin(who, threads) & (self.group[at] < self.committed[who] - groups)
        self.owner[at[done]] = _NOBODY
        return at[done], who[done]

    def _barrier_wait(self, machine: Machine, use: Asynchronous, threads: Ints) -> None:
        assert use.barrier is not None
        for bar in np.unique(use.barrier.bits[threads]):
            waited = self.waited.setdefault(int(bar), np.zeros(machine.threads, np.bool_))
            waited[threads] = True
            # What cp.async handed to this mbarrier has landed too.
            self.owner[self.owner >= 0] = _NOBODY

    def _bulk_store(self, machine: Machine, use: Asynchronous, threads: Ints) -> None:
        assert use.address is not None
        at, _ = self._bytes(use.address, use.size_bytes, threads)
        if self.unfenced[at].any():
            machine.report(
                "async-order",
                use.instruction,
                "it reads shared memory that ordinary stores wrote, no fence.proxy.async since",
            )
            self.unfenced[at] = False
        self.sent[at] = True
