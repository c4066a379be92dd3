"""Grid-stride kernels of many kinds, and the launches of them that `lab predict` is fitted on.

Each family is compiled for several unrolls and register caps, and launched with many block
sizes, grids, amounts of shared memory and footprints. A footprint below `n` is walked over and
over, so that it lives in the L2; above the L2's size it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.h200._pressure_kernels import HEAD

UNROLLS = (1, 2, 4, 8)
#: nvcc's `-maxrregcount`; 0: as the compiler likes.
CAPS = (0, 0, 24, 48)
BLOCKS = (64, 128, 192, 256, 384, 512, 768, 1024)
#: Dynamic shared memory that a block takes beside what the kernel needs.
BALLAST_KIB = (0, 0, 0, 0, 8, 16, 24, 32, 48, 72, 100, 160, 220)
WAVES = (0.25, 0.5, 0.9, 1.0, 1.0, 1.0, 1.3, 2.0, 3.4, 7.5)
#: Floats; 1 MiB to 512 MiB of each array, of which there is at least one.
FOOTPRINTS = tuple(2**k for k in range(18, 28))
ELEMENTS = tuple(2**k for k in range(20, 26))
#: Of the loop, so that a launch of few threads ends soon.
MOST_TURNS = 512

_HASH = (
    "__device__ __forceinline__ u32 mix(u32 v){v^=v>>16;v*=0x7feb352du;v^=v>>15;v*=0x846ca68bu;"
    "return v^v>>16;}\n"
)
_SIGNATURE = "(float* __restrict__ y,const float* __restrict__ x,u32 n,u32 mask,float p,u64* r)"


@dataclass(frozen=True)
class Family:
    """A kernel but for its unroll. `load` and `use` see the element `i`, its place `m = i & mask`.

    `bytes_read` and `bytes_written` are of an element; `flops` too. `shared_bytes` is what a
    thread needs.
    """

    name: str
    load: str
    use: str
    bytes_read: int
    bytes_written: int
    flops: int
    before: str = ""
    after: str = ""
    shared_bytes: int = 0
    kind: str = "float"
    #: Floats of an element.
    width: int = 1
    #: Whether places are drawn at random, so that a warp's lanes meet no common line.
    random: bool = False
    #: Whether the loop holds a barrier, so that every thread must make every turn.
    barrier: bool = False

    def source(self, unroll: int) -> str:
        """The grid-stride loop, `unroll` elements of a thread in flight."""
        place = f"u32 i=k+u*d,m=i&(mask>>{self.width.bit_length() - 1});(void)i;(void)m;"
        turn = (
            f'{self.kind} v[{unroll}];_Pragma("unroll") for(int u=0;u<{unroll};u++)'
            f"{{{place}v[u]={self.load};}}"
            f'_Pragma("unroll") for(int u=0;u<{unroll};u++)'
            f"{{{place}{self.use}}}"
        )
        rest = turn.replace(f"u<{unroll}", "u<1").replace(f"v[{unroll}]", "v[1]")
        # With barriers n is a multiple of all that a turn takes (see `launches`).
        return (
            f'extern "C" __global__ void {self.name}_u{unroll}{_SIGNATURE}{{'
            "extern __shared__ __align__(16) float s[];long long t0=now();"
            "u32 t=blockIdx.x*blockDim.x+threadIdx.x,d=gridDim.x*blockDim.x;(void)s;"
            f"{self.before}u32 k=t;"
            f'_Pragma("unroll 1") for(;k+{unroll - 1}*d<n;k+={unroll}*d){{{turn}}}'
            + ("" if self.barrier else f'_Pragma("unroll 1") for(;k<n;k+=d){{{rest}}}')
            + f"{self.after} note(r,t0);}}\n"
        )


_ACC = "float a=0;"
_OUT = "y[t&mask]=a;"


def _repeat(text: str, times: int) -> str:
    return text * times


def _wide(count: int) -> Family:
    """`count` values that stay in registers through the loop."""
    every = f'_Pragma("unroll") for(int j=0;j<{count};j++)'
    return Family(
        f"wide{count}",
        "x[m]",
        f"{every}a[j]=fmaf(v[u],a[j],a[(j+5)%{count}]);",
        4,
        0,
        2 * count,
        f"float a[{count}];{every}a[j]=p*j;",
        f"float o=0;{every}o+=a[j];y[t&mask]=o;",
    )


def families() -> tuple[Family, ...]:
    """All kinds of kernel."""
    horner = "float w=v[u];" + _repeat("w=fmaf(w,v[u],p);", 32) + "y[m]=w;"
    transcendental = "float w=v[u];" + _repeat("w=__expf(-w)+__logf(w+1.5f);", 3) + "y[m]=w;"
    rounds = (
        "u32 w=__float_as_uint(v[u]);"
        + _repeat("w=mix(w+k);", 6)
        + "y[m]=__uint_as_float(w&0x3fffffff);"
    )
    double_ = "double w=v[u];" + _repeat("w=fma(w,(double)v[u],(double)p);", 8) + "y[m]=(float)w;"
    chase = "x[mix(__float_as_uint(x[mix(__float_as_uint(x[mix(i)&mask])+i)&mask])^i)&mask]"
    near = "+".join(f"x[(m+{j})&mask]" for j in range(7))
    tile = (
        "float*w=s+u*blockDim.x;w[threadIdx.x]=v[u];__syncthreads();"
        "float b=0;for(int j=1;j<9;j++)b+=w[(threadIdx.x+j)%blockDim.x];y[m]=b;__syncthreads();"
    )
    scan = (
        "float b=v[u];for(int j=1;j<32;j*=2){float o=__shfl_up_sync(~0u,b,j);"
        "if((threadIdx.x&31)>=j)b+=o;}"
        "if((threadIdx.x&31)==31)s[threadIdx.x>>5]=b;__syncthreads();"
        "float c=0;for(u32 j=0;j<threadIdx.x>>5;j++)c+=s[j];y[m]=b+c;__syncthreads();"
    )
    lut = "for(u32 j=threadIdx.x;j<1024;j+=blockDim.x)s[j]=x[j];__syncthreads();"
    return (
        Family("copy", "x[m]", "y[m]=v[u];", 4, 4, 0),
        Family(
            "copy4",
            "((const float4*)x)[m]",
            "((float4*)y)[m]=v[u];",
            16,
            16,
            0,
            kind="float4",
            width=4,
        ),
        Family("axpy", "x[m]", "y[m]=fmaf(p,v[u],y[m]);", 8, 4, 2),
        Family("sum", "x[m]", "a+=v[u];", 4, 0, 1, _ACC, _OUT),
        Family(
            "sum4",
            "((const float4*)x)[m]",
            "a+=v[u].x+v[u].y+v[u].z+v[u].w;",
            16,
            0,
            4,
            _ACC,
            _OUT,
            kind="float4",
            width=4,
        ),
        Family("gather", "x[mix(i)&mask]", "y[m]=v[u];", 36, 4, 0, random=True),
        Family("scatter", "x[m]", "y[mix(i)&mask]=v[u];", 4, 36, 0, random=True),
        Family("chase3", chase, "a+=v[u];", 96, 0, 1, _ACC, _OUT, random=True),
        Family("horner32", "x[m]", horner, 4, 4, 64),
        Family("expf", "x[m]", transcendental, 4, 4, 18),
        Family("rounds", "x[m]", rounds, 4, 4, 0),
        Family("dpoly", "x[m]", double_, 4, 4, 16),
        Family("stencil7", near, "y[m]=v[u]*p;", 4, 4, 7),
        Family("tile8", "x[m]", tile, 4, 4, 8, shared_bytes=-4, barrier=True),
        Family("scan", "x[m]", scan, 4, 4, 12, shared_bytes=4, barrier=True),
        Family(
            "lut", "s[__float_as_uint(x[m])>>8&1023]", "y[m]=v[u];", 4, 4, 0, lut, shared_bytes=64
        ),
        Family(
            "histogram",
            "x[m]",
            "atomicAdd((u32*)s+(mix(__float_as_uint(v[u]))&255),1u);",
            4,
            0,
            0,
            "for(u32 j=threadIdx.x;j<256;j+=blockDim.x)s[j]=0;__syncthreads();",
            "__syncthreads();for(u32 j=threadIdx.x;j<256;j+=blockDim.x)"
            "atomicAdd((u32*)y+j,((u32*)s)[j]);",
            16,
        ),
        Family("atomic", "x[m]", "atomicAdd(y+(mix(i)&mask),v[u]);", 4, 36, 1, random=True),
        *(_wide(count) for count in (24, 56, 100)),
        Family(
            "normalise",
            "x[m]",
            "float b=v[u];for(int j=16;j;j>>=1)b+=__shfl_xor_sync(~0u,b,j);"
            "float c=v[u]-b*0.03125f,q=c*c;"
            "for(int j=16;j;j>>=1)q+=__shfl_xor_sync(~0u,q,j);y[m]=c*rsqrtf(q+p);",
            4,
            4,
            26,
        ),
    )


def source() -> str:
    """All families at all unrolls in one file."""
    return HEAD + _HASH + "".join(f.source(u) for f in families() for u in UNROLLS)


@dataclass(frozen=True)
class Config:
    """One launch: the kernel (family, unroll, cap), and its shape."""

    family: int
    unroll: int
    cap: int
    block: int
    waves: float
    ballast_bytes: int
    footprint: int
    elements: int

    @property
    def name(self) -> str:
        """Of the function."""
        return f"{families()[self.family].name}_u{self.unroll}"

    def shared_bytes(self, family: Family) -> int:
        """Dynamic shared memory: what the kernel needs, or the ballast where that is more."""
        need = family.shared_bytes * self.block
        if need < 0:
            need = -need * self.unroll
        return max(need, 4096 if need else 0, self.ballast_bytes)


def configs(count: int, seed: int) -> list[Config]:
    """The same number of each family, drawn at random."""
    draw = np.random.default_rng(seed)
    made = []
    kinds = families()
    for number in range(count):
        index = number % len(kinds)
        block = int(draw.choice(BLOCKS))
        made.append(
            Config(
                index,
                int(draw.choice(UNROLLS)),
                int(draw.choice(CAPS)),
                block,
                float(draw.choice(WAVES)),
                int(draw.choice(BALLAST_KIB)) * 1024,
                int(draw.choice(FOOTPRINTS)),
                int(draw.choice(ELEMENTS)),
            )
        )
    return made


def grid_of(config: Config, blocks_per_sm: int, sms: int) -> int:
    """Blocks: so many waves of what the GPU holds, at most one turn of the loop each thread."""
    wish = max(int(blocks_per_sm * sms * config.waves), 1)
    width = families()[config.family].width
    most = max(config.elements // (config.block * config.unroll * width), 1)
    return min(wish, most)


def elements_of(config: Config, grid: int) -> int:
    """Loop bound, in elements. Where the loop holds a barrier every thread makes the same turns."""
    family = families()[config.family]
    turn = grid * config.block * config.unroll
    wish = min(config.elements // family.width, turn * MOST_TURNS)
    return max(wish // turn, 1) * turn if family.barrier else wish


def known(family: Family) -> Mapping[str, float]:
    """What the table says of a family."""
    return {
        "bytes_read": family.bytes_read,
        "bytes_written": family.bytes_written,
        "flops": family.flops,
        "width": family.width,
        "random": int(family.random),
        "barrier": int(family.barrier),
    }
