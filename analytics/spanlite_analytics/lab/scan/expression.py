"""Arithmetic and conditions over named numbers, as a scan's file has them; nothing else runs."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A parameter's value.
Scalar = int | float | str

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "log2": math.log2,
    "ceil": math.ceil,
    "ceil_div": lambda value, by: -(-value // by),
}
#: Larger numbers mean nothing on a GPU, and would only take time and memory.
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Expression:
    """One that has been read; `value` gives its value for some names."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def value(self, names: Mapping[str, Any]) -> Any:
        """Its value. Raises ValueError with words for people."""
        try:
            return _value(self.tree, names)
        except (ArithmeticError, TypeError) as error:
            raise ValueError(f"'{self.text}': {error}") from None

    def whole(self, names: Mapping[str, Any]) -> int:
        """Its value as a whole number. Raises ValueError where it is none."""
        value = self.value(names)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"'{self.text}' is {value!r}, no whole number")
        return int(value)


def parse(text: str) -> Expression:
    """Read an expression. Raises ValueError for what is none.

    Numbers, strings, names, + - * / // % << >>, comparisons, `in`, and / or / not, `a if c else b`,
    and min, max, abs, log2, ceil, ceil_div.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"'{text}' is no expression") from None
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
    _check(tree)
    return Expression(text.strip(), tree, frozenset(names))


def _not(words: str) -> ValueError:
    """What a person wrote is wrong, whatever its type: always a ValueError."""
    return ValueError(words)


def _check(node: ast.AST) -> None:
    """Refuse what `_value` does not know, before any name has a value."""
    allowed = (
        ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp,
        ast.And, ast.Or, ast.Compare, ast.IfExp, ast.Call, ast.Tuple, ast.List,
        *_BINARY, *_COMPARE,
    )  # fmt: skip
    for part in ast.walk(node):
        if not isinstance(part, allowed):
            raise _not(f"{type(part).__name__} is not allowed in an expression")
        if isinstance(part, ast.Call):
            name = part.func.id if isinstance(part.func, ast.Name) else ast.unparse(part.func)
            if name not in _FUNCTIONS or part.keywords:
                raise ValueError(f"no such function: {name}; there are {', '.join(_FUNCTIONS)}")
        if isinstance(part, ast.Constant) and not isinstance(part.value, int | float | str):
            raise _not(f"{part.value!r} is neither a number nor a string")


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"'{name}' is neither a size nor a parameter")
            return names[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, names) for part in parts]
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(type(op), _value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, names)
            return not value if isinstance(op, ast.Not) else -value
        case ast.BoolOp(op=op, values=values):
            each = (bool(_value(v, names)) for v in values)
            return all(each) if isinstance(op, ast.And) else any(each)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, names) else other, names)
        case ast.Compare():
            return _compare(node, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(a, names) for a in args))
    raise ValueError(f"'{ast.unparse(node)}' cannot be evaluated")


def _binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if isinstance(left, str) or isinstance(right, str):
        raise _not("strings can only be compared")
    if kind in (ast.LShift, ast.RShift) and not 0 <= right < 63:
        raise ValueError("a shift is by 0 to 62 bits")
    value = _BINARY[kind](left, right)
    if abs(value) > _LARGEST:
        raise ValueError("a value is too large")
    return value


def _compare(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(node.left, names)
    for op, other in zip(node.ops, node.comparators, strict=True):
        right = _value(other, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
