"""Loads, stores, atomics and asynchronous copies of a Machine."""

from __future__ import annotations

import numpy as np

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.operands import (
    address,
    is_float,
    parameter,
    read,
    split_address,
    type_of,
    undefined,
    vector,
)
from spanlite_analytics.lab.audit.ptx import Instruction, type_bytes
from spanlite_analytics.lab.audit.state import (
    LOCAL_WINDOW,
    REGION_BITS,
    SHARED_WINDOW,
    Access,
    Asynchronous,
    Level,
)
from spanlite_analytics.lab.audit.values import (
    From,
    Mask,
    Value,
    blend,
    mix,
    unknown,
)

#: What a TMA tensor copy is taken to bring, where its size stands in a descriptor.
TENSOR_BYTES = 128
_SPACES = ("shared", "global", "local", "const", "param")


def space_of(instruction: Instruction) -> str:
    """The state space in an opcode; empty for a generic address."""
    for word in instruction.words[1:]:
        plain = word.split("::")[0]
        if plain in _SPACES:
            return plain
    return ""


def resolve(
    machine: Machine, instruction: Instruction, where: Value, mask: Mask
) -> tuple[str, Value, bool]:
    """Space, address within it, and whether the instruction left the space open."""
    space = space_of(instruction)
    if space:
        return space, where, False
    first = int(where.bits[mask][0])
    if where.known[mask].all() and first >= LOCAL_WINDOW:
        return "local", _moved(where, LOCAL_WINDOW), True
    if where.known[mask].all() and first >= SHARED_WINDOW:
        return "shared", _moved(where, SHARED_WINDOW), True
    return "global", where, True


def _moved(where: Value, window: int) -> Value:
    return blend(where.bits - window, where.number, where.known, where.origin)


def _tell(machine: Machine, use: Access) -> None:
    for watcher in machine.watchers:
        watcher.access(machine, use)


def _where(machine: Machine, level: Level, text: str) -> Value:
    base, _ = split_address(text)
    if base not in machine.registers[level.function.name] and base in machine.symbols:
        _, at = machine.symbols[base]
        _, offset = split_address(text)
        return machine.constant(at + offset)
    return address(machine, level.function, text)


def _shift(where: Value, distance: int) -> Value:
    if distance == 0:
        return where
    number = mix("offset", where.number, np.full_like(where.number, np.uint64(distance)))
    return blend(where.bits + distance, number, where.known, where.origin)


def _version(machine: Machine, instruction: Instruction, where: Value, mask: Mask) -> np.uint64:
    """Plain loads from one place agree until somebody stores there; others never do."""
    if instruction.has("volatile", "acquire", "relaxed", "mmio"):
        return machine.fresh()
    region = int(where.bits[mask][0]) >> REGION_BITS
    return np.uint64(machine.versions[region])


