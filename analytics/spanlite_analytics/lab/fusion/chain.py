"""A chain, its splits into kernels, and what each kernel reads, writes and computes.

Shapes are those of a linear layer: (tokens, hidden) in, (out, hidden) weights, bf16. `unfused`
has a kernel for the norm, the product, and bias with activation; `epilogue` fuses the last into
the product, `prologue` the first, `all` both.
"""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.errors import UsageError

SPLITS = ("unfused", "epilogue", "prologue", "all")
NORMS = {"rmsnorm": 4, "layernorm": 8}  # FLOPs an element, the gain included
ACTIVATIONS = {"silu": 4, "gelu": 8}
ELEMENT_BYTES = 2
BIAS_BYTES = 4


@dataclass(frozen=True, slots=True)
class Chain:
    """What is computed around the product. Empty strings and False: not there."""

    norm: str = ""
    bias: bool = False
    activation: str = ""

    @classmethod
    def parse(cls, text: str) -> Chain:
        """From `rmsnorm,gemm,bias,silu`. Raises UsageError where the order is another."""
        words = text.replace(" ", "").lower().split(",")
        made = cls(
            words[0] if words[0] in NORMS else "",
            "bias" in words,
            words[-1] if words[-1] in ACTIVATIONS else "",
        )
        if words != made.words:
            raise UsageError(
                f"--chain {text}: must be {' or '.join(NORMS)}, then gemm, then bias, then "
                f"{' or '.join(ACTIVATIONS)}; each but gemm may be left out"
            )
        return made

    @property
    def words(self) -> list[str]:
        """Of its parts, in order."""
        parts = (self.norm, "gemm", "bias" if self.bias else "", self.activation)
        return [word for word in parts if word]

    @property
    def name(self) -> str:
        """As it is parsed."""
        return ",".join(self.words)

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that differ for this chain."""
        after = self.bias or bool(self.activation)
        if self.norm and after:
            return SPLITS
        return ("unfused", "prologue") if self.norm else ("unfused", "epilogue")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the layer."""

    tokens: int
    hidden: int
    out: int

    @property
    def flops(self) -> float:
        """Of the product."""
        return 2.0 * self.tokens * self.hidden * self.out

    @property
    def weight_bytes(self) -> float:
        """Of the weights."""
        return float(self.hidden) * self.out * ELEMENT_BYTES

    @property
    def in_bytes(self) -> float:
        """Of the activations that come in."""
        return float(self.tokens) * self.hidden * ELEMENT_BYTES

    @property
    def out_bytes(self) -> float:
        """Of those that go out."""
        return float(self.tokens) * self.out * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a split: compulsory bytes, FLOPs, and FLOPs done more than once.

    `again_flops`: sums over a row that every column of tiles forms anew.
    """

    what: str
    read_bytes: float
    write_bytes: float
    flops: float
    again_flops: float = 0.0


def kernels_of(chain: Chain, shape: Shape, split: str, tile_n: int | None = None) -> list[Kernel]:
    """The kernels of a split, in order. `tile_n`: columns of a tile, for what is done again."""
    before = chain.norm != "" and split in ("unfused", "epilogue")
    after = (chain.bias or chain.activation != "") and split in ("unfused", "prologue")
    in_elements, out_elements = float(shape.tokens * shape.hidden), shape.tokens * shape.out
    gain = shape.hidden * ELEMENT_BYTES * (2 if chain.norm == "layernorm" else 1)
    bias = shape.out * BIAS_BYTES if chain.bias else 0
    last_flops = out_elements * (ACTIVATIONS.get(chain.activation, 0) + int(chain.bias))
    made = []
    if before:
        work = NORMS[chain.norm] * in_elements
        made.append(Kernel(chain.norm, shape.in_bytes + gain, shape.in_bytes, work))
    parts = [chain.norm] if chain.norm and not before else []
    read, flops, again = shape.in_bytes + shape.weight_bytes, shape.flops, 0.0
    if parts:
        sums = in_elements * (3 if chain.norm == "layernorm" else 2)
        flops += sums + 2 * out_elements
        again = sums * (-(-shape.out // tile_n) - 1) if tile_n else 0.0
    parts.append("gemm")
    if not after:
        parts += [word for word in ("bias" if chain.bias else "", chain.activation) if word]
        read, flops = read + bias, flops + last_flops
    made.append(Kernel("+".join(parts), read, shape.out_bytes, flops, again))
    if after:
        words = [word for word in ("bias" if chain.bias else "", chain.activation) if word]
        made.append(
            Kernel("+".join(words), shape.out_bytes + bias, shape.out_bytes, float(last_flops))
        )
    return made
