"""Bytes and FLOPs of operators, worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite_analytics.lab.roofline import Call, Work, attention_tile, work_of

HALF, FLOAT = "c10::BFloat16", "float"


def call(name: str, sizes: list[Any], kind: str = HALF, **more: Any) -> Call:
    return Call(name, sizes, [kind if size else "" for size in sizes], **more)


@pytest.mark.parametrize(
    ("made", "flops", "read", "write"),
    [
        (call("aten::mm", [[8, 32], [32, 16]]), {"bf16": 8192}, 2 * (256 + 512), 256),
        (
            call("aten::addmm", [[16], [8, 32], [32, 16], []]),
            {"bf16": 8192, "fp32_vector": 128},
            2 * (16 + 256 + 512),
            256,
        ),
        (call("aten::bmm", [[3, 8, 4], [3, 4, 5]], FLOAT), {"fp32_vector": 960}, 4 * 156, 480),
        (call("aten::bmm", [[3, 8, 4], [3, 4, 5]], FLOAT, tf32=True), {"tf32": 960}, 624, 480),
        (call("aten::mv", [[8, 4], [4]], "double"), {"fp64": 64}, 8 * 36, 64),
        (call("aten::linear", [[2, 3, 4], [5, 4], []]), {"bf16": 240}, 2 * 44, 60),
        (call("aten::_int_mm", [[8, 4], [4, 8]], "signed char"), {"int8": 512}, 64, 256),
        (call("aten::gelu", [[10, 10]]), {"fp32_vector": 100}, 200, 200),
        (call("aten::add_", [[4, 1, 8], [3, 1], []], FLOAT), {"fp32_vector": 96}, 140, 384),
        (call("aten::mul", [[6], []], FLOAT), {"fp32_vector": 6}, 24, 24),
        (call("aten::eq", [[6], [6]], FLOAT), {"fp32_vector": 6}, 48, 6),
        (call("aten::fill_", [[6], []], FLOAT), {}, 0, 24),
        (call("aten::sum", [[6, 7]], FLOAT), {"fp32_vector": 42}, 168, 0),
        (Call("aten::copy_", [[5], [5]], [FLOAT, HALF]), {}, 10, 20),
        (Call("aten::cat", [[[2, 3], [4, 3]], []], [[HALF, HALF], ""]), {}, 36, 36),
        (
            call("aten::native_layer_norm", [[4, 8], [], [8], [8]]),
            {"fp32_vector": 256},
            64 + 32,
            64 + 4 * 8,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else "",
)
def test_by_hand(made: Call, flops: dict[str, float], read: float, write: float) -> None:
    assert work_of(made) == Work(flops, read, write)


def test_attention_counts_both_products() -> None:
    sizes = [[2, 4, 16, 8], [2, 4, 32, 8], [2, 4, 32, 8]]
    name = "aten::_scaled_dot_product_flash_attention"
    flags = ["", "", "", "0.", "False"]
    found = work_of(call(name, sizes, concrete=flags))
    assert found == Work({"bf16": 4 * 2 * 4 * 16 * 32 * 8}, 2 * (1024 + 2 * 2048), 2048)
    # Causal and square: half, and half the diagonal.
    square = [[1, 1, 16, 8]] * 3
    full = work_of(call(name, square, concrete=flags))
    half = work_of(call(name, square, concrete=["", "", "", "0.", "True"]))
    assert full and half
    assert half.total_flops / full.total_flops == (16 * 17 / 2) / 256


CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<{}>, 0, 1>"


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [
        (CUDNN, (64, 128)),
        (FLASH.format("128, 128, 64, 4, false"), (128, 64)),
        (FLASH.format("(int)64, (int)128, (int)128, (int)4, (bool)0"), (128, 128)),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", None),
    ],
)
def test_the_tile_of_an_attention(kernel: str, tile: tuple[int, int] | None) -> None:
    assert attention_tile(kernel) == tile


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 9), st.integers(1, 9))
def test_a_causal_attention_computes_tiles_whole(
    queries: int, keys: int, rows: int, columns: int
) -> None:
    sizes = [[1, 1, queries, 8], [1, 1, keys, 8], [1, 1, keys, 8]]
    made = call("aten::scaled_dot_product_attention", sizes, concrete=["", "", "", "", "", "True"])
    found = work_of(replace(made, tile=(rows, columns)))
    seen = {(i // rows, j // columns) for i in range(queries) for j in range(min(i + 1, keys))}
    assert found is not None
    assert found.total_flops == len(seen) * rows * columns * 2 * 16


@pytest.mark.parametrize(
    "made",
    [
        call("aten::mm", []),
        call("aten::mm", [[8, 32], [16, 32]]),
        Call("aten::mm", [[8, 32], [32, 16]], ["a type", "a type"]),
        Call("aten::mm", [[8, 32], [32, 16]]),
        call("aten::unknown", [[8]]),
        call("aten::scaled_dot_product_attention", [[1, 1, 8, 8]] * 3),
        call("aten::add", [[], []], ""),
        call("aten::gelu", [[0, 8]]),
        Call("aten::cat", [[[2, 3]], []], ["TensorList", ""]),
    ],
    ids=str,
)
def test_what_is_not_known_is_not_guessed(made: Call) -> None:
    assert work_of(made) is None


def test_a_broadcast_is_read_once() -> None:
    sizes, types = [[64, 32], [64, 32]], [FLOAT, FLOAT]
    plain = work_of(Call("aten::add", sizes, types))
    expanded = work_of(Call("aten::add", sizes, types, strides=[[32, 1], [0, 1]]))
    assert plain and expanded
    assert plain.read_bytes - expanded.read_bytes == 4 * 63 * 32
    assert plain.write_bytes == expanded.write_bytes


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_a_product_is_as_its_transpose(m: int, k: int, n: int) -> None:
    one = work_of(call("mm", [[m, k], [k, n]]))
    other = work_of(call("mm", [[n, k], [k, m]]))
    assert one == other
    assert one and math.isclose(one.intensity, 2 * m * n * k / (2 * (m * k + k * n + m * n)))


def test_a_causal_attention_on_an_h200_did_its_tiles() -> None:
    """What the tensor cores counted, in bench/h200/tables/lab_roofline.json."""
    made = call("aten::scaled_dot_product_attention", [[8, 32, 4096, 128]] * 3,
                concrete=["", "", "", "", "", "True"])  # fmt: skip
    needed, done = work_of(made), work_of(replace(made, tile=attention_tile(CUDNN)))
    assert needed and done
    assert done.total_flops == 1_133_871_366_144
    assert done.total_flops / needed.total_flops == pytest.approx(1.031, abs=1e-4)
