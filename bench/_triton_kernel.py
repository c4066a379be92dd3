"""A Triton kernel for bench/agent_hooks.py, in a file of its own that its spans can name."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_add(x, y, out, n, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """out = x * scale + y"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(
        out + at, tl.load(x + at, mask=inside) * scale + tl.load(y + at, mask=inside), mask=inside
    )
