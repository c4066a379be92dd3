"""Bytes and FLOPs of an operator, from its name and the recorded sizes of its inputs.

Bytes are the compulsory ones: each input read once, each output written once. FLOPs count a
multiplication and an addition as two; of a causal attention whose kernel names its tiles they
are those of whole tiles, which is what the tensor cores do and the counters count. Nothing is
guessed: an operator without a rule, or without sizes, gives None. Names are ATen's, without
`aten::` and a trailing `_`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = {
    "double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "signed char": 1, "unsigned char": 1,
    "bool": 1, "short": 2, "int": 4, "long": 8, "long int": 8,
}  # fmt: skip
#: Names people write, for the ones that traces have.
ALIASES = {
    "fp64": "double", "fp32": "float", "tf32": "float", "bf16": "c10::BFloat16",
    "fp16": "c10::Half", "fp8": "c10::Float8_e4m3fn", "int8": "signed char",
}  # fmt: skip
_TENSOR_TYPES = {
    "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "signed char": "int8",
    "float": "fp32_vector",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel must do. `flops` by the types of `ceilings`."""

    flops: dict[str, float]
    read_bytes: float
    write_bytes: float

    @property
    def bytes(self) -> float:
        """Read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def total_flops(self) -> float:
        """Of all types."""
        return sum(self.flops.values())

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.total_flops / self.bytes if self.bytes else math.inf


@dataclass(frozen=True, slots=True)
class Call:
    """An operator's call as traces record it: one entry an argument, [] for what is no tensor.

    A tensor list (as `cat` takes) is a list of sizes. `strides` may be empty; a stride of 0 is a
    broadcast, of which only one element is read. `tf32`: FP32 products run on tensor cores.
    `tile`: queries and keys that the kernel takes at once, as `attention_tile` finds them.
    """

    name: str
    sizes: Sequence[Any]
    types: Sequence[Any] = ()
    strides: Sequence[Any] = ()
    concrete: Sequence[Any] = ()
    tf32: bool = False
    tile: tuple[int, int] | None = None

    def size(self, place: int) -> list[int]:
        """Of a tensor argument; [] where it is none."""
        return _plain_size(self.sizes[place]) if place < len(self.sizes) else []

    def type(self, place: int) -> str:
        """Of an argument."""
        found = self.types[place] if place < len(self.types) else ""
        return found if isinstance(found, str) else ""

    def is_tensor(self, place: int) -> bool:
        """Whether an argument is one; a tensor without dimensions counts by its type."""
        return bool(self.size(place)) or self.type(place) in SIZES

    def bytes(self, place: int) -> float:
        """Of the elements of an argument that are distinct."""
        size, strides = self.size(place), self.strides
        if not self.is_tensor(place):
            return 0
        steps = strides[place] if place < len(strides) else None
        if isinstance(steps, list) and len(steps) == len(size):
            size = [n for n, step in zip(size, steps, strict=True) if step != 0]
        return math.prod(size) * SIZES.get(self.type(place), 0)

    def flag(self, place: int) -> bool | None:
        """A concrete True or False; None where it was not recorded."""
        text = str(self.concrete[place]) if place < len(self.concrete) else ""
        return {"True": True, "False": False}.get(text)


def _plain_size(value: Any) -> list[int]:
    if isinstance(value, list) and all(isinstance(n, int) for n in value):
        return value
    return []


def work_of(call: Call) -> Work | None:
    """What the call must do; None where no rule knows the operator or sizes are missing."""
    name = plain_name(call.name)
    rule = RULES.get(name)
    if rule is None or not call.sizes:
        return None
    try:
        work = rule(call)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    if work is None or work.bytes <= 0:
        return None
    return work


def plain_name(name: str) -> str:
    """Without namespace, and without the mark of in-place operators."""
    short = name.rpartition("::")[2]
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def _product_type(call: Call, place: int) -> str:
    kind = _TENSOR_TYPES[call.type(place)]
    return "tf32" if call.tf32 and kind == "fp32_vector" else kind


def _vector_type(call: Call, place: int = 0) -> str:
    """PyTorch computes bf16 and half element by element in FP32."""
    return "fp64_vector" if call.type(place) == "double" else "fp32_vector"


def _gemm(first: int, added: int | None = None, out_size: int | None = None) -> Rule:
    """A product of arguments `first` and `first + 1`, both (..., rows, columns) or vectors."""

    def rule(call: Call) -> Work | None:
        a, b = call.size(first), call.size(first + 1)
        if not a or not b or len(b) > len(a) or len(a) > 3:
            return None
        if a[-1] != b[-2 if len(b) > 1 else 0]:
            return None
        columns = b[-1] if len(b) > 1 else 1
        outputs = math.prod(a[:-1]) * columns
        flops = 2.0 * outputs * a[-1]
        element = out_size or SIZES[call.type(first)]
        read = call.bytes(first) + call.bytes(first + 1)
        extra = {} if added is None else {_vector_type(call, first): float(outputs)}
        read += 0 if added is None else call.bytes(added)
        return Work({_product_type(call, first): flops} | extra, read, outputs * element)

    return rule


def _linear(call: Call) -> Work | None:
    x, w = call.size(0), call.size(1)
    if not x or len(w) != 2 or x[-1] != w[1]:
        return None
    outputs = math.prod(x[:-1]) * w[0]
    read = call.bytes(0) + call.bytes(1) + call.bytes(2)
    flops = {_product_type(call, 0): 2.0 * outputs * x[-1]}
    return Work(flops, read, outputs * SIZES[call.type(0)])


def _attention(causal: int, tokens: int = -2, head: int = -3) -> Rule:
    """Scaled dot-product attention of (batch, heads, tokens, width); `causal`: its argument.

    A causal one needs about half of the products: query i sees keys up to i, aligned at the top
    left as PyTorch does; a kernel leaves out the tiles that nobody sees, and computes the others
    whole. Where that flag was not recorded nothing is said.
    """

    def rule(call: Call) -> Work | None:
        q, k, v = (call.size(place) for place in range(3))
        masked = call.flag(causal)
        if len(q) != 4 or len(k) != 4 or len(v) != 4 or masked is None:
            return None
        queries, keys = q[tokens], k[tokens]
        seen = _causal_pairs(queries, keys, call.tile) if masked else queries * keys
        products = 2.0 * q[0] * q[head] * seen * (q[-1] + v[-1])
        out = q[0] * q[head] * queries * v[-1] * SIZES[call.type(0)]
        read = call.bytes(0) + call.bytes(1) + call.bytes(2)
        return Work({_product_type(call, 0): products}, read, out)

    return rule


#: cuDNN's names and FlashAttention 2's, demangled: rows of queries, rows of keys.
_ATTENTION_TILES = (
    re.compile(r"sdpa_sm\d+_flash_fprop\w*?_(\d+)x(\d+)x\d+_"),
    re.compile(r"Flash_fwd_kernel_traits<(?:\(int\))?\d+, (?:\(int\))?(\d+), (?:\(int\))?(\d+)"),
)


def attention_tile(kernel: str) -> tuple[int, int] | None:
    """Queries and keys of a tile, from the kernel's name; None where it does not say."""
    for pattern in _ATTENTION_TILES:
        found = pattern.search(kernel)
        if found:
            return int(found[1]), int(found[2])
    return None


