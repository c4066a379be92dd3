"""Carries out PTX instructions in a Machine, and tells its watchers about memory and warps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spanlite_analytics.lab.audit import memory, values, warp
from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.operands import (
    is_float,
    read,
    type_of,
    vector,
    width_of,
)
from spanlite_analytics.lab.audit.ptx import Instruction, split_operands
from spanlite_analytics.lab.audit.state import LOCAL_WINDOW, SHARED_WINDOW, Context, Level
from spanlite_analytics.lab.audit.values import From, Mask, Value, blend, mix, unknown, wrapped

Handler = Callable[[Machine, Level, Instruction, Mask], None]


def execute(
    machine: Machine, context: Context, level: Level, instruction: Instruction, mask: Mask
) -> None:
    """One instruction, for the threads of `mask`."""
    if instruction.name in ("ret", "exit", "trap"):
        machine.leave(context, level, mask, instruction.name != "ret")
    elif instruction.name == "call":
        _call(machine, context, level, instruction, mask)
    elif instruction.name in ("bar", "barrier"):
        _barrier(machine, context, level, instruction, mask)
    else:
        handler = _HANDLERS.get(instruction.name, _arithmetic)
        handler(machine, level, instruction, mask)


def _write(machine: Machine, level: Level, register: str, value: Value, mask: Mask) -> None:
    machine.write(level.function.name, register, value, mask)


def _arithmetic(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """Anything that makes a register from registers."""
    if not instruction.operands:
        return
    type_ = type_of(instruction.words)
    names = vector(instruction.operands[0])
    sources = [name for text in instruction.operands[1:] for name in vector(text)]
    inputs = [read(machine, level.function, s.strip("[]"), type_) for s in sources]
    if not inputs:
        inputs = [machine.constant(0)]
    value = _result(instruction, type_, inputs)
    for place, name in enumerate(names):
        made = value if place == 0 else _numbered(f"part {place}", value)
        for half, register in enumerate(name.split("|")):
            _write(machine, level, register, made if half == 0 else _numbered("half", made), mask)


def _numbered(name: str, value: Value) -> Value:
    return unknown(mix(name, value.number), value.origin)


def _result(instruction: Instruction, type_: str, inputs: list[Value]) -> Value:
    origin = From.NOTHING
    for value in inputs:
        origin |= value.origin
    number = _number(instruction, inputs)
    width, signed = width_of(type_)
    if is_float(type_) or type_ == "b128":
        return unknown(number, origin)
    bits = values.integer(
        instruction.name, instruction.words, width, signed, [v.bits for v in inputs]
    )
    if bits is None:
        return unknown(number, origin)
    known = inputs[0].known
    for value in inputs[1:]:
        known = known & value.known
    wide = 64 if "wide" in instruction.words else width
    return blend(wrapped(bits, wide, True), number, known, origin)


def _number(instruction: Instruction, inputs: list[Value]) -> values.Numbers:
    numbers = [v.number for v in inputs]
    if instruction.name in values.COMMUTATIVE and len(numbers) == 2:
        a, b = numbers
        numbers = [np.minimum(a, b), np.maximum(a, b)]
    return mix(instruction.opcode, *numbers)


def _move(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`mov`: a copy, or a vector packed into one register or out of it."""
    target, source = instruction.operands
    if target.startswith("{"):
        whole = read(machine, level.function, source)
        names = vector(target)
        width, _ = width_of(type_of(instruction.words))
        for place, name in enumerate(names):
            part = width // len(names)
            bits = wrapped(whole.bits >> (part * place), part, True)
            number = mix(f"piece {place} of {len(names)}", whole.number)
            value = blend(bits, number, whole.known, whole.origin)
            packed = machine.parts.get((level.function.name, source))
            if packed and len(packed[1]) == len(names) and (packed[0] == whole.number).all():
                value = packed[1][place]
            _write(machine, level, name, value, mask)
    elif source.startswith("{"):
        _pack(machine, level, instruction, mask)
    else:
        type_ = type_of(instruction.words)
        value = read(machine, level.function, source, type_)
        if value.known.all() and not is_float(type_) and "pred" not in instruction.words:
            width, _ = width_of(type_)
            value = Value(wrapped(value.bits, width, True), value.known, value.number, value.origin)
        _write(machine, level, target, value, mask)


