"""Records the decode loop of a small transformer with torch.profiler, on a GPU.

    python tests/recordings/record_decode.py OUTPUT_FOLDER

writes `{eager,graph}_s{1,4,8}.json.gz`: two groups of requests, each decoded for a few
steps, eager or as one CUDA graph a step, spread over 1, 4 or 8 streams. Ranges (NVTX and
profiler annotations alike) name request, step, layer and stage. The files under
tests/recordings/ were made by this script; README.md there says on which machine.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch itself writes it
from torch.profiler import ProfilerActivity, profile, record_function

HIDDEN, HEADS, LAYERS, CONTEXT = 1024, 8, 3, 256
REQUEST_GROUPS, STEPS_PER_GROUP = 2, 3


@contextmanager
def span(name: str) -> Iterator[None]:
    """One range, for NVTX tools and for the profiler."""
    torch.cuda.nvtx.range_push(name)
    with record_function(name):
        yield
    torch.cuda.nvtx.range_pop()


class Layer(nn.Module):
    """One decoder layer over a key/value cache of fixed length."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """x: (batch, HIDDEN); cache: (2, batch, HEADS, CONTEXT, HIDDEN // HEADS)."""
        batch = x.shape[0]
        with span("QKV"):
            q, k, v = self.qkv(self.norm1(x)).view(batch, 3, HEADS, -1).unbind(1)
            cache[0, :, :, 0], cache[1, :, :, 0] = k, v
        with span("attention"):
            mixed = F.scaled_dot_product_attention(q.unsqueeze(2), cache[0], cache[1])
        with span("output"):
            x = x + self.out(mixed.reshape(batch, HIDDEN))
        with span("FFN"):
            return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder:
    """The model and one slice of the batch for each stream."""

    def __init__(self, streams: int) -> None:
        torch.manual_seed(0)
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)]).to(**options)
        self.head = nn.Linear(HIDDEN, 4096).to(**options)
        self.streams = [torch.cuda.Stream() for _ in range(streams)]
        rows = max(1, 8 // streams)
        self.inputs = [torch.randn(rows, HIDDEN, **options) for _ in self.streams]
        shape = (2, rows, HEADS, CONTEXT, HIDDEN // HEADS)
        self.caches = [[torch.randn(shape, **options) for _ in range(LAYERS)] for _ in self.streams]
        self.tokens = [torch.zeros(rows, dtype=torch.long, device="cuda") for _ in self.streams]

    @torch.no_grad()
    def step(self) -> None:
        """Launch one decode step on all streams, joined to the current stream."""
        current = torch.cuda.current_stream()
        states = list(self.inputs)
        for stream in self.streams:
            stream.wait_stream(current)
        for number, layer in enumerate(self.layers):
            with span(f"layer:{number}"):
                for i, stream in enumerate(self.streams):
                    with torch.cuda.stream(stream):
                        states[i] = layer(states[i], self.caches[i][number])
        with span("sampling"):
            for i, stream in enumerate(self.streams):
                with torch.cuda.stream(stream):
                    self.tokens[i].copy_(self.head(states[i]).argmax(-1))
        for stream in self.streams:
            current.wait_stream(stream)


def graph_of(decoder: Decoder) -> torch.cuda.CUDAGraph:
    """The step as one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()
    return graph


def decode(decoder: Decoder, graph: torch.cuda.CUDAGraph | None) -> None:
    """Serve the groups of requests one after the other, two requests a group."""
    step = 0
    for group in range(REQUEST_GROUPS):
        with span(f"request:{2 * group}"), span(f"request:{2 * group + 1}"):
            for _ in range(STEPS_PER_GROUP):
                with span(f"step:{step}"):
                    if graph is None:
                        decoder.step()
                    else:
                        with span("graph_replay"):
                            graph.replay()
                    for tokens in decoder.tokens:
                        tokens.to("cpu", non_blocking=True)
                    torch.cuda.synchronize()
                step += 1


def record(folder: Path, mode: str, streams: int) -> None:
    """Warm up, record, and write one compressed trace."""
    decoder = Decoder(streams)
    for _ in range(3):
        decoder.step()
    torch.cuda.synchronize()
    graph = graph_of(decoder) if mode == "graph" else None
    decode(decoder, graph)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        decode(decoder, graph)
    plain = folder / f"{mode}_s{streams}.json"
    profiler.export_chrome_trace(str(plain))
    trace = json.loads(plain.read_text())
    trace["traceName"] = plain.name  # the profiler writes the full path here
    packed = json.dumps(trace, separators=(",", ":")).encode()
    plain.with_suffix(".json.gz").write_bytes(gzip.compress(packed, 9, mtime=0))
    plain.unlink()
    kernels = sum(event.get("cat") == "kernel" for event in trace["traceEvents"])
    size = plain.with_suffix(".json.gz").stat().st_size
    print(f"{mode}_s{streams}: {len(trace['traceEvents'])} events, {kernels} kernels, {size} bytes")


def main() -> None:
    """Record every mode."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for mode in ("eager", "graph"):
        for streams in (1, 4, 8):
            record(folder, mode, streams)


if __name__ == "__main__":
    main()
