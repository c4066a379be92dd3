"""Code written by hand, whose pace can be counted on fingers."""

import pytest
from spanlite.errors import UsageError
from spanlite_analytics.lab.pressure.code import NO_BARRIER, Control, Instruction
from spanlite_analytics.lab.pressure.loops import Loop
from spanlite_analytics.lab.pressure.model import rate
from spanlite_analytics.lab.pressure.pipes import (
    Chip,
    Cost,
    chip_of,
    class_of,
    flops_of,
    kind_of,
    reads_of,
)

#: Round numbers, so that what the tests expect does not move with what is measured.
CHIP = Chip(
    "test",
    {
        "ffma": Cost("fma", 1),
        "mufu": Cost("xu", 8, 20),
        "alu": Cost("alu", 2),
        "bar": Cost("control", 1, 10),
        "control": Cost("control", 1),
        "ldg_l132": Cost("lsu", 4, 40, 10),
        "ldg_dram32": Cost("lsu", 4, 600, 10),
    },
    "a test",
    branch=5,
)


def step(opcode: str, stall: int = 1, write: int = NO_BARRIER, wait: int = 0) -> Instruction:
    return Instruction(0, "", opcode, "", Control(stall, write, NO_BARRIER, wait))


def loop(*steps: Instruction) -> Loop:
    return Loop((*steps, step("BRA", stall=5)), 1, True)


def test_a_dependent_chain_waits_for_each_result() -> None:
    chain = loop(*[step("FFMA", stall=4)] * 10)
    alone = rate(chain, CHIP, 1)
    assert alone.clocks_per_turn == 10 * 4 + 5
    assert alone.bound == "latency"
    # Three more warps fill the gaps; eleven instructions each are then the least.
    assert rate(chain, CHIP, 4).clocks_per_turn == pytest.approx(45, abs=1)
    full = rate(chain, CHIP, 16)
    assert full.clocks_per_turn == pytest.approx(16 * 11, rel=0.01)
    assert full.issue == pytest.approx(1, rel=0.01)
    assert full.bound == "issue"


def test_a_pipe_takes_its_time() -> None:
    body = loop(*[step("MUFU.EX2")] * 4, *[step("FFMA")] * 4)
    got = rate(body, CHIP, 8)
    assert got.clocks_per_turn == pytest.approx(8 * 4 * 8, rel=0.02)
    assert (got.pipe, got.bound) == ("xu", "xu")
    assert got.pipe_busy == pytest.approx(1, rel=0.02)


def test_a_scoreboard_holds_until_the_load_is_there() -> None:
    body = loop(step("LDG.E", write=2), step("FFMA", wait=0b100))
    near = rate(body, CHIP, 1)
    far = rate(body, CHIP, 1, memory="dram")
    assert near.clocks_per_turn == 40 + 5 + 1
    assert far.clocks_per_turn == 600 + 5 + 1
    # Latencies of different warps overlap.
    assert rate(body, CHIP, 8, memory="dram").clocks_per_turn == pytest.approx(606, abs=30)


def test_warps_of_a_block_meet_at_barriers() -> None:
    body = loop(step("FFMA", stall=15), step("BAR.SYNC"))
    apart = rate(body, CHIP, 4)
    together = rate(body, CHIP, 4, group=4)
    assert apart.clocks_per_turn < together.clocks_per_turn < 2 * apart.clocks_per_turn + 20


@pytest.mark.parametrize("warps", [1, 3, 8, 16])
def test_more_warps_are_never_slower_together(warps: int) -> None:
    body = loop(*[step("FFMA", stall=4), step("MUFU.EX2", write=0), step("FFMA", wait=1)] * 5)
    one, many = rate(body, CHIP, 1), rate(body, CHIP, warps)
    assert one.clocks_per_turn * 0.99 <= many.clocks_per_turn <= warps * one.clocks_per_turn * 1.01
    assert 0 < many.issue <= 1.0001


