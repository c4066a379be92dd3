"""What `spanlite collect` does on a GPU host: flags, rings, GPU figures, redaction."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from spanlite.errors import ServiceError, UsageError

from spanlite_collectors.agent import ring
from spanlite_collectors.agent.convert import Sample
from spanlite_collectors.agent.layout import Level, WindowReason
from spanlite_collectors.agent.metrics import AgentMetrics, CustomMetrics
from spanlite_collectors.agent.nvml import NvmlSampler, open_nvml
from spanlite_collectors.agent.pm import PmSampler, open_devices
from spanlite_collectors.agent.source import RingOptions, RingSource, folders_of
from spanlite_collectors.agent.triggers import (
    QUEUE_METRIC,
    SERVER_METRICS,
    CaptureTrigger,
    QueuePage,
    QueueWatch,
)
from spanlite_collectors.commands.capture import LEVELS, MOST_MS, add_folder_argument
from spanlite_collectors.daemon import Source
from spanlite_collectors.redaction import RedactingSink, Redaction
from spanlite_collectors.sinks import SpanSink

#: Flags that mean nothing without rings: an agent's level, what opens a window.
_NEED_RINGS = (
    "agent_dir", "level", "queue_page", "queue_metric", "step_slo_ms", "request_slo_ms",
)  # fmt: skip


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("GPU processes")
    add_folder_argument(group)
    group.add_argument("--no-agent", action="store_true", help="leave rings of agents alone")
    group.add_argument(
        "--level", choices=LEVELS, help="what agents record (default: what each was started with)"
    )
    group.add_argument(
        "--step-slo-ms",
        type=float,
        metavar="MS",
        help="a longer step opens a window in its process; 0: never (default: what each was "
        "started with)",
    )
    group.add_argument(
        "--request-slo-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="a longer request opens a window in every process (default: none does)",
    )
    group.add_argument(
        "--queue-page",
        metavar="URL",
        help="a server's Prometheus page: when its queue grows, capture a window",
    )
    group.add_argument(
        "--queue-metric",
        action="append",
        metavar="NAME",
        help=f"what its length is called, on that page or as a gauge of spanlite.instrument "
        f"(default: {QUEUE_METRIC} and those of vLLM, SGLang and TGI)",
    )
    group.add_argument(
        "--pm-sampling",
        action="store_true",
        help="sample counters of each GPU at 1 kHz (activity, DRAM, L2, warps, tensor pipe); steps "
        "and long kernels get their means. One sampler a GPU",
    )
    group.add_argument("--no-nvml", action="store_true", help="do not read GPU figures from NVML")
    group = parser.add_argument_group("what may leave this host")
    group.add_argument(
        "--allow-attribute",
        action="append",
        metavar="NAME",
        help="send only these attributes, * for any text; may be repeated (default: all but "
        "prompts and answers)",
    )
    group.add_argument(
        "--hash-attribute",
        action="append",
        default=[],
        metavar="NAME",
        help="send a keyed hash instead of the value; may be repeated",
    )
    group.add_argument("--hash-key-file", metavar="FILE", help="the key of those hashes")


def redaction_of(args: argparse.Namespace) -> Redaction:
    """The rules that the flags ask for."""
    key = b""
    if args.hash_key_file:
        try:
            key = Path(args.hash_key_file).read_bytes().strip()
        except OSError as error:
            raise UsageError(f"--hash-key-file: {error}") from None
        if len(key) < 16:
            raise UsageError(f"{args.hash_key_file}: a key has 16 bytes or more, not {len(key)}")
    return Redaction(args.allow_attribute, tuple(args.hash_attribute), key)


class GpuHost:
    """The sources that the flags ask for, and the redacting way to the sink."""

    def __init__(
        self,
        args: argparse.Namespace,
        sink: SpanSink,
        registry: CollectorRegistry,
        say: Callable[[str], None],
    ) -> None:
        self.sink: SpanSink = RedactingSink(sink, redaction_of(args))
        self.sources: list[Source] = []
        self._rings: RingSource | None = None
        sampler = None if args.no_nvml else open_nvml(say)
        if sampler is not None:
            registry.register(sampler)
            self.sources.append(sampler)
        pm = _pm_sampler(args, sampler, say)
        if pm is not None:
            registry.register(pm)
            self.sources.append(pm)
        if args.no_agent or not _can_read(args, say):
            return
        custom = CustomMetrics(say)
        options = RingOptions(
            folders_of(args.agent_dir),
            Level[args.level.upper()] if args.level else None,
            _slo_ns("--step-slo-ms", args.step_slo_ms),
            _slo_ns("--request-slo-ms", args.request_slo_ms) or 0,
        )
        if sampler is not None:
            options.describe_gpus = sampler.gpus_of
            options.clocks_of = sampler.clocks_of
        if pm is not None:
            options.history_of = pm.history_of
        names = tuple(args.queue_metric or (QUEUE_METRIC, *SERVER_METRICS))
        queues = QueueWatch(lambda text: grown(text), names)

        def sampled(resource: Mapping[str, Any], sample: Sample) -> None:
            custom.take(resource, sample)
            queues.take(resource, sample)

        self._rings = rings = RingSource(self.sink, options, say=say, sampled=sampled)
        grown = CaptureTrigger(rings, say, "a queue grows", WindowReason.QUEUE)
        options.slow_request = CaptureTrigger(rings, say, "a slow request", WindowReason.SLO)
        if args.queue_page:
            self.sources.append(QueuePage(args.queue_page, queues, names, say))
        if sampler is not None:
            sampler.on_throttle = CaptureTrigger(
                rings, say, "clocks are held down", WindowReason.THROTTLE
            )
        registry.register(AgentMetrics(rings))
        registry.register(custom)
        self.sources.append(rings)

    @property
    def healthy(self) -> bool:
        """Whether the rings of GPU processes are read, where they are to be."""
        return self._rings is None or self._rings.healthy


def _slo_ns(flag: str, value_ms: float | None) -> int | None:
    if value_ms is None:
        return None
    if not 0 <= value_ms <= MOST_MS:
        raise UsageError(f"{flag} {value_ms:g}: give a number from 0 to {MOST_MS:,}")
    return round(value_ms * 1e6)


def _pm_sampler(
    args: argparse.Namespace, nvml: NvmlSampler | None, say: Callable[[str], None]
) -> PmSampler | None:
    """A sampler of all GPUs that can be sampled, where it was asked for."""
    if not args.pm_sampling:
        return None
    if nvml is None:
        raise UsageError("--pm-sampling needs NVML, which names the GPUs: install the extra `gpu`")
    nvml.sample()
    devices = open_devices(nvml.uuids, say)
    return PmSampler(devices, say) if devices else None


def _can_read(args: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Whether the ring library is there. Only who asks for rings must have it."""
    try:
        ring.library()
    except ServiceError as error:
        if any(getattr(args, name) for name in _NEED_RINGS):
            raise
        say(f"rings of GPU processes are not read, only OTLP is taken: {error}, or give --no-agent")
        return False
    return True
