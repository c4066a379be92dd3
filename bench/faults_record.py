"""Records twelve seeded faults, and healthy runs, with torch.profiler on an NVIDIA GPU.

    python -m bench.faults_record OUTPUT_FOLDER [--only NAME ...] [--seconds 240]

Each recording is one process: a warm-up step, STEPS healthy steps, then STEPS with the fault; of
the healthy runs both halves are healthy. `python -m bench.bottlenecks` analyses what lies under
tests/recordings/faults. Needs torch and cupy; counts bank conflicts with ncu where it is there.
Prints one JSON object a recording, with how much slower the second half was.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench._fault_trace import annotate, read_conflicts, trim, write

STEPS = 10
SIZE, BATCH, SIDE = 4096, 1024, 4096
KERNELS = Path(__file__).with_name("_fault_kernels.cu")
#: Time that other work of a fault may take around each step, in s.
BURN_S = 0.06
SPIN_S = 150e-6
_CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum,"
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum,"
    "smsp__inst_executed_op_shared_ld.sum,smsp__inst_executed_op_shared_st.sum"
)


class Bed:
    """The model, its streams and its kernels; made once for all recordings."""

    def __init__(self) -> None:
        import cupy
        import torch

        torch.set_grad_enabled(False)
        self.torch, self.cupy = torch, cupy
        half = {"device": "cuda", "dtype": torch.bfloat16}
        self.x = torch.randn(BATCH, SIZE, **half)
        self.w = torch.randn(SIZE, SIZE, **half)
        # One column more: the same product from rows that no 16-byte load can be aligned to.
        self.odd_x = torch.randn(BATCH, SIZE + 1, **half)[:, 1:]
        self.odd_w = torch.randn(SIZE, SIZE + 1, **half)[:, 1:]
        self.wide = torch.randn(16, 1024 * 1024, **half)
        self.norm = torch.nn.LayerNorm(SIZE, **half)
        self.pinned = torch.empty(16 << 20, dtype=torch.uint8, pin_memory=True)
        self.landing = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
        self.a = torch.rand(SIDE * SIDE, device="cuda")
        self.b = torch.empty_like(self.a)
        self.streams = [torch.cuda.Stream() for _ in range(4)]
        source = KERNELS.read_text()
        self.kernels = {
            "transpose": self._kernel(source, "custom_transpose", ("-DPAD=1",)),
            "transpose_conflicts": self._kernel(source, "custom_transpose", ("-DPAD=0",)),
            "mix": self._kernel(source, "custom_mix", ()),
            "mix_spilled": self._kernel(source, "custom_mix", ("--maxrregcount=24",)),
            "spin": self._kernel(source, "spin_fma", ()),
        }

    def _kernel(self, source: str, name: str, options: tuple[str, ...]) -> Any:
        kernel = self.cupy.RawKernel(source, name, options=options, backend="nvrtc")
        kernel.compile()
        return kernel

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        """Launch on a stream, torch's and cupy's work alike."""
        stream = self.streams[number]
        outside = self.cupy.cuda.ExternalStream(stream.cuda_stream)
        with self.torch.cuda.stream(stream), outside:
            yield

    def transpose(self, rounds: int = 1, kind: str = "transpose") -> None:
        """Some 40 us of an H200 for each round."""
        grid, block = (SIDE // 32, SIDE // 32), (32, 8)
        self._run(kind, grid, block, (self.a.data_ptr(), self.b.data_ptr(), SIDE, rounds))

    def mix(self, rounds: int = 60, kind: str = "mix") -> None:
        """Arithmetic on 64 values a thread."""
        numbers = (self.a.data_ptr(), self.b.data_ptr(), SIDE * SIDE, rounds)
        self._run(kind, (512,), (128,), numbers)

    def spin(self, rounds: int, blocks: int = 32) -> None:
        """As long as the clock makes it, on a part of the GPU."""
        self._run("spin", (blocks,), (128,), (self.b.data_ptr(), rounds))

    def _run(self, kind: str, grid: Any, block: Any, numbers: tuple[int, ...]) -> None:
        cupy = self.cupy
        pointers = len(numbers) - (1 if kind == "spin" else 2)
        args = [cupy.uint64(one) for one in numbers[:pointers]]
        args += [cupy.int32(one) for one in numbers[pointers:]]
        self.kernels[kind](grid, block, tuple(args))


@dataclass
class Options:
    """What a step does other than usual."""

    layers: int = 3
    rounds: int = 1
    transpose: str = "transpose"
    mix: str = "mix"
    aligned: bool = True
    pieces: int = 1
    sync_each: bool = False
    copies: int = 0
    serial: bool = False


def step(bed: Bed, o: Options) -> None:
    """A decode-like step on two streams, some 0.7 ms."""
    torch = bed.torch
    for _ in range(o.layers):
        with bed.on(0):
            for piece in range(o.pieces):
                rows = slice(piece * BATCH // o.pieces, (piece + 1) * BATCH // o.pieces)
                x, w = (bed.x, bed.w) if o.aligned else (bed.odd_x, bed.odd_w)
                torch.mm(x[rows], w if o.aligned else w.t())
            bed.transpose(o.rounds, o.transpose)
            bed.mix(kind=o.mix)
        if o.sync_each:
            torch.cuda.synchronize()
        with bed.on(1):
            for piece in range(o.pieces):
                rows = slice(piece * 16 // o.pieces, (piece + 1) * 16 // o.pieces)
                torch.add(bed.wide[rows], 1.0)
                bed.norm(bed.x[rows])
        if o.sync_each:
            torch.cuda.synchronize()
    for _ in range(o.copies):
        with bed.on(2):
            bed.landing.copy_(bed.pinned, non_blocking=True)
    torch.cuda.synchronize()


def stream_step(bed: Bed, o: Options) -> None:
    """Four streams with small grids; `serial` makes each wait for the one before."""
    torch = bed.torch
    for _ in range(4):
        for number in range(4):
            if o.serial:
                bed.streams[number].wait_stream(bed.streams[number - 1])
            with bed.on(number):
                bed.spin(12_000)
    torch.cuda.synchronize()


def clock_step(bed: Bed, o: Options) -> None:
    """Nothing but arithmetic, so that the clock alone decides."""
    with bed.on(0):
        for _ in range(3):
            bed.torch.mm(bed.x, bed.w)
            bed.spin(20_000, blocks=264)
            bed.mix()
    bed.torch.cuda.synchronize()


@contextmanager
def burning(bed: Bed) -> Iterator[Callable[[], None]]:
    """Before each step as much power as the GPU takes, in the same process."""
    big = bed.torch.randn(8192, 8192, device="cuda", dtype=bed.torch.bfloat16)

    def burn() -> None:
        until = time.perf_counter() + BURN_S
        while time.perf_counter() < until:
            for _ in range(4):
                bed.torch.mm(big, big)
            bed.torch.cuda.synchronize()

    yield burn


@contextmanager
def busy_host(bed: Bed) -> Iterator[None]:
    """A second Python thread that wants the interpreter all the time."""
    stop = threading.Event()

    def compete() -> None:
        while not stop.is_set():
            sum(range(2_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(SPIN_S)
    thread = threading.Thread(target=compete)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


@contextmanager
def neighbour(bed: Bed) -> Iterator[None]:
    """Another process that keeps the same GPU busy."""
    command = [sys.executable, "-m", "bench.faults_record", "--neighbour"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it says when it runs
            yield
        finally:
            process.kill()


Around = Callable[[Bed], Any]


@dataclass
class Fault:
    """A recording: the options of its second half, and what goes on around that."""

    options: Options = field(default_factory=Options)
    run: Callable[[Bed, Options], None] = step
    around: Around | None = None
    requests: tuple[int, ...] = ()  # steps of each request


#: By name; those of faults are the causes that `spanlite bottlenecks` must name first.
FAULTS: dict[str, Fault] = {
    "slow_kernel": Fault(Options(rounds=6)),
    "clock_throttled": Fault(run=clock_step, around=burning),
    "stray_sync": Fault(Options(sync_each=True)),
    "serialised_streams": Fault(Options(serial=True), run=stream_step),
    "copy_engine": Fault(Options(copies=4)),
    "launch_starvation": Fault(around=busy_host),
    "fragmented_batch": Fault(Options(pieces=16)),
    "bank_conflicts": Fault(Options(transpose="transpose_conflicts")),
    "register_spill": Fault(Options(mix="mix_spilled")),
    "gemm_regression": Fault(Options(aligned=False)),
    "noisy_neighbour": Fault(around=neighbour),
    "long_tail_request": Fault(requests=(3, 3, 2, 14, 3, 3)),
    "healthy_layers": Fault(),
    "healthy_streams": Fault(run=stream_step),
    "healthy_requests": Fault(requests=(3, 4, 3, 3, 4, 3)),
}


def record(bed: Bed, name: str, folder: Path) -> dict[str, Any]:
    """Run, profile, trim and write one recording; returns what is printed of it."""
    from torch.profiler import ProfilerActivity, profile

    fault = FAULTS[name]
    for _ in range(3):
        fault.run(bed, Options())
        fault.run(bed, fault.options)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        took = _requests(bed, fault) if fault.requests else _halves(bed, fault)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        trace = trim(json.loads(whole.read_text()), f"{name}.json")
    facts = _facts(bed, name)
    marked = annotate(trace, facts.pop("kernel"), STEPS + 1, facts) if facts else 0
    size = write(trace, folder / f"{name}.json.gz")
    before, after = took[1 : STEPS + 1], took[STEPS + 1 :]
    slower = 1.0 if fault.requests else _median(after) / _median(before)
    said = {"recording": name, "bytes": size, "events": len(trace["traceEvents"])}
    return said | {"slower": round(slower, 3), "annotated": marked, "facts": facts}


def _halves(bed: Bed, fault: Fault) -> list[float]:
    took = [_timed(bed, fault, number, Options()) for number in range(STEPS + 1)]
    with fault.around(bed) if fault.around else nullcontext() as before_step:
        for number in range(STEPS + 1, 2 * STEPS + 1):
            if before_step is not None:
                before_step()
            took.append(_timed(bed, fault, number, fault.options))
    return took


def _requests(bed: Bed, fault: Fault) -> list[float]:
    took, number = [], 0
    for request, steps in enumerate(fault.requests):
        with bed.torch.profiler.record_function(f"request:{request}"):
            for _ in range(steps):
                took.append(_timed(bed, fault, number, Options()))
                number += 1
    return took


def _timed(bed: Bed, fault: Fault, number: int, options: Options) -> float:
    begin = time.perf_counter()
    with bed.torch.profiler.record_function(f"step:{number}"):
        fault.run(bed, options)
    return time.perf_counter() - begin


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")


def _facts(bed: Bed, name: str) -> dict[str, Any]:
    """What is measured beside the profiler, of the kernel that the fault is in."""
    if name == "register_spill":
        local = bed.kernels["mix_spilled"].local_size_bytes
        return {"kernel": "custom_mix", "local_memory_per_thread": int(local)}
    if name == "bank_conflicts":
        counted = _count_conflicts()
        return {} if counted is None else {
            "kernel": "custom_transpose", "bank_conflicts_per_request": round(counted, 2)
        }  # fmt: skip
    return {}


def _count_conflicts() -> float | None:
    """By ncu, in a process of its own; None where it cannot count."""
    command = ["ncu", "--csv", "--metrics", _CONFLICTS, "--kernel-name", "custom_transpose"]
    command += ["--launch-count", "1", sys.executable, "-m", "bench.faults_record", "--conflicts"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=45, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_conflicts(done.stdout)


def run_neighbour() -> None:
    """Keep the GPU busy until killed; says a line once it does."""
    bed = Bed()
    step(bed, Options())
    print("running", flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        step(bed, Options(rounds=4))


def run_conflicts() -> None:
    """One conflicting launch, for ncu."""
    bed = Bed()
    bed.transpose(1, "transpose_conflicts")
    bed.torch.cuda.synchronize()


def clocks() -> str:
    """Clocks and throttle reasons, as the driver says."""
    query = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,clocks_event_reasons.active"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="where the recordings go")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--seconds", type=int, default=240, help="give up after (240)")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--neighbour", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--conflicts", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Record each; what fails is said, and the others go on."""
    parser = arguments()
    args = parser.parse_args()
    if args.list:
        print("\n".join(FAULTS))
        return 0
    if args.neighbour or args.conflicts:
        (run_neighbour if args.neighbour else run_conflicts)()
        return 0
    if args.folder is None:
        parser.error("say where the recordings go")
    args.folder.mkdir(parents=True, exist_ok=True)
    signal.alarm(args.seconds)  # ends the process, whatever hangs
    failed = 0
    bed = Bed()
    print(json.dumps({"gpu": clocks()}), flush=True)
    for name in args.only:
        try:
            print(json.dumps(record(bed, name, args.folder)), flush=True)
        except Exception:
            failed += 1
            print(json.dumps({"recording": name, "failed": traceback.format_exc()}), flush=True)
    print(json.dumps({"gpu": clocks(), "failed": failed}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