def test_classes() -> None:
    expected = {
        "FFMA.FTZ": ("FP32", "ffma", 2),
        "DADD": ("FP64", "dfma", 1),
        "HFMA2.BF16": ("FP16", "hfma2", 4),
        "HMMA.16816.F32.BF16": ("tensor", "mma", 2 * 16 * 8 * 16 // 32),
        "HGMMA.64x128x16.F32": ("tensor", "mma", 2 * 64 * 128 * 16 // 128),
        "LDG.E.128": ("global", "ldg_l1128", 0),
        "LDG.E.STRONG.GPU": ("global", "ldg_l232", 0),
        "LDS.64": ("shared", "lds64", 0),
        "LDL.LU.64": ("spill", "ldl64", 0),
        "IADD3": ("INT", "alu", 0),
        "VIADD": ("INT", "viadd", 0),
        "LDG.E.STRONG.SM": ("global", "ldg_l132", 0),
        "UIADD3": ("INT", "uniform", 0),
        "BRA": ("branch", "control", 0),
        "MUFU.RSQ": ("SFU", "mufu", 0),
    }
    for opcode, (kind, class_, flops) in expected.items():
        code = step(opcode)
        assert (kind_of(code), class_of(code), flops_of(code)) == (kind, class_, flops), opcode
        assert chip_of("9.0").cost(code, "l1").busy > 0


def test_a_warpgroup_keeps_four_tensor_cores_busy() -> None:
    """989 TFLOP/s dense in BF16 and 1,979 in FP8 by the datasheet, 132 SMs at 1.83 GHz."""
    for opcode, peak in (("HGMMA.64x128x16.F32.BF16", 989e12), ("QGMMA.64x128x32.F32", 1979e12)):
        code = step(opcode)
        clocks = chip_of("9.0").cost(code, "l1").busy
        assert flops_of(code) * 128 / clocks * 132 * 1.83e9 == pytest.approx(peak, rel=0.01)


def test_every_class_has_a_cost_on_every_chip() -> None:
    for memory in ("l1", "l2", "dram"):
        for width in ("", ".64", ".128"):
            assert chip_of("9.0").cost(step(f"LDG.E{width}"), memory).latency > 0
    # Results a clock and SM, by the programming guide.
    for name, single, double in (("8.0", 64, 32), ("8.9", 128, 2), ("9.0", 128, 64)):
        chip = chip_of(name)
        assert 4 * 32 / chip.cost(step("FFMA"), "l1").busy == single
        assert 4 * 32 / chip.cost(step("DFMA"), "l1").busy == double
        assert chip.checked == (name == "9.0")
    with pytest.raises(UsageError, match="knows compute capability"):
        chip_of("5.0")


def test_registers_are_read_from_two_banks() -> None:
    def fma(operands: str) -> Instruction:
        return Instruction(0, "", "FFMA", operands, Control(1, NO_BARRIER, NO_BARRIER, 0))

    assert reads_of(fma("R0, R4, R6, R8"), None) == (3, 0)
    assert reads_of(fma("R0, R4, R5, R4"), None) == (1, 1)
    assert reads_of(fma("R0, R4, UR6, RZ"), None) == (1, 0)
    # What the instruction before has kept is not read again, if no other warp came between.
    kept = fma("R1, R3, R5.reuse, R7")
    assert reads_of(fma("R0, R4, R5, R6"), kept) == (2, 0)
    double = Instruction(0, "", "DFMA", "R10, R4, R10, R6", Control(1, 7, 7, 0))
    assert reads_of(double, None) == (3, 3)
    # Three reads from one bank take three clocks, whatever the pipe could do.
    crowded = loop(*[fma(f"R{2 * n}, R{2 * n + 20}, R{2 * n + 40}, R{2 * n}") for n in range(8)])
    assert rate(crowded, CHIP, 8).clocks_per_turn == pytest.approx(8 * (8 * 3 + 1), rel=0.1)


def test_conflicts_take_their_time() -> None:
    body = loop(*[step("LDG.E")] * 4)
    plain, crowded = rate(body, CHIP, 8), rate(body, CHIP, 8, dearer={"global": 3.0})
    assert plain.clocks_per_turn == pytest.approx(8 * 4 * 4, rel=0.05)
    assert crowded.clocks_per_turn == pytest.approx(8 * 4 * 4 * 3, rel=0.05)
    assert crowded.bound == "lsu"


def test_spills_that_overflow_the_l2_are_dearer() -> None:
    chip = chip_of("9.0")
    assert chip.spill_factor(50 * 2**20) == 1
    assert chip.spill_factor(200 * 2**20) == chip.spill_miss
    assert 1 < chip.spill_factor(80 * 2**20) < chip.spill_miss


def test_control_bits() -> None:
    # STS of a loop: waits for scoreboard 2, sets 0 until its operands are read, 12 clocks.
    assert Control.of(0x0041D80000000800) == Control(12, NO_BARRIER, 0, 0b100)
    # LDG: its result sets scoreboard 2.
    assert Control.of(0x000EA2000C1E9900) == Control(1, 2, NO_BARRIER, 0)
