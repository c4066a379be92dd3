"""Recorded inputs become the arguments of an operator's schema, or nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from spanlite_replay.targets.gpu.ops import Operator
from spanlite_replay.targets.gpu.torchops import TorchOperators

_NONE = object()


@dataclass
class Argument:
    """As torch describes one."""

    name: str
    type: str
    default: Any = _NONE
    kwarg_only: bool = False
    is_out: bool = False

    def has_default_value(self) -> bool:
        return self.default is not _NONE

    @property
    def default_value(self) -> Any:
        return self.default


@dataclass
class Overload:
    arguments: list[Argument]

    @property
    def _schema(self) -> Overload:
        return self

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return positional, named


class Packet:
    """An operator with overloads, by name."""

    def __init__(self, **overloads: list[Argument]) -> None:
        self._names = list(overloads)
        for name, arguments in overloads.items():
            setattr(self, name, Overload(arguments))

    def overloads(self) -> list[str]:
        return self._names


def tensor(name: str) -> Argument:
    return Argument(name, "Tensor")


class Aten:
    add = Packet(
        Scalar=[tensor("self"), Argument("other", "number"), Argument("alpha", "number", 1)],
        Tensor=[
            tensor("self"), tensor("other"), Argument("alpha", "number", 1, kwarg_only=True),
        ],
    )  # fmt: skip
    gelu = Packet(
        out=[tensor("self"), Argument("out", "Tensor", is_out=True)],
        default=[tensor("self"), Argument("approximate", "str", "none", kwarg_only=True)],
    )
    native_layer_norm = Packet(
        default=[
            tensor("input"), Argument("normalized_shape", "List[int]"),
            Argument("weight", "Optional[Tensor]"), Argument("bias", "Optional[Tensor]"),
            Argument("eps", "float"),
        ]
    )  # fmt: skip


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> TorchOperators:
    made = object.__new__(TorchOperators)

    class Torch:
        class ops:  # noqa: N801 - torch's own name
            aten = Aten

    made._torch = Torch
    monkeypatch.setattr(made, "_tensor", lambda kind, dims, strides: (kind, dims, strides))
    return made


def told(types: list[str], dims: list[Any], texts: list[str]) -> dict[str, Any]:
    strides = [[1] * len(one) for one in dims]
    return {
        "Input type": types,
        "Input Dims": dims,
        "Input Strides": strides,
        "Concrete Inputs": texts,
    }


def call(operators: TorchOperators, name: str, about: dict[str, Any]) -> Any:
    found = operators._call_of(Operator(name, about, 0, (True,)))
    return found if isinstance(found, str) else found()


BF16 = "c10::BFloat16"


def test_the_overload_whose_arguments_fit_is_called(operators: TorchOperators) -> None:
    about = told([BF16, BF16, "Scalar"], [[8, 4], [8, 4], []], ["", "", "1"])
    positional, named = call(operators, "aten::add", about)
    assert positional == ((BF16, [8, 4], [1, 1]), (BF16, [8, 4], [1, 1])) and named == {"alpha": 1}
    about = told([BF16, "Scalar", "Scalar"], [[8, 4], [], []], ["", "2.5", "1"])
    positional, named = call(operators, "aten::add", about)
    assert positional[1:] == (2.5, 1) and named == {}


def test_what_was_not_recorded_is_the_default_or_none(operators: TorchOperators) -> None:
    positional, named = call(operators, "aten::gelu", told([BF16, ""], [[8, 4], []], ["", ""]))
    assert len(positional) == 1 and named == {"approximate": "none"}
    about = told(
        [BF16, "ScalarList", "", "", "Scalar"],
        [[8, 4], [], [], [], []],
        ["", "[4]", "", "", "1e-05"],
    )
    positional, _ = call(operators, "aten::native_layer_norm", about)
    assert positional[1:] == ([4], None, None, 1e-5)


def test_what_cannot_be_known_is_not_guessed(operators: TorchOperators) -> None:
    about = told([BF16, BF16, "Scalar"], [[8, 4], [8, 4], []], ["", "", "cuda:0"])
    assert "not known" in call(operators, "aten::add", about)
    about = told([BF16, "", "", "", "Scalar"], [[8], [], [], [], []], ["", "", "", "", "1e-05"])
    assert "not known" in call(operators, "aten::native_layer_norm", about)
    assert "torch has no aten::rotary" in call(operators, "aten::rotary", about)
    assert "torch has no my_gemm" in call(operators, "my_gemm", about)


def test_an_all_reduce_is_a_pass_over_its_tensor(
    operators: TorchOperators, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tensor:
        def mul_(self, by: int) -> str:
            return f"times {by}"

    monkeypatch.setattr(operators, "_tensor", lambda *_: Tensor())
    about = told([BF16], [[1024]], [""])
    assert call(operators, "c10d::allreduce_", about) == "times 1"
    assert "without its tensor" in call(operators, "c10d::allreduce_", told([], [], []))
