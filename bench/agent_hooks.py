"""Whether the hooks of `spanlite.instrument` say of a real model's kernels what they should.

    python -m bench.agent_hooks            on an NVIDIA GPU with PyTorch and Triton

A process with hooked modules, a hooked Triton kernel and OpenTelemetry runs some steps under the
agent, `spanlite collect --output` writes what it makes of them, and the file is read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._report import emit

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
STEPS, BLOCK = 10, 1024
#: The modules' stages as a kernel under each must say them.
MODULES = ("layers.0/self_attn", "layers.0/mlp", "layers.1/self_attn", "layers.1/mlp")


def work() -> None:
    """Be the application: print what is to be found, one JSON object."""
    import torch
    import triton
    from spanlite import instrument

    from bench._triton_kernel import scaled_add

    class ToyAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(512, 512)

        def forward(self, x: Any) -> Any:
            return torch.softmax(self.qkv(x), -1)

    class ToyMLP(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(512, 512), torch.nn.GELU())

    class ToyDecoderLayer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn, self.mlp = ToyAttention(), ToyMLP()

        def forward(self, x: Any) -> Any:
            return x + self.mlp(self.self_attn(x))

    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([ToyDecoderLayer(), ToyDecoderLayer()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    model, x = Toy().cuda(), torch.randn(64, 512, device="cuda")
    hooked = instrument.hook_modules(model).names
    hooks = instrument.hook_triton()
    served, traces = _server_spans(), []
    with torch.no_grad():
        for _ in range(STEPS):
            with served() as span, instrument.step([span]):
                traces.append(format(span.get_span_context().trace_id, "032x"))
                y = model(x)
                grid = (triton.cdiv(x.numel(), BLOCK),)
                scaled_add[grid](x, y, y, x.numel(), 0.5, BLOCK=BLOCK)
                torch.cuda.synchronize()
    told = {"traces": traces, "hooked": hooked, "triton": hooks is not None,
            "versions": [torch.__version__, triton.__version__]}  # fmt: skip
    print(json.dumps(told), flush=True)


def _server_spans() -> Any:
    """Opens spans as an HTTP server with OpenTelemetry does."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanKind
    from spanlite.instrument.otel import SpanLiteSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SpanLiteSpanProcessor())
    tracer = provider.get_tracer("bench")
    return lambda: tracer.start_as_current_span("POST /v1/chat", kind=SpanKind.SERVER)


def run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The application under agent and daemon: what it says, and the spans that came of it."""
    from spanlite.codec import decode_batch
    from spanlite_collectors.importers._delimited import read_messages

    rings, output = folder / "rings", folder / "hooks.spans.zst"
    rings.mkdir()
    daemon = subprocess.Popen(
        [sys.executable, "-m", "spanlite.cli", "collect", "--output", str(output), "--agent-dir",
         str(rings), "--otlp-port", "0", "--metrics-port", "0"], cwd=ROOT,
    )  # fmt: skip
    environment = os.environ | {
        "CUDA_INJECTION64_PATH": str(LIBRARY),
        "NVTX_INJECTION64_PATH": str(LIBRARY),
        "SPANLITE_AGENT_DIR": str(rings),
        "SPANLITE_AGENT_LEVEL": "continuous",
    }
    command = [sys.executable, "-m", "bench.agent_hooks", "--work"]
    try:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        print(done.stderr, file=sys.stderr, flush=True)
        while list(rings.glob("*.ring")) and daemon.poll() is None:
            time.sleep(0.1)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(30)
    told = json.loads(done.stdout.splitlines()[-1])
    rows = [row for m in read_messages(output) for row in decode_batch(m).spans.to_pylist()]
    for row in rows:
        row["said"] = json.loads(row["attributes"] or "{}")
    return told, rows


def report(told: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """What of it arrived."""
    from spanlite.kinds import SpanKind

    kernels = [row for row in rows if row["kind"] == SpanKind.KERNEL]
    stages = {str(row["said"].get("stage", "")) for row in kernels}
    found = [stage for stage in MODULES if any(s.endswith(stage) for s in stages)]
    emit("agent.hooks_modules", len(found), "stages", len(MODULES), hooked=told["hooked"],
         stages=sorted(stages)[:12], versions=told["versions"])  # fmt: skip
    ranges = [row for row in rows if row["name"] == "scaled_add" and "triton.file" in row["said"]]
    said = ranges[0]["said"] if ranges else {}
    emit("agent.hooks_triton_ranges", len(ranges), "ranges", STEPS, attributes=said,
         installed=told["triton"])  # fmt: skip
    of_kernel = [row for row in kernels if "scaled_add" in row["name"]]
    right = sum(str(row["said"].get("stage", "")).endswith("scaled_add") for row in of_kernel)
    emit("agent.hooks_triton_kernels", right, "kernels", STEPS, all=len(of_kernel))
    traces = {f"{row['trace_id_high']:016x}{row['trace_id_low']:016x}" for row in kernels}
    arrived = sum(trace in traces for trace in told["traces"])
    emit("agent.hooks_traces_of_requests", arrived, "traces", STEPS,
         kernels=len(kernels))  # fmt: skip


def main() -> int:
    """Run and report, or be the application."""
    if "--work" in sys.argv:
        work()
        return 0
    if not Path("/dev/nvidiactl").exists():
        print("bench.agent_hooks needs an NVIDIA GPU", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report(*run(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
