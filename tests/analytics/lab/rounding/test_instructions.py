"""Types and modes as PTX and SASS spell them; the command."""

import json
from pathlib import Path

import pytest
from spanlite.cli import main
from spanlite_analytics.lab.audit.ptx import parse
from spanlite_analytics.lab.audit.sass import parse_sass
from spanlite_analytics.lab.rounding.instructions import narrowing, of_module, of_sass

PTX = """.version 8.5
.target sm_90a
.address_size 64
.visible .entry k()
{
	.loc	1 4 0
	cvt.rz.bf16.f32 %rs1, %f1;
	.loc	1 5 0
	cvt.rn.satfinite.e4m3x2.f32 %rs2, %f1, %f2;
	cvt.rna.tf32.f32 %r1, %f1;
	cvt.rzi.s32.f32 %r2, %f1;
	cvt.rn.f32.s32 %f3, %r2;
	cvt.f32.f16 %f4, %rs3;
	add.ftz.f32 %f5, %f4, %f3;
	fma.rm.sat.f32 %f6, %f5, %f4, %f3;
	sqrt.approx.f32 %f7, %f6;
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1}, {%r2}, {%f1};
	ret;
}
	.file	1 "k.cu"
"""
SASS = """
.text.k:
	//## File "k.cu", line 9
        /*0000*/                   F2FP.BF16.F32.PACK_AB.RZ R0, RZ, R2 ;
        /*0010*/              @!P0 FADD.FTZ.RM R3, R0, R1 ;
        /*0020*/                   HFMA2.BF16_V2 R4, R0, R1, R2 ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
        /*0040*/                   MUFU.RSQ R5, R4 ;
        /*0050*/                   IADD3 R5, R4, R1, RZ ;
"""


def test_ptx() -> None:
    found = {r.opcode: r for r in of_module(parse(PTX))}
    ends = {o: (r.source, r.target, r.mode) for o, r in found.items()}
    assert ends["cvt.rz.bf16.f32"] == ("fp32", "bf16", "rz")
    assert ends["cvt.rn.satfinite.e4m3x2.f32"] == ("fp32", "e4m3", "rn")
    assert ends["cvt.rna.tf32.f32"] == ("fp32", "tf32", "rna")
    assert ends["cvt.rzi.s32.f32"] == ("fp32", "s32", "rzi")
    assert ends["cvt.rn.f32.s32"] == ("s32", "fp32", "rn")
    assert ends["cvt.f32.f16"] == ("fp16", "fp32", "")
    assert ends["add.ftz.f32"] == ("fp32", "fp32", "rn")
    assert ends["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"][:2] == ("fp16", "fp32")
    assert found["add.ftz.f32"].ftz and "fused" in found["add.ftz.f32"].note
    assert found["fma.rm.sat.f32"].saturates and found["fma.rm.sat.f32"].mode == "rm"
    assert "approximation" in found["sqrt.approx.f32"].note
    assert len(found) == 10


def test_where_precision_narrows() -> None:
    lines = [(r.line, r.target) for r in narrowing(of_module(parse(PTX)))]
    assert lines == [(4, "bf16"), (5, "e4m3"), (5, "tf32")]


def test_sass() -> None:
    found = of_sass(parse_sass(SASS))
    assert [(r.source, r.target, r.mode) for r in found] == [
        ("fp32", "bf16", "rz"),
        ("fp32", "fp32", "rm"),
        ("bf16", "bf16", "rn"),
        ("bf16", "fp32", ""),
        ("fp32", "fp32", ""),
    ]
    assert found[1].ftz and all(r.line == 9 for r in found)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "rounding", "--value", "0.1", "--mode", "rz", "--json"]) == 0
    rows = {row["format"]: row["bits"] for row in json.loads(capsys.readouterr().out)}
    assert rows["bf16"] == "0x3dcc" and rows["tf32"] == "0x3dccc000"


@pytest.mark.parametrize(
    "words",
    [[], ["x.cu", "--value", "1"], ["--chain", "fp16,fp32"], ["--chain", "fp16,fp33,bf16"]],
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "rounding", *words]) == 2
    assert "spanlite: " in capsys.readouterr().err


def test_bench_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    sys.path.append(str(Path(__file__).parents[4]))
    from bench import lab_rounding

    monkeypatch.setattr(lab_rounding, "TABLE", tmp_path / "none.json")
    monkeypatch.setattr(sys, "argv", ["lab_rounding"])
    with pytest.raises(SystemExit) as ended:
        lab_rounding.main()
    assert ended.value.code == 1
