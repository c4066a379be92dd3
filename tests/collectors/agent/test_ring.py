"""The shared-memory ring: several producers, kills, hostile files."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from builds import OPTIONS, Build, Hosts


def run(build: Build, *words: str) -> str:
    command = [str(build.program("ring_stress")), *words]
    environment = {"LD_LIBRARY_PATH": str(build.folder / "tests")} | OPTIONS
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_several_producers_lose_only_what_is_counted(build: Build, tmp_path: Path) -> None:
    records = 100_000 if build.name == "plain" else 20_000
    out = run(build, "threads", str(tmp_path), "4", str(records))
    assert "written" in out


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hostile_file_is_refused_never_a_crash(build: Build, tmp_path: Path, seed: int) -> None:
    if build.name == "tsan":
        pytest.skip("one thread, and the thread sanitizer delays the signal of a shortened file")
    out = run(build, "fuzz", str(tmp_path), str(seed), "300")
    refused, corrupt, records = (int(word) for word in out.split() if word.isdigit())
    assert refused > 0 and corrupt > 0 and records > 0


def test_every_finished_record_survives_a_kill(plain: Build, hosts: Hosts) -> None:
    command = [str(plain.program("ring_stress")), "produce", str(hosts.rings), "3"]
    moments = random.Random(7)
    for _ in range(25):
        with subprocess.Popen(command) as process:
            reader = hosts.reader()
            time.sleep(moments.random() * 0.02)
            if moments.random() < 0.5:  # the daemon comes before the end, or after it
                reader.drain()
            process.kill()
        assert not reader.alive
        while reader.drain() or reader.skip_torn():
            pass
        kernels = reader.records.kernel
        assert len(kernels) > 0
        assert (kernels["end"] == (kernels["start"] ^ np.uint64(0x5555555555555555))).all()
        assert (kernels["node"] == kernels["start"] * 3).all()
        for producer in range(3):
            numbers = kernels["start"][kernels["stream"] == producer].astype(np.int64)
            assert (np.diff(numbers) > 0).all()
        # At most one unfinished record a thread, and the hole a thread left before it began.
        assert reader.drops()["torn"] <= 6
        next(hosts.rings.glob("*.ring")).unlink()


def test_a_file_that_is_no_ring_is_refused(plain: Build, hosts: Hosts) -> None:
    for name, content in {"empty": b"", "zeros": bytes(1 << 17), "text": b"x" * 8192}.items():
        (hosts.rings / f"{name}.ring").write_bytes(content)
        with pytest.raises(OSError, match="no ring"):
            hosts.reader()
        (hosts.rings / f"{name}.ring").unlink()