def _pack(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    target, source = instruction.operands
    width, _ = width_of(type_of(instruction.words))
    names = vector(source)
    parts = [read(machine, level.function, name) for name in names]
    size = width // len(parts)
    bits, known, origin = np.zeros(machine.threads, np.int64), parts[0].known, From.NOTHING
    for place, part in enumerate(parts):
        bits = bits | (wrapped(part.bits, size, False) << (size * place))
        known = known & part.known
        origin |= part.origin
    number = mix("pack", *(p.number for p in parts))
    whole = blend(wrapped(bits, width, True), number, known, origin)
    _write(machine, level, target, whole, mask)
    machine.parts[(level.function.name, target)] = (whole.number, parts)


def _set_predicate(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`setp.CMP[.BOOL].type p[|q], a, b[, c]`."""
    type_ = type_of(instruction.words)
    targets = instruction.operands[0].split("|")
    a = read(machine, level.function, instruction.operands[1], type_)
    b = read(machine, level.function, instruction.operands[2], type_)
    if is_float(type_):
        a, b = _as_unknown(a), _as_unknown(b)
    result = values.compare(instruction.words[1], a, b, is_float(type_))
    if len(instruction.operands) > 3:
        other = read(machine, level.function, instruction.operands[3], "pred")
        result = _logic(instruction.words[2], result, other)
    _write(machine, level, targets[0].strip(), result, mask)
    if len(targets) > 1:
        turned = values.of_bits(1 - result.bits, result.origin)
        number = mix("turned", result.number)
        opposite = Value(turned.bits, result.known, number, result.origin)
        _write(machine, level, targets[1].strip(), opposite, mask)


def _as_unknown(value: Value) -> Value:
    return Value(value.bits, np.zeros_like(value.known), value.number, value.origin)


def _logic(name: str, a: Value, b: Value) -> Value:
    """Predicates: decided where one side decides."""
    left, right = a.bits & 1, b.bits & 1
    made = {"and": left & right, "or": left | right, "xor": left ^ right}[name]
    known = a.known & b.known
    if name == "and":
        known = known | (a.known & (left == 0)) | (b.known & (right == 0))
    elif name == "or":
        known = known | (a.known & (left == 1)) | (b.known & (right == 1))
    low, high = np.minimum(a.number, b.number), np.maximum(a.number, b.number)
    sure = values.of_bits(made, a.origin | b.origin)
    number = np.where(known, sure.number, mix(name, low, high))
    return Value(made, known, number, sure.origin)


def _predicate_logic(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    if "pred" not in instruction.words:
        _arithmetic(machine, level, instruction, mask)
        return
    inputs = [read(machine, level.function, s, "pred") for s in instruction.operands[1:]]
    if instruction.name == "not":
        value = inputs[0]
        sure = values.of_bits(1 - (value.bits & 1), value.origin)
        number = np.where(value.known, sure.number, mix("turned", value.number))
        made = Value(sure.bits, value.known, number, value.origin)
    else:
        made = _logic(instruction.name, inputs[0], inputs[1])
    _write(machine, level, instruction.operands[0], made, mask)


def _select(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    type_ = type_of(instruction.words)
    a = read(machine, level.function, instruction.operands[1], type_)
    b = read(machine, level.function, instruction.operands[2], type_)
    chooser = read(machine, level.function, instruction.operands[3], "pred")
    picked = a.where(chooser.bits != 0, b)
    if chooser.known.all():
        made = Value(picked.bits, picked.known, picked.number, picked.origin | chooser.origin)
    else:
        number = mix("selp", a.number, b.number, chooser.number)
        known = picked.known & chooser.known
        made = Value(
            picked.bits,
            known,
            np.where(known, picked.number, number),
            picked.origin | chooser.origin,
        )
    _write(machine, level, instruction.operands[0], made, mask)


def _convert(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`cvt.to.from`: known between integers."""
    types = [w for w in instruction.words if type_of(("", w)) == w or w == "b32"]
    if len(types) < 2 or any(map(is_float, types[-2:])):
        _arithmetic(machine, level, instruction, mask)
        return
    to, from_ = types[-2], types[-1]
    value = read(machine, level.function, instruction.operands[1], from_)
    width, _ = width_of(to)
    bits = wrapped(value.bits, width, True)
    made = blend(
        bits, mix(f"cvt {min(width_of(from_)[0], width)}", value.number), value.known, value.origin
    )
    _write(machine, level, instruction.operands[0], made, mask)


def _to_window(machine: Machine, level: Level, instruction: Instruction, mask: Mask) -> None:
    """`cvta`: between a generic address and one of a state space."""
    value = read(machine, level.function, instruction.operands[1])
    window = 0
    if instruction.has("shared", "shared::cta"):
        window = SHARED_WINDOW
    elif instruction.has("local"):
        window = LOCAL_WINDOW
    bits = value.bits - window if instruction.has("to") else value.bits + window
    number = mix(f"cvta {window}", value.number) if window else value.number
    made = blend(bits, number, value.known, value.origin)
    _write(machine, level, instruction.operands[0], made, mask)


def _barrier(
    machine: Machine, context: Context, level: Level, instruction: Instruction, mask: Mask
) -> None:
    """`bar.sync`, `bar.arrive`, `bar.red`, `bar.warp.sync`, and their `barrier.cta` names."""
    if instruction.has("warp"):
        warp.sync_warp(machine, level, instruction, mask)
        return
    if instruction.has("cluster"):
        if instruction.has("wait"):
            machine.wait(context, instruction, 100, None)
        return
    reduces = instruction.has("red")
    operands = instruction.operands[1:] if reduces else instruction.operands
    id_ = read(machine, level.function, operands[0]) if operands else machine.constant(0)
    which = int(id_.bits[mask][0]) & 15
    counted = len(operands) > (2 if reduces else 1)
    count = int(read(machine, level.function, operands[1]).bits[mask][0]) if counted else None
    warp.check_whole_warps(machine, instruction, mask)
    if reduces:
        fresh = np.full(machine.threads, machine.fresh(), np.uint64)
        _write(
            machine,
            level,
            instruction.operands[0],
            unknown(mix("bar.red", fresh), From.MEMORY),
            mask,
        )
    if instruction.has("arrive"):
        machine.arrive(instruction, which, count, mask)
    else:
        machine.wait(context, instruction, which, count)


def _call(
    machine: Machine, context: Context, level: Level, instruction: Instruction, mask: Mask
) -> None:
    """Goes into a function of this module; one from elsewhere gives an unknown value."""
    operands = list(instruction.operands)
    returned = split_operands(operands.pop(0).strip("()")) if operands[0].startswith("(") else []
    callee = machine.module.by_name.get(operands[0])
    given = split_operands(operands[1].strip("()")) if len(operands) > 1 else []
    depth = sum(s.is_call for s in context.stack)
    if callee is None or depth > 8:
        for name in returned:
            fresh = np.full(machine.threads, machine.fresh(), np.uint64)
            value = unknown(mix("call", fresh, machine.thread[0].number), From.MEMORY)
            machine.parameters[(level.function.name, name.strip(), 0)] = value
        return
    for formal, actual in zip(callee.parameters, given, strict=False):
        for (owner, name, offset), value in list(machine.parameters.items()):
            if (owner, name) == (level.function.name, actual.strip()):
                machine.parameters[(callee.name, formal.name, offset)] = value
    for variable, name in zip(callee.returned, returned, strict=False):
        machine.returned[(level.function.name, name.strip())] = (callee.name, variable.name)
    context.stack.append(Level(callee, 0, len(callee.code), mask.copy(), is_call=True))


_HANDLERS: dict[str, Handler] = {
    "mov": _move,
    "setp": _set_predicate,
    "selp": _select,
    "and": _predicate_logic,
    "or": _predicate_logic,
    "xor": _predicate_logic,
    "not": _predicate_logic,
    "cvt": _convert,
    "cvta": _to_window,
    "ld": memory.load,
    "ldu": memory.load,
    "st": memory.store,
    "atom": memory.atomic,
    "red": memory.atomic,
    "cp": memory.copy,
    "mbarrier": memory.mbarrier,
    "wgmma": memory.matrix,
    "ldmatrix": memory.matrix_load,
    "stmatrix": memory.matrix_load,
    "shfl": warp.shuffle,
    "vote": warp.vote,
    "match": warp.vote,
    "redux": warp.vote,
    "activemask": warp.active_mask,
    "elect": warp.elect,
    "fence": memory.nothing,
    "membar": memory.nothing,
    "prefetch": memory.nothing,
    "nanosleep": memory.nothing,
    "griddepcontrol": memory.nothing,
    "setmaxnreg": memory.nothing,
}
