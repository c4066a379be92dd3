"""Runs a chain in each of its ways, and compares the output with FP64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.h200._fusion_compile import (
    ACTIVATION_ROWS,
    ACTIVATION_WIDTH,
    norm_warps,
    pass_of,
    width_of,
)
from bench.h200._fusion_shapes import Candidate

#: Weights in rotation: more than the L2 holds.
ROTATED_BYTES = 120_000_000


@dataclass
class Layer:
    """A chain's tensors: weights as they are and with the gain folded in, several copies."""

    chain: int
    hidden: int
    out: int
    gain: Any
    shift: Any
    weights: list[Any]
    folded: list[Any]
    bias: Any
    bias_half: Any
    folded_bias: Any
    column_sums: Any


def make_layer(torch: Any, chain: int, hidden: int, out: int) -> Layer:
    """Random weights of the usual size."""
    draw = torch.Generator("cuda").manual_seed(hidden * 31 + out + chain)

    def normal(*size: int) -> Any:
        return torch.randn(*size, device="cuda", generator=draw)

    half = torch.bfloat16
    gain, shift = (1 + 0.1 * normal(hidden)).to(half), (0.1 * normal(hidden)).to(half)
    weight = (normal(out, hidden) / hidden**0.5).to(half)
    bias = (0.1 * normal(out)).to(half)
    folded = (weight.float() * gain.float()).to(half)
    moved = bias.float()
    if chain == 1:
        moved = moved + weight.float() @ shift.float()
    copies = min(max(ROTATED_BYTES // (hidden * out * 2), 1), 40) + 1
    return Layer(
        chain, hidden, out, gain, shift,
        [weight.clone() for _ in range(copies)], [folded.clone() for _ in range(copies)],
        bias.float(), bias, moved, folded.float().sum(1),
    )  # fmt: skip


class Runner:
    """Runs candidates on one layer and one batch of tokens."""

    def __init__(self, torch: Any, layer: Layer, tokens: int, scratch: dict[str, Any]) -> None:
        from bench.h200 import _fusion_kernels as kernels

        self.torch, self.kernels, self.layer, self.tokens = torch, kernels, layer, tokens
        self.scratch, self.norm, self.act = scratch, layer.chain + 1, layer.chain + 1
        draw = torch.Generator("cuda").manual_seed(tokens)
        size = (tokens, layer.hidden)
        self.x = (torch.randn(*size, device="cuda", generator=draw) + 0.1).to(torch.bfloat16)
        self.normed = torch.empty_like(self.x)
        self.y = torch.empty(tokens, layer.out, device="cuda", dtype=torch.bfloat16)
        self.compiled: dict[str, Any] = {}

    def run(self, candidate: Candidate, copy: int = 0) -> Any:
        """The chain once, with that copy of the weights. Returns the output."""
        split, layer = candidate.split, self.layer
        if split == "torch":
            return self._torch(copy)
        fused_norm = split in ("prologue", "all")
        x = self.x if fused_norm else self._norm()
        if candidate.tile is None:
            # cuBLAS adds the bias itself.
            self.torch.addmm(layer.bias_half, x, layer.weights[copy].t(), out=self.y)
            self._activate()
            return self.y
        last = split in ("epilogue", "all")
        weight = layer.folded[copy] if fused_norm else layer.weights[copy]
        bias = layer.folded_bias if fused_norm else layer.bias
        self._linear(candidate, x, weight, bias, self.norm if fused_norm else 0, last)
        if not last:
            self._activate(bias)
        return self.y

    def _torch(self, copy: int) -> Any:
        f, layer = self.torch.nn.functional, self.layer
        if layer.chain == 0:
            x = f.rms_norm(self.x, (layer.hidden,), layer.gain, 1e-5)
        else:
            x = f.layer_norm(self.x, (layer.hidden,), layer.gain, layer.shift, 1e-5)
        y = f.linear(x, layer.weights[copy], layer.bias_half)
        return f.silu(y, inplace=True) if layer.chain == 0 else f.gelu(y)

    def _norm(self) -> Any:
        layer, width = self.layer, width_of(self.layer.hidden)
        self.kernels.norm[(self.tokens,)](
            self.x, layer.gain, layer.shift, self.normed, layer.hidden, self.norm, width,
            num_warps=norm_warps(width),
        )  # fmt: skip
        return self.normed

    def _activate(self, bias: Any = None) -> None:
        grid = (-(-self.tokens // ACTIVATION_ROWS), -(-self.layer.out // ACTIVATION_WIDTH))
        self.kernels.bias_activation[grid](
            self.y, self.layer.bias if bias is None else bias, self.tokens, self.layer.out,
            bias is not None, self.act, ACTIVATION_ROWS, ACTIVATION_WIDTH, num_warps=4,
        )  # fmt: skip

    def _linear(
        self, candidate: Candidate, x: Any, weight: Any, bias: Any, norm: int, last: bool
    ) -> None:
        tile, layer, scratch = candidate.tile, self.layer, self.scratch
        assert tile is not None
        tiles = -(-self.tokens // tile.m) * -(-layer.out // tile.n)
        self.compiled[candidate.name] = self.kernels.linear[(tiles, tile.split)](
            x, weight, bias, layer.column_sums, self.y, scratch["parts"], scratch["rows"],
            scratch["counters"], self.tokens, layer.hidden, layer.out,
            norm, last, self.act if last else 0, tile.m, tile.n, tile.k, tile.split, pass_of(tile),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def reference(self, rows: Any) -> Any:
        """Those rows in FP64, from the weights as they are."""
        f, layer, wide = self.torch.nn.functional, self.layer, self.torch.float64
        x, gain = self.x[rows].to(wide), layer.gain.to(wide)
        if layer.chain == 0:
            x = x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt() * gain
        else:
            x = f.layer_norm(x, (layer.hidden,), gain, layer.shift.to(wide), 1e-5)
        y = x @ layer.weights[0].to(wide).t() + layer.bias.to(wide)
        return f.silu(y) if layer.chain == 0 else f.gelu(y)

    def error(self, candidate: Candidate, rows: Any, reference: Any) -> float:
        """Relative to the reference's norm; infinity where an element was left unwritten."""
        self.y.fill_(float("nan"))
        y = self.run(candidate)
        if not bool(self.torch.isfinite(y).all()):
            return float("inf")
        gap = y[rows].to(self.torch.float64) - reference
        return float(gap.norm() / reference.norm())
