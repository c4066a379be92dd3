"""The model that is decoded: its stages, their kernels, nominal times and launches."""

from __future__ import annotations

from typing import NamedTuple

LaunchConfig = tuple[int, ...]
NO_LAUNCH: LaunchConfig = (0,) * 12


def _launch(
    grid: int,
    block: int,
    registers: int,
    static: int = 0,
    dynamic: int = 0,
    grid_y: int = 1,
    cluster: int = 0,
) -> LaunchConfig:
    clusters = (cluster, 1, 1) if cluster else (0, 0, 0)
    return (grid, grid_y, 1, block, 1, 1, *clusters, registers, static, dynamic)


class Kernel(NamedTuple):
    """A kernel of the model: nominal time at batch 1, and its growth a request."""

    name: str
    launch: LaunchConfig
    base_ns: int
    per_request_ns: int
    side: bool = False


_GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{tile}_warpgroupsize1x1x1"
    "_execute_segment_k_off_kernel__5x_cublas"
)
_NORM = Kernel(
    "void rms_norm_kernel<__nv_bfloat16, 8, true>(__nv_bfloat16*, __nv_bfloat16 const*, "
    "__nv_bfloat16 const*, float, int, int)",
    _launch(32, 512, 32, 136),
    2_300,
    12,
)
#: The kernels of a layer, in the order in which they run.
STAGES: dict[str, tuple[Kernel, ...]] = {
    "qkv": (
        _NORM,
        Kernel(_GEMM.format(tile="64x64x64"), _launch(48, 128, 168, 0, 82_944), 7_900, 25),
        Kernel(
            "void rotary_embedding_kernel<__nv_bfloat16, true>(long const*, __nv_bfloat16*, "
            "__nv_bfloat16*, __nv_bfloat16 const*, int, long, long, int, int, int)",
            _launch(32, 512, 24),
            2_050,
            9,
        ),
    ),
    "attention": (
        Kernel(
            "void reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(...)",
            _launch(32, 256, 22),
            1_900,
            8,
            True,
        ),
        Kernel(
            "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, "
            "false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4, "
            "cutlass::bfloat16_t> >, false, false, false, false, true, false, true, false>"
            "(Flash_fwd_params)",
            _launch(1, 128, 255, 0, 81_920, 16),
            9_800,
            310,
        ),
        Kernel(
            "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, "
            "false, false, cutlass::bfloat16_t>, 4, 4, true>(Flash_fwd_params)",
            _launch(64, 128, 48, 4_352),
            2_800,
            22,
        ),
    ),
    "output": (
        Kernel(_GEMM.format(tile="64x128x64"), _launch(32, 128, 168, 0, 98_304), 6_400, 22),
    ),
    "ffn": (
        _NORM,
        Kernel(
            _GEMM.format(tile="128x128x64"),
            _launch(172, 384, 168, 0, 213_504, cluster=2),
            15_300,
            48,
        ),
        Kernel(
            "void act_and_mul_kernel<__nv_bfloat16, &silu_kernel<__nv_bfloat16>, true>"
            "(__nv_bfloat16*, __nv_bfloat16 const*, int)",
            _launch(32, 1024, 26),
            2_600,
            16,
        ),
        Kernel(_GEMM.format(tile="64x256x64"), _launch(64, 384, 168, 0, 164_352), 12_100, 37),
    ),
}
#: What follows the last layer.
HEAD = (
    _NORM,
    Kernel(_GEMM.format(tile="256x128x64"), _launch(594, 384, 168, 0, 213_504), 88_000, 160),
    Kernel(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::ArgMaxOps<float>, unsigned int, long, 4> >(...)",
        _launch(32, 512, 40, 16, 0),
        14_000,
        90,
    ),
)
#: What comes before the first.
EMBED = Kernel(
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long)",
    _launch(32, 256, 30),
    2_600,
    15,
)
