"""What to generate."""

from __future__ import annotations

from dataclasses import dataclass, fields

from spanlite.errors import UsageError

_SHARES = ("slow_share", "error_share", "graph_share")


@dataclass(frozen=True)
class DecodeConfig:
    """A fleet of decoders. The same config gives the same spans, byte for byte.

    Raises UsageError where a value makes no sense.
    """

    #: Stop at the first whole step at or beyond this many spans.
    spans: int = 1_000_000
    seed: int = 0
    #: Unix time of the first arrivals.
    start_ns: int = 1_764_547_200_000_000_000
    service: str = "decoder"
    hosts: int = 1
    #: Engine processes a host; each is a producer of its own.
    processes: int = 2
    #: GPUs a process drives, each from a thread of its own.
    devices: int = 1
    layers: int = 24
    #: CUDA streams a device: the main one, and side streams for cache writes.
    streams: int = 2
    #: Requests that an engine decodes at once, at most.
    max_batch: int = 32
    #: Poisson arrivals at each process.
    requests_per_s: float = 40.0
    #: Mean of the geometric output length.
    output_tokens: float = 96.0
    #: Share of decode steps that replay a CUDA graph; steps with a prefill never do.
    graph_share: float = 1.0
    #: Share of steps in which attention is slow, and of requests with ten times the output.
    slow_share: float = 0.01
    #: Share of requests that fail.
    error_share: float = 0.005
    #: Device timestamps are multiples of this; 32 on Hopper.
    device_tick_ns: int = 32
    #: Steps a process makes between two record batches.
    chunk_steps: int = 128

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _SHARES:
                if not 0 <= value <= 1:
                    raise UsageError(f"{item.name} is {value}; give a share from 0 to 1")
            elif item.name not in ("seed", "start_ns", "service", "spans") and not value > 0:
                raise UsageError(f"{item.name} is {value}; give a number above 0")
        if self.spans < 0 or self.seed < 0:
            raise UsageError("spans and seed cannot be negative")
        if self.output_tokens < 1:
            raise UsageError(f"output_tokens is {self.output_tokens}; a request makes at least 1")
