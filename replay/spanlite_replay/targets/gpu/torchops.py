"""`ops.Operators` on torch: an operator is called with tensors of the recorded shapes, strides
and types, and captured; its kernels then run without torch."""

from __future__ import annotations

import ast
import ctypes
from typing import Any

from spanlite.errors import ServiceError

from spanlite_replay.targets.gpu.driver import Captured
from spanlite_replay.targets.gpu.ops import Operator

#: torch's names of types in a profile, and those in Python.
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long int": "int64", "long": "int64", "int": "int32", "short int": "int16", "short": "int16",
    "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_KERNEL_NODE, _MEMSET_NODE = 0, 2
_ALL_REDUCE = ("allreduce", "all_reduce")
MISSING = (
    "--mode ops runs operators with torch 2.8 or later, and {why}: install torch for this CUDA, or "
    "use --mode timing"
)


class TorchOperators:
    """Calls each operator on a stream of its lane, then captures it."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise ServiceError(MISSING.format(why="it is not installed")) from None
        if not torch.cuda.is_available():
            raise ServiceError(MISSING.format(why="this torch sees no GPU"))
        if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
            raise ServiceError(MISSING.format(why=f"this is torch {torch.__version__}"))
        self._torch: Any = torch
        self._streams: dict[int, Any] = {}
        self._kept: list[Any] = []
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def capture(self, operator: Operator) -> list[Captured] | str:
        """See `Operators`."""
        torch = self._torch
        stream = self._streams.setdefault(operator.lane, torch.cuda.Stream())
        try:
            call = self._call_of(operator)
            if isinstance(call, str):
                return call
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(2):
                    call()
            torch.cuda.synchronize()
            graph, result = self._record(call, stream)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            return f"{operator.name} does not run: {str(error).splitlines()[0][:80]}"
        self._kept.append((graph, result, call))
        return self._nodes(operator.name, graph.raw_cuda_graph())

    def _record(self, call: Any, stream: Any) -> tuple[Any, Any]:
        """(graph, what the operator gave)."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.no_grad(), torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                result = call()
            finally:
                graph.capture_end()
        return graph, result

    def close(self) -> None:
        """See `Operators`."""
        self._torch.cuda.synchronize()
        self._kept.clear()

    def _nodes(self, name: str, graph: int) -> list[Captured] | str:
        count = ctypes.c_size_t()
        self._cuda.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * max(count.value, 1))()
        self._cuda.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        found = []
        for node in nodes[: count.value]:
            kind = ctypes.c_int()
            self._cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value not in (_KERNEL_NODE, _MEMSET_NODE):
                return f"{name} copies memory"
            found.append(Captured(int(node or 0), kind.value == _KERNEL_NODE, name))
        return found

    def _call_of(self, operator: Operator) -> Any:
        """A function of no arguments, or why there is none."""
        space, _, name = operator.name.partition("::")
        if any(word in name.lower() for word in _ALL_REDUCE):
            return self._all_reduce(operator)
        packet = getattr(getattr(self._torch.ops, space, None), name, None) if name else None
        if packet is None:
            return f"torch has no {operator.name}"
        types, dims = operator.told["Input type"], operator.told["Input Dims"]
        strides = operator.told.get("Input Strides") or [None] * len(types)
        concrete = operator.told.get("Concrete Inputs") or [""] * len(types)
        inputs = list(zip(types, dims, strides, concrete, strict=True))
        for overload in packet.overloads():
            function = getattr(packet, overload)
            found = self._arguments(function._schema.arguments, inputs)
            if found is not None:
                return lambda: function(*found[0], **found[1])
        return f"{operator.name} was recorded with arguments that are not known"

    def _arguments(self, schema: Any, inputs: list[Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """Values for an overload, None where the recorded inputs are not its own."""
        if len(schema) != len(inputs):
            return None
        fits = all(
            ("Tensor" in str(one.type)) == (kind in TYPES and not text) or not kind
            for one, (kind, _, _, text) in zip(schema, inputs, strict=True)
        )
        if not fits or any(one.is_out for one in schema):
            return None
        positional, named = [], {}
        for one, told in zip(schema, inputs, strict=True):
            value = self._value(one, *told)
            if value is _UNKNOWN:
                return None
            if one.kwarg_only:
                named[one.name] = value
            else:
                positional.append(value)
        return positional, named

    def _value(self, argument: Any, kind: str, dims: Any, strides: Any, text: str) -> Any:
        if kind in TYPES and not text:
            return self._tensor(kind, dims, strides)
        if text:
            try:
                return ast.literal_eval(text)
            except (ValueError, SyntaxError):
                return _UNKNOWN
        if argument.has_default_value():
            return argument.default_value
        return None if str(argument.type).startswith("Optional") else _UNKNOWN

    def _tensor(self, kind: str, dims: list[int], strides: list[int] | None) -> Any:
        """Random numbers; whole numbers are 0, so that as indices they lead nowhere."""
        torch = self._torch
        of = getattr(torch, TYPES[kind])
        if strides is None or len(strides) != len(dims):
            strides, step = [], 1
            for size in reversed(dims):
                strides.insert(0, step)
                step *= max(size, 1)
        room = 1 + sum((max(size, 1) - 1) * step for size, step in zip(dims, strides, strict=True))
        if of.is_floating_point:
            values = torch.randn(room, device="cuda").to(of)
        else:
            values = torch.zeros(room, dtype=of, device="cuda")
        return values.as_strided(dims, strides)

    def _all_reduce(self, operator: Operator) -> Any:
        """One pass over the data stands in for the exchange: each value is read and written."""
        shapes = zip(operator.told["Input type"], operator.told["Input Dims"], strict=True)
        for kind, dims in shapes:
            if kind in TYPES and dims:
                tensor = self._tensor(kind, dims, None)
                return lambda: tensor.mul_(1)
        return f"{operator.name} was recorded without its tensor"


_UNKNOWN = object()
