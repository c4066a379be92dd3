"""What a scan's file says: a kernel, its parameters, and how to search among them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spanlite_analytics.lab.scan import document
from spanlite_analytics.lab.scan.document import Node
from spanlite_analytics.lab.scan.expression import Expression, Scalar

Config = dict[str, Scalar]

OPERATORS = ("attention", "layernorm", "matmul", "softmax")
METHODS = ("grid", "random", "bayesian")
#: Bytes of an element, by type.
TYPES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "u8": 1}
SCALARS = ("f64", "f32", "i64", "i32")
_TOP = (
    "operator", "kernel", "sizes", "parameters", "constraints", "search", "repeats", "top",
    "heatmap", "arch", "flags", "deadline",
)  # fmt: skip
_KERNEL = (
    "cuda", "triton", "entry", "grid", "block", "shared", "arguments", "defines", "flops", "bytes",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer of `size` elements, filled with random numbers, or a scalar of value `size`."""

    type: str
    size: Expression
    is_buffer: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and how to launch it, by expressions over sizes and parameters."""

    path: Path
    entry: str
    is_triton: bool
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared: Expression | None
    arguments: tuple[Argument, ...]
    #: Macros, or Triton's constants, by name.
    defines: dict[str, Expression]
    flops: Expression | None
    moved_bytes: Expression | None


@dataclass(frozen=True, slots=True)
class Search:
    """How to choose configurations; `budget` 0 is all of them."""

    method: str = "grid"
    budget: int = 0
    seed: int = 1
    #: Random ones before the model has a say.
    initial: int = 8


@dataclass(frozen=True, slots=True)
class Spec:
    """A scan."""

    name: str
    kernel: Kernel
    sizes: dict[str, Scalar]
    parameters: dict[str, tuple[Scalar, ...]]
    constraints: tuple[Expression, ...]
    search: Search
    repeats: int = 7
    top: int = 10
    heatmap: tuple[str, str] | None = None
    arch: str = "sm_90a"
    flags: tuple[str, ...] = field(default=())
    #: A configuration that takes longer on the GPU hangs.
    deadline_s: int = 60

    def names(self, config: Mapping[str, Scalar]) -> dict[str, Any]:
        """All that an expression may use."""
        return {**self.sizes, **config}

    def allows(self, config: Mapping[str, Scalar]) -> bool:
        """Whether all constraints hold. Raises ValueError where one has no value."""
        names = self.names(config)
        return all(bool(c.value(names)) for c in self.constraints)

    @property
    def fingerprint(self) -> str:
        """Of what a measured time depends on: another one must not be mixed with it."""
        kernel = self.kernel
        parts = [
            hashlib.sha256(kernel.path.read_bytes()).hexdigest(),
            kernel.entry,
            [e.text for e in (*kernel.grid, *kernel.block)],
            kernel.shared.text if kernel.shared else "",
            [(a.type, a.size.text, a.is_buffer) for a in kernel.arguments],
            {name: e.text for name, e in kernel.defines.items()},
            self.sizes,
            self.arch,
            self.flags,
            sorted(self.parameters),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def load(path: Path) -> Spec:
    """Read and check a scan's file. Raises InputError, which names line and key."""
    return _spec(document.read(path), path)


def _spec(root: Node, path: Path) -> Spec:
    top = root.mapping(_TOP, ("parameters",))
    if ("operator" in top) == ("kernel" in top):
        root.wrong(f"needs either 'operator' ({', '.join(OPERATORS)}) or 'kernel'")
    default = None
    if "operator" in top:
        folder = Path(__file__).parent / "operators"
        place = folder / f"{top['operator'].text(OPERATORS)}.yaml"
        default = document.read(place).mapping()
        name, kernel_node, folder = place.stem, default["kernel"], folder
    else:
        kernel_node, folder = top["kernel"], path.parent
        name = path.stem
    parameters = _parameters(top["parameters"], default)
    sizes = _sizes(top.get("sizes"), default)
    both = sorted(set(parameters) & set(sizes))
    if both:
        top["parameters"].wrong(f"'{both[0]}' is a size as well")
    names = {**sizes, **dict.fromkeys(parameters)}
    listed = [*(default["constraints"].items() if default else []), *_list(top, "constraints")]
    return Spec(
        name,
        _kernel(kernel_node, folder, names, parameters),
        sizes,
        parameters,
        tuple(node.expression(names) for node in listed),
        _search(top.get("search")),
        top["repeats"].whole(1, 1000) if "repeats" in top else 7,
        top["top"].whole(1, 1000) if "top" in top else 10,
        _heatmap(top.get("heatmap"), parameters),
        top["arch"].text() if "arch" in top else "sm_90a",
        tuple(node.text() for node in _list(top, "flags")),
        top["deadline"].whole(1, 86_400) if "deadline" in top else 60,
    )


def _list(top: Mapping[str, Node], key: str) -> list[Node]:
    return top[key].items() if key in top else []


