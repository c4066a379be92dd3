"""Addresses as people write them: arithmetic over `lane`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import UsageError

from spanlite_analytics.lab.banks.model import LANES

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
#: No shared memory is larger; beyond it numbers only overflow.
_LIMIT = 1 << 31


def evaluate(text: str) -> NDArray[np.int64]:
    """The 32 values of an expression such as `lane % 8 * 128 + lane // 8 * 16`.

    Knows whole numbers, `lane`, + - * / // % << >> & | ^ and brackets; `/` divides as in C.
    Raises UsageError.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = np.broadcast_to(np.asarray(_value(tree.body), np.int64), (LANES,))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError) as error:
        raise UsageError(f"'{text}' is no expression over lane: {error}") from None
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < _LIMIT:
        return node.value
    if isinstance(node, ast.Name) and node.id == "lane":
        return np.arange(LANES, dtype=np.int64)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _binary(type(node.op), _value(node.left), _value(node.right))
    raise ValueError(f"'{ast.unparse(node)}' is not whole-number arithmetic over lane")


def _binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if kind in (ast.FloorDiv, ast.Div, ast.Mod) and not np.all(right):
        raise ZeroDivisionError("division by zero")
    if kind in (ast.LShift, ast.RShift) and not (np.all(right >= 0) and np.all(right < 32)):
        raise ValueError("a shift is by 0 to 31 bits")
    value = _BINARY[kind](left, right)
    if np.any(np.abs(value) >= _LIMIT):
        raise OverflowError("a value is too large")
    return value
