"""The runners against stand-ins of CuPy and torch: what they launch, with what, and what they keep.

Stand-ins, since CI has no GPU; the CuPy runner's figures on an H200 are in the last test.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from spanlite.errors import ServiceError
from spanlite_analytics.lab.scan.build import BuildError, Built, Filled, build
from spanlite_analytics.lab.scan.runner import CupyRunner, DeviceLostError, TritonRunner, runner_for
from spanlite_analytics.lab.scan.spec import Spec, load

TRITON = """
kernel:
  triton: k.py
  entry: k
  grid: [rows]
  arguments:
    - {buffer: bf16, count: rows * 8}
    - {buffer: i32, count: rows}
    - {scalar: i32, value: rows}
  defines: {BLOCK: block}
  bytes: 2 * rows
sizes: {rows: 100}
parameters:
  block: [64, 128]
  num_warps: [2, 4]
"""
FUNCTION = """
from types import SimpleNamespace
calls = []
class K:
    def __getitem__(self, grid):
        def launch(*arguments, **named):
            calls.append((grid, arguments, named))
            if named["BLOCK"] == 128:
                raise RuntimeError("out of resources: shared memory")
            metadata = SimpleNamespace(shared=4096, num_warps=named["num_warps"])
            return SimpleNamespace(n_regs=40, n_spills=0, metadata=metadata)
        return launch
k = K()
"""


class Event:
    """Each pair is 3 ms apart."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return 3.0