def load(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`ld`."""
    type_ = type_of(instruction.words)
    size = type_bytes(type_)
    names = vector(instruction.operands[0])
    if space_of(instruction) == "param":
        _load_parameter(machine, level, instruction, mask, type_)
        return
    where = _where(machine, level, instruction.operands[1])
    space, where, generic = resolve(machine, instruction, where, mask)
    _tell(
        machine,
        Access(instruction, mask, space, where, size * len(names), True, False, generic=generic),
    )
    version = _version(machine, instruction, where, mask)
    for place, name in enumerate(names):
        at = _shift(where, place * size)
        if space == "shared":
            value = machine.shared.load(at, size)[0]
        else:
            number = mix("load", at.number, np.full_like(at.number, version))
            value = unknown(number, From.MEMORY)
        if is_float(type_) and value.known.any():
            value = Value(value.bits, np.zeros_like(value.known), value.number, value.origin)
        machine.write(level.function.name, name, value, mask)


def _load_parameter(
    machine: Machine, level: Level, instruction: Instruction, mask: Mask, type_: str
) -> None:
    base, offset = split_address(instruction.operands[1])
    names = vector(instruction.operands[0])
    for place, name in enumerate(names):
        at = offset + place * type_bytes(type_)
        value = parameter(machine, level.function, base, at, type_)
        if value is None:
            value = undefined(machine, level.function, f"{base}+{at}")
        machine.write(level.function.name, name, value, mask)


def store(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`st`."""
    type_ = type_of(instruction.words)
    size = type_bytes(type_)
    names = vector(instruction.operands[1])
    if space_of(instruction) == "param":
        base, offset = split_address(instruction.operands[0])
        for place, name in enumerate(names):
            value = read(machine, level.function, name)
            key = (level.function.name, base, offset + place * size)
            old = machine.parameters.get(key)
            machine.parameters[key] = value if old is None else value.where(mask, old)
        return
    where = _where(machine, level, instruction.operands[0])
    space, where, generic = resolve(machine, instruction, where, mask)
    use = Access(instruction, mask, space, where, size * len(names), False, True, generic=generic)
    use.value = read(machine, level.function, names[0])
    _tell(machine, use)
    if space == "global":
        machine.versions[int(where.bits[mask][0]) >> REGION_BITS] += 1
    for place, name in enumerate(names):
        if space == "shared":
            value = read(machine, level.function, name)
            machine.shared.store(_shift(where, place * size), value, size, mask)


def atomic(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`atom` and `red`."""
    has_result = instruction.name == "atom"
    where = _where(machine, level, instruction.operands[1 if has_result else 0])
    size = type_bytes(type_of(instruction.words))
    space, where, generic = resolve(machine, instruction, where, mask)
    _tell(
        machine,
        Access(instruction, mask, space, where, size, True, True, atomic=True, generic=generic),
    )
    fresh = np.full(machine.threads, machine.fresh(), np.uint64)
    number = mix("atom", where.number, fresh, machine.thread[0].number, machine.lane.number)
    made = unknown(number, From.ATOMIC)
    if space == "shared":
        machine.shared.store(where, made, size, mask)
    elif space == "global":
        machine.versions[int(where.bits[mask][0]) >> REGION_BITS] += 1
    if has_result:
        machine.write(level.function.name, instruction.operands[0], made, mask)


# -- asynchronous ------------------------------------------------------------------------------


def _announce(machine: Machine, use: Asynchronous) -> None:
    for watcher in machine.watchers:
        watcher.asynchronous(machine, use)


def _shared_address(machine: Machine, level: Level, text: str) -> Value:
    where = _where(machine, level, text)
    return _moved(where, SHARED_WINDOW) if (where.bits >= SHARED_WINDOW).any() else where


def copy(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`cp.async` and its kin."""
    words, operands = instruction.words, instruction.operands
    if instruction.has("commit_group"):
        what = "bulk-commit" if instruction.has("bulk") else "commit"
        _announce(machine, Asynchronous(what, instruction, mask))
    elif instruction.has("wait_group", "wait_all"):
        groups = int(read(machine, level.function, operands[0]).bits[0]) if operands else 0
        what = "bulk-wait" if instruction.has("bulk") else "wait"
        if what == "wait" and instruction.has("wait_all"):
            groups = 0
        _announce(machine, Asynchronous(what, instruction, mask, groups=groups))
    elif instruction.has("prefetch"):
        return
    elif instruction.has("mbarrier"):
        at = _shared_address(machine, level, operands[0])
        _announce(machine, Asynchronous("copies-to-barrier", instruction, mask, barrier=at))
    elif instruction.has("bulk"):
        _bulk(machine, level, instruction, mask)
    elif words[1:2] == ("async",):
        to = _shared_address(machine, level, operands[0])
        size = int(read(machine, level.function, operands[2]).bits[0])
        from_ = _where(machine, level, operands[1])
        _tell(machine, Access(instruction, mask, "global", from_, size, True, False))
        _announce(machine, Asynchronous("copy", instruction, mask, to, size))


def _bulk(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    operands = instruction.operands
    spaces = [w.split("::")[0] for w in instruction.words if w.split("::")[0] in _SPACES]
    tensor = instruction.has("tensor")
    if spaces and spaces[0] == "shared":
        to = _shared_address(machine, level, operands[0])
        size = TENSOR_BYTES if tensor else _size(machine, level, operands[2], mask)
        bar = next((o for o in operands[2:] if o.startswith("[")), "")
        barrier = _shared_address(machine, level, bar) if bar else None
        _announce(machine, Asynchronous("bulk-load", instruction, mask, to, size, barrier))
    else:
        from_ = _shared_address(machine, level, operands[1])
        size = TENSOR_BYTES if tensor else _size(machine, level, operands[2], mask)
        _announce(machine, Asynchronous("bulk-store", instruction, mask, from_, size))


def _size(machine: Machine, level: Level, text: str, mask: Mask) -> int:
    value = read(machine, level.function, text, "u32")
    return int(value.bits[mask][0]) if value.known[mask].all() else TENSOR_BYTES


def mbarrier(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`mbarrier.*`: a wait ends when what it waits for is there."""
    operands = instruction.operands
    at = next((o for o in operands if o.startswith("[")), "")
    where = _shared_address(machine, level, at) if at else None
    if instruction.has("try_wait", "test_wait"):
        _announce(machine, Asynchronous("barrier-wait", instruction, mask, barrier=where))
        value = machine.constant(1)
        machine.write(level.function.name, operands[0].split("|")[0], value, mask)
        return
    what = "barrier-arrive" if instruction.has("arrive", "arrive_drop") else "barrier-other"
    _announce(machine, Asynchronous(what, instruction, mask, barrier=where))
    if operands and not operands[0].startswith("["):
        fresh = np.full(machine.threads, machine.fresh(), np.uint64)
        machine.write(
            level.function.name, operands[0], unknown(mix("mbarrier", fresh), From.MEMORY), mask
        )


def matrix(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`wgmma.*`."""
    if instruction.has("mma_async"):
        _announce(machine, Asynchronous("wgmma", instruction, mask))
        fresh = np.full(machine.threads, machine.fresh(), np.uint64)
        value = unknown(mix("wgmma", fresh, machine.thread[0].number), From.MEMORY)
        for name in vector(instruction.operands[0]):
            machine.write(level.function.name, name, value, mask)
    elif instruction.has("wait_group"):
        groups = int(instruction.operands[0]) if instruction.operands else 0
        _announce(machine, Asynchronous("wgmma-wait", instruction, mask, groups=groups))
    else:
        what = "wgmma-commit" if instruction.has("commit_group") else "wgmma-fence"
        _announce(machine, Asynchronous(what, instruction, mask))


def matrix_load(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`ldmatrix`, `stmatrix`: each lane's address is a row of 16 bytes."""
    loads = instruction.name == "ldmatrix"
    target, at = instruction.operands if loads else reversed(instruction.operands)
    where = _shared_address(machine, level, at)
    count = next((int(w[1:]) for w in instruction.words if w in ("x1", "x2", "x4")), 1)
    rows = mask & (machine.lane.bits < 8 * count)
    if rows.any():
        _tell(machine, Access(instruction, rows, "shared", where, 16, loads, not loads))
    if loads:
        fresh = np.full(machine.threads, machine.fresh(), np.uint64)
        for place, name in enumerate(vector(target)):
            number = mix(f"ldmatrix {place}", fresh, machine.thread[0].number)
            machine.write(level.function.name, name, unknown(number, From.MEMORY), mask)


def nothing(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """Fences and hints: the watchers see them in `step`."""
    if instruction.name == "fence" and instruction.has("proxy"):
        _announce(machine, Asynchronous("proxy-fence", instruction, mask))
