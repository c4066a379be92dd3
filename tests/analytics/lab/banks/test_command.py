import json
from typing import Any

import numpy as np
import pytest
from spanlite.errors import UsageError
from spanlite_analytics.lab.banks.expression import evaluate


def test_one_access(spanlite: Any) -> None:
    code, out, err = spanlite("lab", "banks", "--address", "lane * 128", "--width", "16")
    assert (code, err) == (0, "")
    assert out.startswith("load 16 B: 32 wavefronts, 4 without conflicts: 28 conflicts, degree 8")


def test_one_access_as_json(spanlite: Any) -> None:
    words = ("--address", "lane*8", "--mask", "ffff", "--op", "store", "--json")
    _, out, _ = spanlite("lab", "banks", *words)
    answer = json.loads(out)
    assert (answer["access"], answer["wavefronts"], answer["conflicts"]) == ("store 4 B", 1, 0)
    assert answer["words_by_bank"] == [1, 0] * 16


def test_a_swizzled_access(spanlite: Any) -> None:
    words = ("--address", "lane % 8 * 128 + lane // 8 * 1024", "--op", "ldmatrix")
    assert "degree 8" in spanlite("lab", "banks", *words)[1]
    assert "degree 1" in spanlite("lab", "banks", *words, "--swizzle", "128")[1]


def test_a_tile(spanlite: Any) -> None:
    words = ("--row", "lane % 8", "--byte", "lane // 8 * 16", "--op", "ldmatrix", "--pitch", "128")
    code, out, _ = spanlite("lab", "banks", *words)
    assert code == 0
    assert out.splitlines()[0] == "pitch 128 B: 32 wavefronts, 4 ideal"
    assert "128-byte swizzle" in out.splitlines()[2]
    _, out, _ = spanlite("lab", "banks", *words, "--json", "--top", "2")
    answer = json.loads(out)
    assert answer["wavefronts"] == 32
    assert [p["conflicts"] for p in answer["proposals"]] == [0, 0]


def test_mma(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "banks", "--mma", "128x128x64,64x64x32", "--layout", "all")
    assert code == 0
    assert {"128x128x64", "64x64x32"} <= set(out.split())
    _, out, _ = spanlite("lab", "banks", "--mma", "64x64x64", "--type", "e4m3,f64", "--json")
    rows = json.loads(out)
    assert {row["type"] for row in rows} == {"e4m3", "f64"}
    assert all(row["wavefronts"] >= row["ideal"] for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --address"),
        (("--address", "lane +"), "is no expression over lane"),
        (("--address", "__import__('os')"), "not whole-number arithmetic"),
        (("--address", "lane * 2"), "not a multiple of 4"),
        (("--address", "lane * 4", "--mask", "0"), "is not 1 to ffffffff"),
        (("--address", "lane * 4", "--width", "5"), "1, 2, 4, 8 or 16"),
        (("--row", "lane", "--byte", "0", "--pitch", "128", "--rows", "16"), "within --rows"),
        (("--mma", "64x64"), "is not MxNxK"),
        (("--mma", "64x64x64", "--type", "fp4"), "no such type"),
    ],
)
def test_bad_words(spanlite: Any, words: tuple[str, ...], message: str) -> None:
    code, out, err = spanlite("lab", "banks", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_expressions() -> None:
    lane = np.arange(32)
    assert (evaluate("lane%8*128 + lane//8*16") == lane % 8 * 128 + lane // 8 * 16).all()
    assert (evaluate("(lane ^ 5) << 2 | 1") == ((lane ^ 5) << 2 | 1)).all()
    assert (evaluate("-lane + 2 * 31 - 31 / 2") == 47 - lane).all()
    assert (evaluate("64") == 64).all()
    for bad in ("1/0", "lane << 99", "lane ** 2", "9999999999", "lane[0]", "1.5", "True", "x", ""):
        with pytest.raises(UsageError):
            evaluate(bad)
