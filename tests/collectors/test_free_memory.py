"""What is free in a heap goes back to the system, also below what is in use."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

#: Of a process of its own: blocks too small for a mapping each, then all but each hundredth freed.
PROGRAM = """
from spanlite_collectors.free_memory import give_back
from pathlib import Path

def anonymous_mib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

give_back()
began = anonymous_mib()
blocks = [bytearray(100_000) for _ in range(1_000)]
most = anonymous_mib()
kept = blocks[::100] + blocks[-1:]
del blocks
before = anonymous_mib()
give_back()
print(most - began, before - began, anonymous_mib() - began)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs Linux and glibc",
)
def test_what_is_free_between_blocks_in_use_goes_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    most, before, after = map(float, done.stdout.split())
    assert most > 80
    assert before > 80
    assert after < 10
