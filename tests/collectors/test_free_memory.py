"""What is free in a heap goes back to the system, also below what is in use."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

#: Of a process of its own: blocks too small for a mapping each, then all but each hundredth freed.
PROGRAM = """
from spanlite_collectors.free_memory import give_back, keep_little
from pathlib import Path
import threading

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

#: The same at the end of the heap of a thread, after large arrays have raised glibc's own limits.
IN_A_THREAD = """
def burst():
    for _ in range(3):
        bytearray(30 << 20)
    kept.append(bytearray(1000))
    blocks = [bytearray(100_000) for _ in range(500)]
    most.append(anonymous_mib())
    blocks.clear()
    done.set()
    end.wait()

keep_little()
kept, most, done, end = [], [], threading.Event(), threading.Event()
began = anonymous_mib()
thread = threading.Thread(target=burst)
thread.start()
done.wait()
give_back()
print(most[0] - began, anonymous_mib() - began)
end.set()
thread.join()
"""
LINUX = pytest.mark.skipif(
    not Path("/proc/self/status").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs Linux and glibc",
)


def run(program: str) -> list[float]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@LINUX
def test_what_is_free_between_blocks_in_use_goes_back() -> None:
    most, before, after = run(PROGRAM)
    assert most > 80
    assert before > 80
    assert after < 10


@LINUX
def test_what_is_free_at_the_end_of_a_threads_heap_goes_back() -> None:
    most, after = run(PROGRAM.partition("give_back()\nbegan")[0] + IN_A_THREAD)
    assert most > 40
    assert after < 10
