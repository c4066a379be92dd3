"""`spanlite collect`: the daemon that takes spans on a host and delivers them."""

from __future__ import annotations

import argparse
import sys
import threading

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from spanlite.errors import UsageError
from spanlite.settings import bootstrap_of

from spanlite_collectors import metrics
from spanlite_collectors.commands.gpu_host import GpuHost, add_gpu_arguments
from spanlite_collectors.daemon import SHUTDOWN_TIMEOUT_S, Daemon, Source, stop_on_signals
from spanlite_collectors.delivery import KafkaSink, Role, add_delivery_arguments, open_sink
from spanlite_collectors.delivery.arguments import parse_bytes
from spanlite_collectors.receiver import OtlpHttpServer, otlp_http

_EPILOG = """\
Any OpenTelemetry SDK can send to it: OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318
GPU processes that were started with CUDA_INJECTION64_PATH=libspanlite_agent.so are found by
themselves; `spanlite capture --list` shows them.
While the broker is away, batches wait in the spool, also over a restart. SIGTERM delivers
or spools everything taken, then ends with exit code 0; 2 where the spool had no room for it.

example:
  spanlite collect --bootstrap kafka-1:9092 --head-sample 0.1
"""
_ROLE = Role("collector", block=False, needs_broker=False, keeps_files=True)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port, 0 (any) to 65535")
    return int(text)


def _say(text: str) -> None:
    print(f"collect: {text}", file=sys.stderr, flush=True)


class CollectCommand:
    """The `collect` subcommand."""

    summary = "Take spans on this host (OTLP/HTTP, GPU agents) and deliver them to Kafka"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        group = parser.add_argument_group("sources and pages")
        group.add_argument(
            "--listen",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="address of all ports; 0.0.0.0 for all interfaces (default: %(default)s)",
        )
        group.add_argument(
            "--otlp-port",
            type=_port,
            default=otlp_http.DEFAULT_PORT,
            help="OTLP/HTTP, 0 for any free port (default: %(default)s)",
        )
        group.add_argument(
            "--max-body-bytes",
            type=parse_bytes,
            default=otlp_http.DEFAULT_BODY_BYTES,
            metavar="SIZE",
            help="largest request taken, as sent (default: 20MiB)",
        )
        group.add_argument(
            "--metrics-port",
            type=_port,
            default=metrics.DEFAULT_PORT,
            help="/metrics, /healthz and /readyz, 0 for any free port (default: %(default)s)",
        )
        group.add_argument(
            "--shutdown-timeout",
            type=float,
            default=SHUTDOWN_TIMEOUT_S,
            metavar="S",
            help="on SIGTERM, wait so long for the broker, then spool (default: %(default)s)",
        )
        add_gpu_arguments(parser)
        add_delivery_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or Ctrl-C."""
        if args.otlp_port and args.otlp_port == args.metrics_port:
            raise UsageError("--otlp-port and --metrics-port are the same")
        stop = threading.Event()
        with stop_on_signals(stop):
            sink = open_sink(args, _ROLE)
            if args.output is None:  # else its name may have become another, and that was said
                _say(f"delivering to {args.topic} at {bootstrap_of(args)}")
            try:
                daemon = self._daemon(args, sink)
            except BaseException:
                sink.abandon()
                raise
            daemon.run(stop)
        return 0

    def _daemon(self, args: argparse.Namespace, sink: KafkaSink) -> Daemon:
        registry = CollectorRegistry()
        registry.register(metrics.DeliveryMetrics(sink.stats))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        gpu = GpuHost(args, sink, registry, _say)
        pages = metrics.MetricsServer(
            registry,
            (args.listen, args.metrics_port),
            healthy=lambda: sink.alive and gpu.healthy,
            ready=lambda: sink.alive and not sink.overloaded,
        )
        receiver = OtlpHttpServer(
            gpu.sink,
            (args.listen, args.otlp_port),
            overloaded=lambda: sink.overloaded,
            max_body_bytes=args.max_body_bytes,
            metrics=metrics.OtlpMetrics(registry),
        )
        sources: list[Source] = [receiver, *gpu.sources]
        return Daemon(
            sink,
            sources,
            pages,
            say=_say,
            broker=bootstrap_of(args),
            shutdown_timeout_s=args.shutdown_timeout,
        )


command = CollectCommand()
