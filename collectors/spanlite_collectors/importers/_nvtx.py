"""Names of NVTX ranges: PyTorch's emit_nvtx packs numbers into them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

#: `aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]` and parts of it.
_EMIT_NVTX = re.compile(
    r"(?P<name>.+?)(?P<seq>, seq = -?\d+)?(?P<op>, op_id = -?\d+)?"
    r"(?:, sizes = (?P<sizes>\[.*\]))?(?P<inputs>, input_op_ids = \[.*\])?",
    re.S,
)


class RangeName(NamedTuple):
    """A range's name without the numbers, the input sizes, and what was left out."""

    name: str
    sizes: str | None
    left_out: tuple[str, ...]


@lru_cache(1 << 12)
def split_name(text: str) -> RangeName:
    """Take a range's text apart; a text without such numbers is its own name.

    `seq`, `op_id` and `input_op_ids` only link ranges to each other and would make every
    name unique, so they are left out.
    """
    if ", " not in text:
        return RangeName(text, None, ())
    found = _EMIT_NVTX.fullmatch(text)
    if not found or not (found["seq"] or found["op"] or found["sizes"]):
        return RangeName(text, None, ())
    words = (("seq", "seq"), ("op", "op_id"), ("inputs", "input_op_ids"))
    return RangeName(
        found["name"], found["sizes"], tuple(word for group, word in words if found[group])
    )
