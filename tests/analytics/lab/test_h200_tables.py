"""The programs that measure on the H200, as far as they go without one, and their tables."""

import sys
from pathlib import Path

import numpy as np
import pytest
from spanlite.occupancy import occupancy
from spanlite_analytics.lab.banks import ideal_wavefronts, swizzle, wavefronts

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench import lab_banks, lab_occupancy
from bench.h200 import _device, lab_banks_table, lab_occupancy_table
from bench.h200._bank_patterns import OPERATIONS, patterns, swizzled

MADE = patterns(seed=90)


def test_occupancy_table() -> None:
    if not lab_occupancy.TABLE.exists():
        pytest.skip("bench/h200/tables/lab_occupancy.npz has not been measured yet")
    columns, about = _device.load(lab_occupancy.TABLE)
    assert len(columns["blocks"]) >= 10_000
    assert len(np.unique(columns["blocks"])) > 15
    assert "H200" in about["name"] and about["driver_version"] and about["date"]
    assert not lab_occupancy.mismatches(columns).size
    wide = {name: values.astype(np.int64) for name, values in columns.items()}
    dynamic, most = wide["dynamic"], wide["max_dynamic"]
    below = (dynamic > most) & (wide["static"] + dynamic <= 48 * 1024)
    # docs/claims.md counts them.
    assert (below.sum(), (below & (wide["blocks"] > 0)).sum()) == (28, 23)
    beyond = (dynamic > most) & (wide["static"] + dynamic > 48 * 1024)
    assert (beyond.sum(), (beyond & (wide["blocks"] > 0)).sum()) == (214, 0)


def test_banks_table() -> None:
    if not lab_banks.TABLE.exists():
        pytest.skip("bench/h200/tables/lab_banks.npz has not been measured yet")
    columns, about = _device.load(lab_banks.TABLE)
    got = lab_banks.compare(columns, about)
    assert len(got["model"]) >= 40
    assert "H200" in about["name"] and about["driver_version"] and about["date"]
    assert not got["wrong"].any()


class Stub(lab_occupancy_table.Asked):
    """Answers by the rules, in the place of the driver."""

    def __init__(self, kernel: lab_occupancy_table.Kernel) -> None:
        self.kernel, self.static = kernel, kernel.static_shared_bytes
        self.registers = min(kernel.accumulators + 12, 255)
        self.settings: dict[int, int] = {}

    def set(self, attribute: int, value: int) -> None:
        self.settings[attribute] = value

    def blocks(self, threads: int, dynamic: int) -> int:
        got = occupancy(
            "9.0",
            threads,
            self.registers,
            self.static,
            dynamic,
            carveout_percent=self.settings[lab_occupancy_table.CARVEOUT],
            barriers=self.kernel.barriers,
            max_dynamic_shared_bytes=self.settings[lab_occupancy_table.MAX_DYNAMIC],
        )
        return int(got.blocks)


def test_occupancy_rows_survive_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device, "TABLES", tmp_path)
    found: list[lab_occupancy_table.Asked] = [Stub(k) for k in lab_occupancy_table.kernels(90)]
    rows = lab_occupancy_table.ask(found, 400, seed=3, opt_in=227 * 1024)
    path = _device.save("t", rows, {"name": "a GPU"})
    columns, about = _device.load(path)
    assert about == {"name": "a GPU"}
    assert not lab_occupancy.mismatches(columns).size
    columns["blocks"][7] += 1
    assert lab_occupancy.mismatches(columns).tolist() == [7]
    assert (columns["blocks"] > 0).mean() > 0.7


def test_patterns_are_what_they_say() -> None:
    assert {p.operation for p in MADE} == set(OPERATIONS)
    assert len(MADE) > 250
    for span in (32, 64, 128):
        places = np.arange(0, 4096, 4)
        assert (swizzled(places, span) == swizzle(places, span)).all()
    degrees = set()
    for one in MADE:
        access, on = lab_banks.access_of(one.operation), one.active >> np.arange(32) & 1 == 1
        assert access.name == one.operation
        degrees.add(int(wavefronts(access, one.addresses, on)))
    assert degrees >= {1, 2, 4, 8, 16, 32}


def test_counters_survive_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ncu --csv --page raw` prints them; one wrong counter is found."""
    monkeypatch.setattr(_device, "TABLES", tmp_path)
    names = list(lab_banks_table.METRICS.values())
    lines = ["==PROF== Connected", ",".join(f'"{n}"' for n in ("ID", *names)), '""' + ',""' * 6]
    for number, one in enumerate(MADE):
        access, on = lab_banks.access_of(one.operation), one.active >> np.arange(32) & 1 == 1
        total = int(wavefronts(access, one.addresses, on)) * lab_banks_table.REPEATS
        extra = total - int(ideal_wavefronts(access, one.addresses, on)) * lab_banks_table.REPEATS
        load, store = one.operation.startswith("load"), one.operation.startswith("store")
        row = [extra * load, extra * store, extra, total * load, total * store, total + 1]
        lines.append(",".join(f'"{value:,}"' for value in (number, *row)))
    counters = lab_banks_table.read_counters("\n".join(lines), len(MADE))
    columns = lab_banks_table.columns_of(MADE, counters)
    about = {"repeats": lab_banks_table.REPEATS, "operations": list(OPERATIONS)}
    columns, about = _device.load(_device.save("t", columns, about))
    got = lab_banks.compare(columns, about)
    assert not got["wrong"].any()
    columns["conflicts"] = columns["conflicts"].astype(np.int64)
    columns["conflicts"][[p.operation == "ldmatrix.x4" for p in MADE].index(True)] += 16
    assert lab_banks.compare(columns, about)["wrong"].sum() == 1
    with pytest.raises(RuntimeError, match="297 launches of 5"):
        lab_banks_table.read_counters("\n".join(lines), 5)


def test_kernels_compile(tmp_path: Path) -> None:
    from spanlite_analytics.lab.toolchain import find_tool, has_tools

    if not has_tools("nvcc"):
        pytest.skip("the CUDA compiler is not installed (the extra `lab`)")
    source = lab_banks_table.source() + lab_occupancy_table.Kernel(9, 4096, 3).source()
    nvcc = str(find_tool("nvcc"))
    assert _device.compile_cubin(source, tmp_path, "k", nvcc)[:4] == b"\x7fELF"
    with pytest.raises(RuntimeError, match="nvcc failed on bad"):
        _device.compile_cubin("nonsense", tmp_path, "bad", nvcc)
