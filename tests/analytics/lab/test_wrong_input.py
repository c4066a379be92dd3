"""What is no number, or absurd, is an error of the input: exit code 2 and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOFLINE = ("roofline", "--operator", "mm", "--us", "5", "--sizes")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((*ROOFLINE, "99999999999x99999999999,99999999999x9"), "a tensor has 1 to"),
        ((*ROOFLINE, "9" * 5_000 + "x1,1x1"), "a tensor has 1 to"),
        ((*ROOFLINE, "0x4,4x4"), "a tensor has 1 to"),
        ((*ROOFLINE, "4x-1,4x4"), "must be such as"),
        ((*ROOFLINE, "4x1e9,4x4"), "must be such as"),
        ((*ROOFLINE, "4x²,4x4"), "must be such as"),
        (("occupancy", "--block", "9" * 5_000, "--registers", "32"), "--block"),
        (("occupancy", "--block", "256", "--registers", "-1"), "registers"),
        (("occupancy", "--block", "256", "--registers", "32", "--grid", "9" * 40), "--grid"),
        (("fusion", "--tokens", "0", "--hidden", "4096", "--out", "4096"), "tokens"),
        (("fusion", "--tokens", "9" * 30, "--hidden", "4096", "--out", "4096"), "tokens"),
        (("banks", "--address", "lane // 0"), "lane // 0"),
        (("banks", "--address", "lane * 1 << 70"), "lane"),
        (("rounding", "--value", "nan"), "not a number that a double can hold"),
        (("rounding", "--value=-inf"), "not a number that a double can hold"),
        (("rounding", "--value", "1e400"), "not a number that a double can hold"),
        (("rounding", "--value", "one"), "not a number that a double can hold"),
    ],
    ids=lambda words: " ".join(words)[:60] if isinstance(words, tuple) else "",
)
def test_an_absurd_value(spanlite: Any, words: tuple[str, ...], expected: str) -> None:
    try:
        code, out, err = spanlite("lab", *words)
    except SystemExit as error:  # argparse ends the program by itself
        assert error.code == 2
        return
    assert code == 2 and expected in err, (out, err)
    assert len(err) < 800


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ("[1//0]", "has no value: '1//0'"),
        ("[width // (height - 8192)]", "has no value"),
        ("[1 << 62 << 62]", "has no value"),
        ("[log2(0)]", "has no value"),
    ],
)
def test_an_expression_without_a_value(
    spanlite: Any, tmp_path: Path, grid: str, expected: str
) -> None:
    examples = Path(__file__).parents[3] / "docs" / "examples" / "scan"
    text = (examples / "transpose.yaml").read_text()
    (tmp_path / "transpose.cu").write_text((examples / "transpose.cu").read_text())
    changed = text.replace("[width // tile, height // tile]", grid)
    assert changed != text
    (tmp_path / "scan.yaml").write_text(changed)
    out = tmp_path / "out"
    code, _, err = spanlite("lab", "scan", tmp_path / "scan.yaml", "--theory", "--out", out)
    assert code == 2 and expected in err and "grid" in err
    assert not out.exists()
