"""Every command of docs/claims.md and docs/lab.md shows what the page says it shows."""

import csv
import gzip
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from spanlite_analytics.lab.toolchain import find_tool, has_tools

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("claims", "lab", "roofline", "fusion")]
DATA = ROOT.parent / "shared" / "data"


def claims() -> list[object]:
    """(command, what it prints) of each block, in order; a command may print several things."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S)
        for number, block in enumerate(blocks):
            parts = re.findall(r"((?:^(?!#> ).*\n)+)((?:^#> .*\n)+)", block, re.M)
            assert "".join(a + b for a, b in parts) == block, "each command says what it prints"
            if not block.startswith("pytest"):  # a test of its own
                found.append(pytest.param(parts, id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("parts", claims())
def test_claim(parts: list[tuple[str, str]], tmp_path: Path, spanlite: Any) -> None:
    text = "\n".join(command for command, _ in parts)
    path = [os.environ["PATH"]]
    if "nvcc" in text:
        if not has_tools("nvcc", "nvdisasm"):
            pytest.skip("the CUDA compiler is not installed (the extra `lab`)")
        path.insert(0, str(find_tool("nvcc").parent))
    if "shared/data" in text and not DATA.is_dir():
        pytest.skip("the real traces are not in ../shared/data")
    (tmp_path / "work").mkdir()
    (tmp_path / "shared").symlink_to(DATA.parent)
    for command, expected in parts:
        words = shlex.split(command, comments=False)
        if words[0] == "spanlite":
            code, out, err = spanlite(*words[1:])
        else:
            code, out, err = shell(command, tmp_path / "work", os.pathsep.join(path))
        assert (code, err) == (0, "")
        for line in expected.splitlines():
            assert line.removeprefix("#> ") in " ".join(out.split()), out


def shell(command: str, folder: Path, path: str) -> tuple[int, str, str]:
    words = ["bash", "-o", "pipefail", "-c", command.strip()]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not DATA.is_dir(), reason="the real traces are not in ../shared/data")
def test_the_counter_counts_more_than_the_pattern() -> None:
    with gzip.open(DATA / "ncu" / "ncu_full_samples.csv.gz", "rt") as file:
        lines = file.read().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = {row["Kernel Name"]: row for row in csv.DictReader(lines[head:])}
    metric = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
    assert rows["reduce_with_sync"][metric] == "1,795"
    assert rows["transpose_conflict"][metric] == "1,015,949"
    assert rows["transpose_conflict"]["launch__shared_mem_config_size"] == "16,384"
    assert rows["transpose_conflict"]["launch__registers_per_thread"] == "16"
    assert rows["reduce_with_sync"]["launch__registers_per_thread"] == "16"