def _causal_pairs(queries: int, keys: int, tile: tuple[int, int] | None) -> int:
    """(query, key) pairs of the tiles that hold one which is seen; without tiles: that are seen."""
    rows, columns = tile or (1, 1)
    most = -(-keys // columns) * columns
    return sum(
        rows * min(-(-min(first + rows, queries) // columns) * columns, most)
        for first in range(0, queries, rows)
    )


def _rows(flops: float, weights: tuple[int, ...] = (), per_row_bytes: int = 0) -> Rule:
    """An operator over rows that keeps the size: a norm or a softmax.

    `flops` an element is a convention; `weights`: further arguments read; bytes written a row.
    """

    def rule(call: Call) -> Work | None:
        size = call.size(0)
        if not size:
            return None
        read = call.bytes(0) + sum(call.bytes(place) for place in weights)
        out = math.prod(size) * SIZES[call.type(0)]
        out += math.prod(size[:-1]) * per_row_bytes
        return Work({_vector_type(call): flops * math.prod(size)}, read, out)

    return rule


def _elementwise(inputs: int, flops: float = 1, out_type: str | None = None) -> Rule:
    """Element by element, with broadcasting; numbers among the inputs cost no bytes."""

    def rule(call: Call) -> Work | None:
        tensors = [place for place in range(inputs) if call.is_tensor(place)]
        if not tensors:
            return None
        out = _broadcast([call.size(place) for place in tensors])
        wide = max(SIZES[call.type(place)] for place in tensors)
        size = SIZES[out_type] if out_type else wide
        read = sum(call.bytes(place) for place in tensors)
        count = math.prod(out)
        return Work({_vector_type(call, tensors[0]): flops * count}, read, count * size)

    return rule


def _broadcast(sizes: list[list[int]]) -> list[int]:
    length = max(len(size) for size in sizes)
    padded = [[1] * (length - len(size)) + size for size in sizes]
    return [max(column) if min(column) else 0 for column in zip(*padded, strict=True)]


def _copy(call: Call) -> Work | None:
    """`copy_(target, source)`, each with its own type."""
    if not (call.is_tensor(0) and call.is_tensor(1)):
        return None
    out = math.prod(call.size(0)) * SIZES[call.type(0)]
    return Work({}, call.bytes(1), out)


def _same(read: bool) -> Rule:
    """`clone` reads and writes, `fill_` only writes."""

    def rule(call: Call) -> Work | None:
        out = math.prod(call.size(0)) * SIZES[call.type(0)] if call.is_tensor(0) else 0
        return Work({}, call.bytes(0) if read else 0, out)

    return rule


def _reduction(call: Call) -> Work | None:
    """Reads everything; what it writes depends on arguments that traces do not hold: nothing."""
    size = call.size(0)
    return Work({_vector_type(call): float(math.prod(size))}, call.bytes(0), 0) if size else None


def _cat(call: Call) -> Work | None:
    """A list of tensors of one type, written one after the other."""
    kinds = call.types[0]
    kind = kinds[0] if isinstance(kinds, list) and kinds else ""
    sizes = [_plain_size(size) for size in call.sizes[0]]
    if kind not in SIZES or not all(sizes):
        return None
    count = sum(math.prod(size) for size in sizes) * SIZES[kind]
    return Work({}, count, count)


Rule = Callable[[Call], Work | None]
_UNARY = (
    "abs", "neg", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "sin", "cos", "pow", "clamp", "clamp_min", "erf", "leaky_relu", "hardtanh",
    "floor", "round", "sign", "square", "bitwise_not", "logical_not",
)  # fmt: skip
_BINARY = (
    "add", "sub", "rsub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "bitwise_and",
    "bitwise_or",
)  # fmt: skip
_COMPARE = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "isnan", "isinf",
)  # fmt: skip
RULES: dict[str, Rule] = {
    "mm": _gemm(0),
    "bmm": _gemm(0),
    "mv": _gemm(0),
    "addmm": _gemm(1, added=0),
    "baddbmm": _gemm(1, added=0),
    "_int_mm": _gemm(0, out_size=4),
    # Its output is bf16 unless asked otherwise; traces do not say.
    "_scaled_mm": _gemm(0, out_size=2),
    "linear": _linear,
    "scaled_dot_product_attention": _attention(5),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_flash_attention_forward": _attention(8, tokens=1, head=2),
    "_efficient_attention_forward": _attention(99, tokens=1, head=2),
    "layer_norm": _rows(8, (2, 3), 8),
    "native_layer_norm": _rows(8, (2, 3), 8),
    "rms_norm": _rows(4, (2,), 4),
    "_fused_rms_norm": _rows(4, (2,), 4),
    "softmax": _rows(5),
    "_softmax": _rows(5),
    "log_softmax": _rows(5),
    "_log_softmax": _rows(5),
    "copy": _copy,
    "clone": _same(True),
    "contiguous": _same(True),
    "fill": _same(False),
    "zero": _same(False),
    "cat": _cat,
    "addcmul": _elementwise(3, 3),
    "addcdiv": _elementwise(3, 3),
    "lerp": _elementwise(3, 3),
    "masked_fill": _elementwise(2, 0),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "prod"), _reduction),
    **dict.fromkeys(_UNARY, _elementwise(1)),
    **dict.fromkeys(_BINARY, _elementwise(2)),
    **dict.fromkeys(_COMPARE, _elementwise(2, out_type="bool")),
}
