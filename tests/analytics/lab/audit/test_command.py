"""`spanlite lab audit`: exit codes, JSON, SARIF, and inputs of each kind."""

import json
from pathlib import Path

import pytest
from spanlite.cli import main
from spanlite_analytics.lab.audit.inputs import embedded_ptx
from spanlite_analytics.lab.toolchain import CACHE_VARIABLE, Compiler, has_tools

NEEDS_TOOLS = pytest.mark.skipif(
    not has_tools("nvcc", "ptxas", "nvdisasm", "cuobjdump"),
    reason="needs the CUDA tools: install spanlite-analytics[lab]",
)


def test_exit_codes(
    tmp_path: Path, racy_ptx: str, clean_ptx: str, capsys: pytest.CaptureFixture[str]
) -> None:
    racy, clean = tmp_path / "racy.ptx", tmp_path / "clean.ptx"
    racy.write_text(racy_ptx)
    clean.write_text(clean_ptx)
    assert main(["lab", "audit", str(clean), "--block", "32"]) == 0
    assert main(["lab", "audit", str(racy), "--block", "32"]) == 1
    assert "kernel.cu:7: error: shared-race in race" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"hello", pytest.param(b"\x7fELF but no more", marks=NEEDS_TOOLS)]
)
def test_bad_input(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.cubin"
    path.write_bytes(content)
    assert main(["lab", "audit", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("spanlite: ") and "bad.cubin" in error


def test_bad_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "audit", "x.ptx", "--block", "2048"]) == 2
    assert "1,024" in capsys.readouterr().err


def test_sarif(tmp_path: Path, racy_ptx: str) -> None:
    path, log = tmp_path / "racy.ptx", tmp_path / "out.sarif"
    path.write_text(racy_ptx)
    assert main(["lab", "audit", str(path), "--block", "32", "--sarif", str(log)]) == 1
    made = json.loads(log.read_text())
    assert made["version"] == "2.1.0"
    (run,) = made["runs"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] == "error" and result["message"]["text"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "kernel.cu"
    assert place["physicalLocation"]["region"]["startLine"] == 7


def test_triton_cache(tmp_path: Path, racy_ptx: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "HASH"
    folder.mkdir()
    (folder / "kernel.ptx").write_text(racy_ptx)
    (folder / "kernel.json").write_text(json.dumps({"num_warps": 1}))
    assert main(["lab", "audit", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["kernels"] == 1
    assert [f["rule"] for f in answer["findings"]] == ["shared-race"]


@NEEDS_TOOLS
def test_cubin_finds_its_lines(
    tmp_path: Path,
    racy_ptx: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    cubin = tmp_path / "racy.cubin"
    cubin.write_bytes(Compiler().cubin(racy_ptx).data)
    assert "st.shared.u32" in embedded_ptx(cubin.read_bytes())
    assert main(["lab", "audit", str(cubin), "--block", "32", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["rule"], finding["line"]) == ("shared-race", 7)
    assert main(["lab", "audit", str(cubin), "--table", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (store,) = [row for row in rows if row["sass"].startswith("STS")]
    assert store["line"] == 5 and store["ptx"].startswith("st.shared.u32")
