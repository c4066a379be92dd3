"""Small kernels of every mix of instructions, for `lab pressure`: what each runs in its loop.

Each kernel has one loop of `n` turns and says how many floating-point operations a thread does
in a turn. `micro` ones hold a single instruction over and over: with one warp they show its
latency, with a full SM its rate. The rest are the corpus that the model is judged on.
"""

from __future__ import annotations

from dataclasses import dataclass

#: nvcc's `-maxrregcount`; 0: as the compiler likes.
CAPS = (0, 28, 32, 40, 48, 64, 80, 96, 128, 168)
SHARED_FLOATS = 4096
#: Of `x`: numbers below, zeros (as 2,048 to 4,095 are) from there on.
ZEROS_FROM = 1 << 16

HEAD = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ __forceinline__ long long now() {
  long long t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}
__device__ __forceinline__ void note(u64* r, long long t0) {
  long long t1 = now();
  if (r != nullptr && (threadIdx.x & 31) == 0) {
    u32 sm, warp = blockIdx.x * ((blockDim.x + 31) >> 5) + (threadIdx.x >> 5);
    u64 low = (1ull << 48) - 1;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    ((ulonglong2*)r)[warp] = make_ulonglong2(t0 & low, (u64)sm << 48 | (t1 & low));
  }
}
"""


@dataclass(frozen=True)
class Kernel:
    """A loop body and what is around it."""

    name: str
    before: str
    body: str
    after: str
    flops: int
    micro: bool = False
    shared: bool = False

    def source(self) -> str:
        """As CUDA C++."""
        tile = (
            f"__shared__ __align__(16) float s[{SHARED_FLOATS}];"
            f"for(u32 i=threadIdx.x;i<{SHARED_FLOATS};i+=blockDim.x)s[i]=x[i];__syncthreads();"
            if self.shared
            else ""
        )
        return (
            f'extern "C" __global__ void {self.name}(float* __restrict__ y,'
            "const float* __restrict__ x,u32 n,float p,float q,u64* r){"
            f"u32 t=blockIdx.x*blockDim.x+threadIdx.x;{tile}{self.before}"
            "long long t0=now();"
            f'_Pragma("unroll 1") for(u32 k=0;k<n;k++){{{self.body}}}'
            f"{self.after} note(r,t0);}}\n"
        )


def _array(count: int, kind: str = "float") -> str:
    load = "x[(threadIdx.x+i)&1023]"
    cast = f"({kind}){load}" if kind != "u32" else f"__float_as_uint({load})"
    return f'{kind} a[{count}];_Pragma("unroll") for(int i=0;i<{count};i++)a[i]={cast};'


def _sum(count: int, kind: str = "float") -> str:
    how = "(float)o" if kind != "u32" else "__uint_as_float(o)"
    return f'{kind} o=a[0];_Pragma("unroll") for(int i=1;i<{count};i++)o=o+a[i];y[t&1023]={how};'


def _chains(
    name: str, width: int, turns: int, step: str, flops: int, kind: str = "float", **more: bool
) -> Kernel:
    """`width` independent chains, each `turns` steps of `step` long in a turn of the loop."""
    body = (
        f'_Pragma("unroll") for(int j=0;j<{turns};j++){{'
        f'_Pragma("unroll") for(int i=0;i<{width};i++){{{step}}}}}'
    )
    return Kernel(name, _array(width, kind), body, _sum(width, kind), flops * width * turns, **more)


#: Instruction, its type, and the PTX of one step on `a[i]`.
_OPS = {
    "ffma": ("float", "fma.rn.f32 %0,%0,%1,%2;"),
    "fadd": ("float", "add.rn.f32 %0,%0,%1;"),
    "fmnmx": ("float", "{.reg .f32 z; max.f32 z,%0,%1; min.f32 %0,z,%2;}"),
    "dfma": ("double", "fma.rn.f64 %0,%0,%1,%2;"),
    "imad": ("u32", "mad.lo.u32 %0,%0,%1,%2;"),
    "iadd": ("u32", "{.reg .u32 z; add.u32 z,%0,%1; xor.b32 %0,z,%2;}"),
    "shf": ("u32", "shf.l.wrap.b32 %0,%0,%1,%2;"),
    "ex2": ("float", "ex2.approx.ftz.f32 %0,%0;"),
    "rsq": ("float", "rsqrt.approx.ftz.f32 %0,%0;"),
    "sin": ("float", "sin.approx.ftz.f32 %0,%0;"),
    "tanh": ("float", "tanh.approx.f32 %0,%0;"),
    "hfma2": ("u32", "fma.rn.f16x2 %0,%0,%1,%2;"),
    "popc": ("u32", "popc.b32 %0,%0;"),
    "i2f": ("u32", "cvt.rn.f32.u32 %0,%0;"),
    "f2i": ("u32", "{.reg .f32 z; mov.b32 z,%0; cvt.rzi.s32.f32 %0,z;}"),
    "shfl": ("u32", "shfl.sync.bfly.b32 %0,%0,1,31,0xffffffff;"),
    "sel": ("u32", "{.reg .pred z; setp.lt.u32 z,%0,%1; selp.b32 %0,%2,%0,z;}"),
    "vote": ("u32", "{.reg .pred z; setp.lt.u32 z,%0,%1; vote.sync.ballot.b32 %0,z,0xffffffff;}"),
}


def _micro() -> list[Kernel]:
    made = []
    for name, (kind, text) in _OPS.items():
        letter = {"float": "f", "double": "d", "u32": "r"}[kind]
        turn = {"float": "p", "double": "pd", "u32": "pu"}[kind]
        other = {"float": "q", "double": "qd", "u32": "qu"}[kind]
        uses = "".join(f',"{letter}"({v})' for v in (turn, other)).removeprefix(",")
        step = f'asm volatile("{text}":"+{letter}"(a[i]):{uses});'
        for width in (1, 8):
            one = _chains(f"micro_{name}_{width}", width, 64 // width, step, 0, kind, micro=True)
            more = "double pd=p,qd=q;u32 pu=__float_as_uint(p),qu=__float_as_uint(q);"
            made.append(Kernel(one.name, more + one.before, one.body, one.after, 0, micro=True))
    return made + _micro_memory()


def _micro_memory() -> list[Kernel]:
    """Pointer chases and independent loads; tables hold zeros where they are followed."""
    made = []
    loads = {
        "lds": ("s", "ld.shared.u32"),
        "ldg_l1": ("g", "ld.global.ca.u32"),
        "ldg_l2": ("g", "ld.global.cg.u32"),
    }
    for name, (space, text) in loads.items():
        for width in (1, 8):
            base = "u32 b=(u32)__cvta_generic_to_shared(s)+(threadIdx.x&31)*4,e=128;u32"
            if space == "g":
                base = "u64 b=(u64)(x+2048+(threadIdx.x&31)),e=128;u64"
            if name == "ldg_l2":
                base = "u64 b=(u64)(x+65536+t),e=(u64)gridDim.x*blockDim.x*4;u64"
            kind = "r" if space == "s" else "l"
            step = f'u32 v;asm volatile("{text} %0,[%1];":"=r"(v):"{kind}"(a[i]):"memory");a[i]+=v;'
            before = f"{base} a[{width}];for(int i=0;i<{width};i++)a[i]=b+i*e;"
            if space == "s":
                before += (
                    f"for(u32 i=threadIdx.x;i<{SHARED_FLOATS};i+=blockDim.x)s[i]=0;__syncthreads();"
                )
            body = (
                f'_Pragma("unroll") for(int j=0;j<{16 if width == 1 else 4};j++){{'
                f'_Pragma("unroll") for(int i=0;i<{width};i++){{{step}}}}}'
            )
            after = _sum(width).replace("float o", "u64 o")
            made.append(Kernel(f"micro_{name}_{width}", before, body, after, 0, True, space == "s"))
    made += [_shared_rate(width) for width in (4, 16)]
    made.append(_mma("micro_mma_1", 1, 8, True))
    made.append(_mma("micro_mma_8", 8, 2, True))
    made.append(Kernel("micro_bar", _array(1), "__syncthreads();" * 8, _sum(1), 0, micro=True))
    return made


def _shared_rate(width: int) -> Kernel:
    """Loads of `width` bytes a lane that wait for nothing, all added up."""
    names = [f"v{n}" for n in range(width // 4)]
    what = "f32 v0" if width == 4 else "v4.f32 {v0,v1,v2,v3}"
    adds = "".join(f"add.rn.f32 %0,%0,{name};" for name in names)
    steps = "".join(
        f'asm volatile("{{.reg .f32 {",".join(names)};ld.volatile.shared.{what},'
        f'[%1+{i * width * 32}];{adds}}}":"+f"(a[{i % 8}]):"r"(b));'
        for i in range(16)
    )
    before = f"u32 b=(u32)__cvta_generic_to_shared(s)+(threadIdx.x&31)*{width};" + _array(8)
    return Kernel(f"micro_lds{width * 8}_rate", before, steps, _sum(8), 0, True, True)


def _mma(name: str, width: int, turns: int, micro: bool = False) -> Kernel:
    """m16n8k16 in bf16 with `width` accumulator tiles."""
    before = (
        "u32 f0=__float_as_uint(p),f1=f0,f2=f0,f3=f0,g0=__float_as_uint(q),g1=g0;"
        f"float c[{width}][4]={{}};"
    )
    step = (
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 '
        '{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};":'
        '"+f"(c[i][0]),"+f"(c[i][1]),"+f"(c[i][2]),"+f"(c[i][3]):'
        '"r"(f0),"r"(f1),"r"(f2),"r"(f3),"r"(g0),"r"(g1));'
    )
    body = (
        f'_Pragma("unroll") for(int j=0;j<{turns};j++){{'
        f'_Pragma("unroll") for(int i=0;i<{width};i++){{{step}}}}}'
    )
    after = f"float o=0;for(int i=0;i<{width};i++)o+=c[i][0]+c[i][1]+c[i][2]+c[i][3];y[t&1023]=o;"
    # 16 x 8 x 16 multiply-adds of a warp, a 32nd of them a thread.
    return Kernel(name, before, body, after, 128 * width * turns, micro)


def _wide(count: int) -> Kernel:
    """All of `count` values are alive through the loop and feed each other."""
    body = (
        "float v=x[k&1023];"
        f'_Pragma("unroll") for(int i=0;i<{count};i++)a[i]=fmaf(a[i],v,a[(i*7+3)%{count}]);'
    )
    return Kernel(f"wide{count}", _array(count), body, _sum(count), 2 * count)


def _gemm(size: int) -> Kernel:
    """A register tile of size x size, its operands from shared memory."""
    before = (
        f"float c[{size}][{size}]={{}};"
        f"u32 row=(threadIdx.x>>4&7)*{size},col=(threadIdx.x&15)*{size};"
    )
    body = (
        f"const float*sa=s+((k&7)*64+row%64),*sb=s+1024+(k&7)*128+col%128;"
        f"float f[{size}],g[{size}];"
        f'_Pragma("unroll") for(int i=0;i<{size};i++){{f[i]=sa[i];g[i]=sb[i];}}'
        f'_Pragma("unroll") for(int i=0;i<{size};i++)_Pragma("unroll") for(int j=0;j<{size};j++)'
        "c[i][j]=fmaf(f[i],g[j],c[i][j]);"
    )
    after = f"float o=0;for(int i=0;i<{size};i++)for(int j=0;j<{size};j++)o+=c[i][j];y[t&1023]=o;"
    return Kernel(f"gemm{size}x{size}", before, body, after, 2 * size * size, shared=True)


def _plain() -> list[Kernel]:
    """Kernels as people write them."""
    horner = "float v=a[i];" + "v=fmaf(v,a[i],p);v=fmaf(v,a[i],q);" * 6 + "a[i]=v*0.5f;"
    gelu = (
        "float v=a[i];float w=v*fmaf(v*v,0.0356f,0.7978f);"
        'asm("tanh.approx.f32 %0,%0;":"+f"(w));a[i]=0.5f*v*(1.f+w)+p;'
    )
    hash_ = "u32 v=a[i];v^=v>>16;v*=0x7feb352du;v^=v>>15;v*=0x846ca68bu;v^=v>>16;a[i]=v+k;"
    mandel = "{float u=a[2*i],v=a[2*i+1];a[2*i]=fmaf(u,u,p)-v*v;a[2*i+1]=fmaf(2.f*u,v,q);}"
    nbody = (
        '_Pragma("unroll") for(int j=0;j<4;j++){float4 o=((float4*)s)[(k*4+j)&1023];'
        "float u=o.x-a[0],v=o.y-a[1],w=o.z-a[2];float d=fmaf(u,u,fmaf(v,v,fmaf(w,w,p)));"
        "float f=rsqrtf(d);f=o.w*f*f*f;"
        "a[3]=fmaf(u,f,a[3]);a[4]=fmaf(v,f,a[4]);a[5]=fmaf(w,f,a[5]);}"
    )
    lorenz = (
        "float u=a[3*i],v=a[3*i+1],w=a[3*i+2];"
        "a[3*i]=fmaf(p*10.f,v-u,u);a[3*i+1]=fmaf(p,u*(28.f-w)-v,v);a[3*i+2]=fmaf(p,u*v-q*w,w);"
    )
    softmax = 'float v=fmaf(a[i],p,-q);asm("ex2.approx.ftz.f32 %0,%0;":"+f"(v));a[i]+=v;'
    branchy = "if((__float_as_uint(a[i])^k)&64u){a[i]=fmaf(a[i],p,q);}else{a[i]=rsqrtf(a[i]+1.f);}"
    reduce = (
        'float v=a[i];_Pragma("unroll") for(int m=16;m;m>>=1)v+=__shfl_xor_sync(~0u,v,m);'
        "a[i]=v*0.03f;"
    )
    lut = "a[i]+=s[(__float_as_uint(a[i])>>9)&4095]*p;"
    gather = "a[i]=fmaf(x[(__float_as_uint(a[i])>>9)&1023],p,a[i]);"
    stream = "a[i]=fmaf(__ldcg(x+((k*1024+i*256+threadIdx.x)&65535)),p,a[i]);"
    double_mix = "double v=a[i];a[i]=fma(v,(double)p,(double)(float)v*0.5);"
    return [
        _chains("horner1", 1, 4, horner, 25),
        _chains("horner4", 4, 1, horner, 25),
        _chains("gelu1", 1, 4, gelu, 8),
        _chains("gelu4", 4, 1, gelu, 8),
        _chains("hash1", 1, 4, hash_, 0, "u32"),
        _chains("hash4", 4, 2, hash_, 0, "u32"),
        Kernel("mandel1", _array(2), mandel.replace("i", "0") * 4, _sum(2), 28),
        _chains("softmax2", 2, 4, softmax, 4),
        _chains("softmax8", 8, 2, softmax, 4),
        Kernel("nbody", _array(6), nbody, _sum(6), 4 * 20, shared=True),
        Kernel(
            "lorenz4",
            _array(12),
            f'_Pragma("unroll") for(int i=0;i<4;i++){{{lorenz}}}',
            _sum(12),
            44,
        ),
        _chains("branchy2", 2, 4, branchy, 2),
        _chains("shuffle1", 1, 4, reduce, 6),
        _chains("shuffle4", 4, 2, reduce, 6),
        _chains("lut2", 2, 4, lut, 2, shared=True),
        _chains("lut8", 8, 1, lut, 2, shared=True),
        _chains("gather2", 2, 4, gather, 2),
        _chains("gather8", 8, 1, gather, 2),
        _chains("stream4", 4, 2, stream, 2),
        _chains("double_mix4", 4, 4, double_mix, 3, "double"),
        _sort(),
        _fft(),
        _mat4(),
    ]


def _sort() -> Kernel:
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (1, 2), (5, 6)]
    pairs += [(0, 4), (3, 7), (1, 5), (2, 6), (1, 4), (3, 6), (2, 4), (3, 5), (3, 4)]
    swaps = "".join(
        f"{{float u=fminf(a[{i}],a[{j}]),v=fmaxf(a[{i}],a[{j}]);a[{i}]=u;a[{j}]=v;}}"
        for i, j in pairs
    )
    turn = '_Pragma("unroll") for(int i=0;i<8;i++)a[i]=fmaf(a[i],i&1?p:q,p);'
    return Kernel("sort8", _array(8), swaps + turn, _sum(8), 2 * len(pairs) + 16)


def _fft() -> Kernel:
    parts = []
    for span in (4, 2, 1):
        for i in range(8):
            if not i & span:
                u, v = 2 * i, 2 * (i + span)
                parts.append(
                    f"{{float e=a[{u}]-a[{v}],f=a[{u + 1}]-a[{v + 1}];a[{u}]+=a[{v}];"
                    f"a[{u + 1}]+=a[{v + 1}];a[{v}]=fmaf(e,p,-f*q);a[{v + 1}]=fmaf(e,q,f*p);}}"
                )
    return Kernel("fft8", _array(16), "".join(parts), _sum(16), 12 * 10)


def _mat4() -> Kernel:
    body = (
        'float b[16];_Pragma("unroll") for(int i=0;i<4;i++)_Pragma("unroll") for(int j=0;j<4;j++){'
        'float v=0;_Pragma("unroll") for(int m=0;m<4;m++)v=fmaf(a[i*4+m],a[m*4+j],v);b[i*4+j]=v*p;}'
        '_Pragma("unroll") for(int i=0;i<16;i++)a[i]=b[i];'
    )
    return Kernel("mat4", _array(16), body, _sum(16), 64 * 2 + 16)


def kernels() -> list[Kernel]:
    """Micro kernels and the corpus."""
    ffma, add = "a[i]=fmaf(a[i],p,q);", "a[i]=(a[i]+p)*q;"
    made = [_chains(f"ffma{w}", w, 64 // w, ffma, 2) for w in (1, 2, 4, 8, 16)]
    made += [_chains("addmul2", 2, 32, add, 2)]
    made += [_wide(n) for n in (16, 48, 96, 160, 224)]
    made += [
        _chains(f"dfma{w}", w, 32 // w, "a[i]=fma(a[i],(double)p,(double)q);", 2, "double")
        for w in (1, 2, 8)
    ]
    made += [_chains(f"imad{w}", w, 32 // w, "a[i]=a[i]*(u32)n+k;", 0, "u32") for w in (1, 4)]
    half = 'asm("fma.rn.f16x2 %0,%0,%1,%1;":"+r"(a[i]):"r"(__float_as_uint(p)));'
    made += [_chains(f"hfma{w}", w, 32 // w, half, 4, "u32") for w in (2, 8)]
    made += [_gemm(4), _gemm(8), _mma("mma1", 1, 8), _mma("mma2", 2, 4), _mma("mma4", 4, 2)]
    return [*_micro(), *made, *_plain()]


def source() -> str:
    """All of them in one file."""
    return HEAD + "".join(kernel.source() for kernel in kernels())
