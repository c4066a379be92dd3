"""Norm, linear layer, bias and activation as Triton kernels, with the split as a parameter.

`linear` computes act(norm(x) W^T + bias) as far as its switches say. With a norm it scales after
the product: the gain is folded into W beforehand, a first pass over the rows gathers their sums
(and those of their squares), and rstd (and mean x column sums of W) is applied to the
accumulators. So every column of tiles passes over its rows once more: that is the recomputation
which fusing a norm costs. With SPLIT > 1 the parts of K, and of those sums, are added by the block
that ends last; so the epilogue stays in the kernel.

The sums are not gathered from the product's own loads: in Triton 3.6 a load that both `wgmma` and
ordinary code use gets a buffer too few, and wrong results now and then (seen on an H200, relative
errors to 0.18).
"""

# ruff: noqa: N803 - compile-time parameters are in capitals, as Triton's own are

import triton
import triton.language as tl

NO_NORM, RMS_NORM, LAYER_NORM = 0, 1, 2
NO_ACTIVATION, SILU, GELU = 0, 1, 2


@triton.jit
def activate(value, ACT: tl.constexpr):
    """SiLU or GELU (by erf) of FP32 values."""
    if ACT == 1:
        value = value / (1.0 + tl.exp(-value))
    if ACT == 2:
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    return value


@triton.jit
def finish(
    acc,
    squares,
    sums,
    rows,
    columns,
    bias,
    column_sums,
    y,
    tokens,
    hidden,
    out,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
):
    """What follows the product, and the store."""
    column_in = columns < out
    if NORM == 1:
        acc = acc * tl.rsqrt(squares / hidden + 1e-5)[:, None]
    if NORM == 2:
        mean = sums / hidden
        rstd = tl.rsqrt(tl.maximum(squares / hidden - mean * mean, 0.0) + 1e-5)
        weights = tl.load(column_sums + columns, mask=column_in, other=0.0)
        acc = (acc - mean[:, None] * weights[None, :]) * rstd[:, None]
    if BIAS:
        acc += tl.load(bias + columns, mask=column_in, other=0.0)[None, :]
    acc = activate(acc, ACT)
    inside = (rows < tokens)[:, None] & column_in[None, :]
    tl.store(y + rows[:, None] * out + columns[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def linear(
    x,
    w,
    bias,
    column_sums,
    y,
    parts,
    row_parts,
    counters,
    tokens,
    hidden,
    out,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    PASS: tl.constexpr,
):
    """x: (tokens, hidden), w: (out, hidden), y: (tokens, out), all bf16; sums in FP32.

    Grid: (tiles, SPLIT). `parts` holds (tiles, SPLIT, BM, BN) floats, `row_parts`
    (tiles, SPLIT, 2, BM), `counters` a zero for each tile; it is zero again afterwards.
    """
    tile = tl.program_id(0)
    part = tl.program_id(1)
    tiles_m = tl.cdiv(tokens, BM)
    tiles_n = tl.cdiv(out, BN)
    # Eight rows of tiles together, so that what they share stays in L2.
    group = tile // (8 * tiles_n)
    height = tl.minimum(tiles_m - group * 8, 8)
    within = tile % (8 * tiles_n)
    rows = (group * 8 + within % height) * BM + tl.arange(0, BM)
    columns = (within // height) * BN + tl.arange(0, BN)
    row_in = (rows < tokens)[:, None]
    steps = tl.cdiv(hidden, BK * SPLIT)
    start = part * steps * BK
    end = tl.minimum(start + steps * BK, hidden)
    squares = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM,), tl.float32)
    if NORM != 0:
        many = tl.zeros((BM, PASS), tl.float32)
        many_sums = tl.zeros((BM, PASS), tl.float32)
        places = tl.arange(0, PASS)[None, :]
        for k in tl.range(start, end, PASS, num_stages=3):
            inside = row_in & (k + places < end)
            value = tl.load(x + rows[:, None] * hidden + k + places, mask=inside, other=0.0)
            wide = value.to(tl.float32)
            many += wide * wide
            if NORM == 2:
                many_sums += wide
        squares = tl.sum(many, 1)
        if NORM == 2:
            sums = tl.sum(many_sums, 1)
    ks = start + tl.arange(0, BK)
    x_at = x + rows[:, None] * hidden + ks[None, :]
    w_at = w + (columns % out)[None, :] * hidden + ks[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(end - start, BK)):  # noqa: B007
        a = tl.load(x_at, mask=row_in, other=0.0)
        b = tl.load(w_at)
        acc = tl.dot(a, b, acc)
        x_at += BK
        w_at += BK
    if SPLIT == 1:
        finish(
            acc, squares, sums, rows, columns, bias, column_sums, y, tokens, hidden, out,
            NORM, BIAS, ACT,
        )  # fmt: skip
    else:
        local_m = tl.arange(0, BM)
        place = local_m[:, None] * BN + tl.arange(0, BN)[None, :]
        tl.store(parts + (tile * SPLIT + part) * BM * BN + place, acc)
        if NORM != 0:
            tl.store(row_parts + (tile * SPLIT + part) * 2 * BM + local_m, squares)
            tl.store(row_parts + (tile * SPLIT + part) * 2 * BM + BM + local_m, sums)
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == SPLIT - 1:
            acc = tl.zeros((BM, BN), tl.float32)
            squares = tl.zeros((BM,), tl.float32)
            sums = tl.zeros((BM,), tl.float32)
            for other in range(SPLIT):
                at = tile * SPLIT + other
                acc += tl.load(parts + at * BM * BN + place, cache_modifier=".cg")
                if NORM != 0:
                    row_at = row_parts + at * 2 * BM + local_m
                    squares += tl.load(row_at, cache_modifier=".cg")
                    sums += tl.load(row_at + BM, cache_modifier=".cg")
            finish(
                acc, squares, sums, rows, columns, bias, column_sums, y, tokens, hidden, out,
                NORM, BIAS, ACT,
            )  # fmt: skip
            tl.store(counters + tile, 0)


@triton.jit
def norm(x, gain, shift, y, hidden, NORM: tl.constexpr, WIDTH: tl.constexpr):
    """One row a block: RMS norm or layer norm of bf16 rows."""
    row = tl.program_id(0)
    places = tl.arange(0, WIDTH)
    inside = places < hidden
    value = tl.load(x + row * hidden + places, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(gain + places, mask=inside, other=0.0).to(tl.float32)
    if NORM == 2:
        value = tl.where(inside, value - tl.sum(value, 0) / hidden, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / hidden + 1e-5) * weight
    if NORM == 2:
        value += tl.load(shift + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * hidden + places, value.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def bias_activation(
    y,
    bias,
    tokens,
    out,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Bias (FP32) and activation of bf16 values, in their place. Grid: rows, then columns."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    places = rows[:, None] * out + columns[None, :]
    inside = (rows < tokens)[:, None] & (columns < out)[None, :]
    value = tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + columns, mask=columns < out, other=0.0)[None, :]
    tl.store(y + places, activate(value, ACT).to(tl.bfloat16), mask=inside)