def _parameters(node: Node, default: Mapping[str, Node] | None) -> dict[str, tuple[Scalar, ...]]:
    found: dict[str, tuple[Scalar, ...]] = {}
    allowed = default["parameters"].mapping() if default else {}
    for name, values in node.mapping(tuple(allowed)).items():
        if not _NAME.fullmatch(name):
            values.wrong("a parameter's name has letters, digits and _")
        found[name] = _values(values)
    for name, value in allowed.items():
        found.setdefault(name, (value.scalar(),))
    if not found:
        node.wrong("names no parameter")
    return found


def _values(node: Node) -> tuple[Scalar, ...]:
    """A list, or `{from, to, step}` or `{from, to, times}`."""
    if not isinstance(node.value, dict):
        parts = node.items()
        values = tuple(part.scalar() for part in parts)
        if not values or len(set(values)) < len(values):
            node.wrong("must list at least one value, and none twice")
        if len({isinstance(v, str) for v in values}) > 1:
            node.wrong("numbers and strings cannot be mixed")
        return values
    keys = node.mapping(("from", "to", "step", "times"), ("from", "to"))
    at, to = keys["from"].whole(-(1 << 40)), keys["to"].whole(-(1 << 40))
    if "times" in keys:
        factor = keys["times"].whole(2, 1000)
        if at < 1:
            keys["from"].wrong("must be 1 or more with 'times'")
        found: list[int] = []
        while at <= to and len(found) < 1000:
            found.append(at)
            at *= factor
    else:
        step = keys["step"].whole(1) if "step" in keys else 1
        if (to - at) // step >= 100_000:
            node.wrong("has more than 100,000 values")
        found = list(range(at, to + 1, step))
    if not found:
        node.wrong("'to' is smaller than 'from'")
    return tuple(found)


def _sizes(node: Node | None, default: Mapping[str, Node] | None) -> dict[str, Scalar]:
    known = default["sizes"].mapping() if default else {}
    found = {name: value.scalar() for name, value in known.items()}
    if node is not None:
        given = node.mapping(tuple(known))
        found |= {name: value.scalar() for name, value in given.items()}
    return found


def _search(node: Node | None) -> Search:
    if node is None:
        return Search()
    if isinstance(node.value, str):
        method = node.text(METHODS)
        return (
            Search(method) if method == "grid" else node.wrong("needs a budget: {method, budget}")
        )
    keys = node.mapping(("method", "budget", "seed", "initial"), ("method",))
    method = keys["method"].text(METHODS)
    if method != "grid" and "budget" not in keys:
        node.wrong("the key 'budget' is missing: how many configurations to try")
    return Search(
        method,
        keys["budget"].whole(1) if "budget" in keys else 0,
        keys["seed"].whole(0) if "seed" in keys else 1,
        keys["initial"].whole(2, 1000) if "initial" in keys else 8,
    )


def _heatmap(
    node: Node | None, parameters: Sequence[str] | dict[str, Any]
) -> tuple[str, str] | None:
    if node is None:
        return None
    axes = [part.text(tuple(parameters)) for part in node.items()]
    if len(axes) != 2 or axes[0] == axes[1]:
        node.wrong("must name two different parameters")
    return axes[0], axes[1]


def _kernel(
    node: Node, folder: Path, names: Mapping[str, Scalar | None], parameters: Mapping[str, Any]
) -> Kernel:
    keys = node.mapping(_KERNEL, ("entry", "grid", "arguments"))
    if ("cuda" in keys) == ("triton" in keys):
        node.wrong("needs either 'cuda: FILE.cu' or 'triton: FILE.py'")
    is_triton = "triton" in keys
    source = keys["triton" if is_triton else "cuda"]
    path = folder / source.text()
    if not path.is_file():
        source.wrong(f"there is no file {path}")
    if not is_triton and "block" not in keys:
        node.wrong("the key 'block' is missing: threads of a block, as [256, 1, 1]")
    defines = (
        {name: value.expression(names) for name, value in keys["defines"].mapping().items()}
        if "defines" in keys
        else {name.upper(): Node("", name, 0, name).expression(names) for name in parameters
              if not (is_triton and name in ("num_warps", "num_stages"))}
    )  # fmt: skip

    def maybe(key: str) -> Expression | None:
        return keys[key].expression(names) if key in keys else None

    return Kernel(
        path,
        keys["entry"].text(),
        is_triton,
        _axes(keys["grid"], names),
        _axes(keys["block"], names) if "block" in keys else (),
        maybe("shared"),
        tuple(_argument(part, names) for part in keys["arguments"].items()),
        defines,
        maybe("flops"),
        maybe("bytes"),
    )


def _axes(node: Node, names: Mapping[str, Scalar | None]) -> tuple[Expression, ...]:
    parts = node.items()
    if not 1 <= len(parts) <= 3:
        node.wrong("must have one to three axes")
    return tuple(part.expression(names) for part in parts)


def _argument(node: Node, names: Mapping[str, Scalar | None]) -> Argument:
    keys = node.mapping(("buffer", "count", "scalar", "value"))
    if "buffer" in keys and "count" in keys and len(keys) == 2:
        return Argument(keys["buffer"].text(tuple(TYPES)), keys["count"].expression(names), True)
    if "scalar" in keys and "value" in keys and len(keys) == 2:
        return Argument(keys["scalar"].text(SCALARS), keys["value"].expression(names), False)
    return node.wrong("must be {buffer: TYPE, count: ...} or {scalar: TYPE, value: ...}")
