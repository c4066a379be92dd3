"""A PTX text by hand, so that these tests need no compiler."""

import pytest

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"

RACE = (
    HEAD
    + """
.visible .entry race(
	.param .u64 race_param_0
)
{
	.reg .pred 	%p<2>;
	.reg .f32 	%f<3>;
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<5>;
	.shared .align 4 .b8 s[128];
	.loc	1 3 0
	ld.param.u64 	%rd1, [race_param_0];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 2;
	mov.u32 	%r3, s;
	add.s32 	%r4, %r3, %r2;
	.loc	1 5 3
	st.shared.u32 	[%r4], %r1;
	.loc	1 6 3
	BARRIER
	xor.b32  	%r5, %r2, 4;
	add.s32 	%r6, %r3, %r5;
	.loc	1 7 3
	ld.shared.u32 	%r7, [%r6];
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r7;
	ret;
}
	.file	1 "kernel.cu"
"""
)


@pytest.fixture
def racy_ptx() -> str:
    """Lanes swap neighbours through shared memory with nothing between."""
    return RACE.replace("BARRIER", "")


@pytest.fixture
def clean_ptx() -> str:
    """The same, with `__syncwarp()`."""
    return RACE.replace("BARRIER", "bar.warp.sync -1;")
