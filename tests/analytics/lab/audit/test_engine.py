"""The audit on PTX by hand: places, barriers, branches on the input."""

import pytest
from spanlite.errors import InputError
from spanlite_analytics.lab.audit.engine import audit, block_of
from spanlite_analytics.lab.audit.findings import Finding, in_order
from spanlite_analytics.lab.audit.ptx import Module, parse

ONE_WARP = {"": (32, 1, 1)}


def rules(module: Module) -> set[str]:
    return {f.rule for f in audit(module, blocks=ONE_WARP)}


def test_race_is_placed(racy_ptx: str) -> None:
    (finding,) = audit(parse(racy_ptx), blocks=ONE_WARP)
    assert (finding.rule, finding.file, finding.line) == ("shared-race", "kernel.cu", 7)
    assert "line 5" in finding.evidence
    text = racy_ptx.splitlines()[finding.ptx_line - 1]
    assert text.split() == f"{finding.instruction};".split()


def test_warp_barrier_orders(clean_ptx: str) -> None:
    assert not audit(parse(clean_ptx), blocks=ONE_WARP)


def test_warp_barrier_does_not_order_warps(clean_ptx: str) -> None:
    other_warp = clean_ptx.replace("xor.b32  	%r5, %r2, 4", "xor.b32  	%r5, %r2, 128")
    wide = other_warp.replace("s[128]", "s[256]")
    assert {f.rule for f in audit(parse(wide), blocks={"": (64, 1, 1)})} == {"shared-race"}


def test_barrier_on_one_side_of_a_branch_on_the_input(racy_ptx: str) -> None:
    text = racy_ptx.replace(".param .u64 race_param_0", ".param .u64 race_param_0,\n.param .u32 n")
    # Taken by none of the numbers that a run makes up, but for a branch turned round.
    skip = "ld.param.u32 %r7, [n];\nsetp.eq.s32 %p1, %r7, 77;\n@%p1 bra $skip;\nbar.sync 0;\n$skip:"
    assert rules(parse(text.replace(".loc	1 6 3", skip))) == {"shared-race"}


def test_own_slot_is_no_race(racy_ptx: str) -> None:
    assert not audit(parse(racy_ptx.replace("%r2, 4;", "%r2, 0;")), blocks=ONE_WARP)


def test_mask_that_leaves_out_callers(clean_ptx: str) -> None:
    assert rules(parse(clean_ptx.replace("sync -1", "sync 65535"))) == {"shuffle-mask"}


def test_spills_come_from_the_compilers_count(clean_ptx: str) -> None:
    said = (
        "ptxas info    : Function properties for race\n"
        "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
    )
    (finding,) = audit(parse(clean_ptx), said, ONE_WARP)
    assert finding.rule == "local-memory" and "12 bytes" in finding.evidence


def test_arrays_indexed_at_run_time(clean_ptx: str) -> None:
    local = ".local .align 16 .b8 \t__local_depot0[64];\n"
    text = clean_ptx.replace(".shared .align", local + ".shared .align")
    said = (
        "ptxas info    : Function properties for race\n"
        "    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    )
    (finding,) = audit(parse(text), said, ONE_WARP)
    assert "64 bytes of stack for arrays" in finding.evidence


def test_not_ptx() -> None:
    with pytest.raises(InputError, match="is not PTX"):
        parse("int main() { return 0; }", "main.c")


def test_one_place_is_told_once() -> None:
    twice = [
        Finding("uncoalesced", "k", "a.cu", 3, "x"),
        Finding("shared-race", "k", "a.cu", 9, "y"),
    ]
    assert [f.rule for f in in_order([*twice, *twice])] == ["shared-race", "uncoalesced"]


def test_a_guessed_block() -> None:
    def guessed(*read: str) -> tuple[int, int, int]:
        body = "".join(f"mov.u32 %r{i}, {text};\n" for i, text in enumerate(read))
        head = ".version 8.5\n.target sm_90a\n.visible .entry k()\n{\n"
        return block_of(parse(f"{head}{body}ret;\n}}\n").entries[0])

    assert guessed("%tid.x") == (256, 1, 1)
    assert guessed("%tid.x", "%tid.y") == (32, 8, 1)
    assert guessed("%tid.x", "%tid.y", "%tid.z") == (8, 8, 4)
    # The rank within the block, which cooperative groups compute for blocks of any shape.
    assert guessed("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y") == (256, 1, 1)