class Buffer:
    def __init__(self, count: int, dtype: str) -> None:
        self.count, self.dtype, self.filled = count, dtype, ""

    def zero_(self) -> "Buffer":
        self.filled = "zeros"
        return self

    def normal_(self) -> "Buffer":
        self.filled = "normal"
        return self


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Spec:
    """A scan of a Triton kernel, with torch and Triton stood in for."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda index: "stand-in",
        synchronize=lambda: None,
        Event=Event,
    )
    names = {name: name for name in ("bfloat16", "int32", "float32")}
    torch = SimpleNamespace(
        cuda=cuda, empty=lambda count, dtype, device: Buffer(count, dtype), **names
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    (tmp_path / "k.py").write_text(FUNCTION)
    (tmp_path / "scan.yaml").write_text(TRITON)
    return load(tmp_path / "scan.yaml")


def test_a_triton_kernel(triton: Spec) -> None:
    runner = runner_for(triton)
    assert isinstance(runner, TritonRunner) and runner.gpu == "stand-in"
    got = runner.measure(build(triton, {"block": 64, "num_warps": 4}), 3)
    assert got.times_ns == (3e6, 3e6, 3e6) and got.launches == 1
    assert got.theory is not None
    assert (got.theory.registers, got.theory.shared_bytes) == (40, 4096)
    assert got.theory.warps_per_sm == 48, "128 threads of 40 registers: 12 blocks"
    calls = runner._function(triton).__class__.__getitem__.__globals__["calls"]
    grid, arguments, named = calls[0]
    assert grid == (100, 1, 1) and named == {"BLOCK": 64, "num_warps": 4}
    assert [(b.count, b.dtype, b.filled) for b in arguments[:2]] == [
        (800, "bfloat16", "normal"),
        (100, "int32", "zeros"),
    ]
    assert arguments[2] == 100 and calls[-1][1][0] is arguments[0], "buffers are kept"
    with pytest.raises(BuildError, match="out of resources"):
        runner.measure(build(triton, {"block": 128, "num_warps": 4}), 3)


def test_no_gpu(triton: Spec, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)
    with pytest.raises(ServiceError, match="torch sees none"):
        runner_for(triton)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ServiceError, match="CuPy is not installed"):
        runner_for(spec)


class LostError(Exception):
    pass


class Kernel:
    max_dynamic_shared_size_bytes = 0

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.error: Exception | None = None

    def __call__(self, *given: Any, shared_mem: int) -> None:
        self.calls.append((given, shared_mem))
        if self.error:
            raise self.error


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    kernel = Kernel()

    def normal(count: int, dtype: Any) -> Any:
        return np.linspace(-1, 1, count, dtype=dtype)

    state = SimpleNamespace(standard_normal=normal)
    runtime = SimpleNamespace(
        getDeviceProperties=lambda index: {"name": b"stand-in"},
        CUDARuntimeError=LostError,
        deviceSynchronize=lambda: None,
    )
    made = SimpleNamespace(
        kernel=kernel,
        cuda=SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=LostError),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            Event=Event,
            get_elapsed_time=lambda start, end: 3.0,
        ),
        RawModule=lambda path: SimpleNamespace(get_function=lambda name: kernel),
        random=SimpleNamespace(RandomState=lambda seed: state),
        zeros=np.zeros,
        float32=np.float32,
        uint32=np.uint32,
        uint16=np.uint16,
    )
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def filled(spec: Spec, shared: int = 0) -> Built:
    buffer, scalar = spec.kernel.arguments
    arguments = (Filled(buffer, 4096), Filled(scalar, 4096))
    return Built(spec, {"tile": 8}, (512, 1, 1), (32, 1, 1), shared, arguments, {}, 1.0, 1.0, b"x")


def test_a_cubin(spec: Spec, cupy: SimpleNamespace) -> None:
    runner = CupyRunner()
    got = runner.measure(filled(spec, 100_000), 5)
    assert got.times_ns == (3e6,) * 5 and runner.gpu == "stand-in"
    assert cupy.kernel.max_dynamic_shared_size_bytes == 100_000
    (grid, block, arguments), shared = cupy.kernel.calls[0]
    assert (grid, block, shared) == ((512, 1, 1), (32, 1, 1), 100_000)
    assert arguments[0].dtype == np.float32 and arguments[0].size == 4096
    assert type(arguments[1]) is np.int32 and arguments[1] == 4096


def test_a_launch_that_fails_and_one_that_breaks_the_context(
    spec: Spec, cupy: SimpleNamespace
) -> None:
    runner = CupyRunner()
    cupy.kernel.error = LostError("too many resources")
    with pytest.raises(BuildError, match="too many resources"):
        runner.measure(filled(spec), 3)

    def broken() -> None:
        raise LostError("illegal address")

    cupy.cuda.runtime.deviceSynchronize = broken
    with pytest.raises(DeviceLostError):
        runner.measure(filled(spec), 3)


TABLE = Path(__file__).parents[4] / "bench" / "h200" / "tables" / "lab_scan.json"


def test_scans_of_an_h200() -> None:
    """The committed table: kernels are right, a killed scan went on, ranks are shared fairly."""
    if not TABLE.exists():
        pytest.skip("bench/h200/tables/lab_scan.json has not been measured yet")
    table = json.loads(TABLE.read_text())
    assert "H200" in table["about"]["name"] and table["about"]["date"]
    assert set(table["scans"]) == {"transpose", "matmul", "matmul_bayesian", "rmsnorm"}
    assert set(table["checks"]) == {"matmul", "layernorm", "softmax", "attention"}
    assert all(error < 1e-3 for error in table["checks"].values())
    killed = table["scans"]["matmul"]
    assert killed["killed_after"] == killed["kept"] == 20 and killed["kept_as_it_was"]
    assert killed["measured_twice"] == 0 and killed["kept"] + killed["new"] == 46
    bayesian = table["scans"]["matmul_bayesian"]
    assert bayesian["new"] == 16
    names = ("block_m", "block_n", "block_k", "warps_m", "warps_n", "stages")
    # In 16 trials it finds the best of all 46.
    first = [tuple(scan["top"][0][name] for name in names) for scan in (killed, bayesian)]
    assert first[0] == first[1]
    for scan in table["scans"].values():
        times = [row["median_ns"] for row in scan["top"]]
        ranks = [row["rank"] for row in scan["top"]]
        assert times == sorted(times) and ranks == sorted(ranks) and ranks[0] == 1
        assert scan["failed"] == 0
