"""Pages of a column as bytes."""

from __future__ import annotations

import numpy as np
from spanlite.archive._pages import delta
from spanlite.archive._thrift import read_varint


def test_a_column_is_one_page_however_long() -> None:
    """Newer pyarrow begins a page every 20,000 rows; what is read of it is the first."""
    data, at = delta(np.arange(100_000) ** 2 % 7919), 0
    for _ in range(3):  # the block's size, its parts, and how many values there are
        value, at = read_varint(data, at)
    assert value == 100_000
