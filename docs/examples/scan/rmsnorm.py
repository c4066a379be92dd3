"""RMSNorm in Triton: a program a row."""

import triton
import triton.language as tl


@triton.jit
def rmsnorm(out, x, gain, width, BLOCK: tl.constexpr):  # noqa: N803
    """Each program walks its row in pieces of BLOCK, once for the sum and once for the result."""
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
        total += value * value
    scale = tl.rsqrt(tl.sum(total) / width + 1e-6)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < width
        value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(gain + at, mask=inside, other=0.0)
        tl.store(out + row * width + at, value * scale * weight, mask=inside)
