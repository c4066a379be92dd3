"""`spanlite generate`: made-up decode traces into the pipeline or a file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from spanlite.errors import UsageError
from spanlite.timewindow import parse_time

from spanlite_collectors.delivery import KafkaSink, Numbering, add_delivery_arguments, open_sink
from spanlite_collectors.file_sink import FileSink
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_collectors.sinks import DiscardSink, SpanSink

_PROGRESS_EVERY_S = 5.0
_DEFAULTS = DecodeConfig()
_EPILOG = """\
Traces of LLM decoding: requests arrive, are decoded together step by step, and end; each
step has its ranges, launch calls, kernels and copies, as CUDA graphs or eager. The same
seed and flags give the same spans.

examples:
  spanlite generate --spans 1000000
  spanlite generate --spans 10000000 --rate 200000 --seed 7 --processes 8
  spanlite generate --spans 100000 --eager --output spans.bin
"""


def _count(text: str) -> int:
    number = text.replace("_", "").replace(",", "")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 up")
    return int(number)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


class GenerateCommand:
    """The `generate` subcommand."""

    summary = "Generate decode traces, without a GPU"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument(
            "--spans", type=_count, default=_DEFAULTS.spans, metavar="N",
            help="stop at the first whole step from N on (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument("--seed", type=_count, metavar="N", help="(default: the time)")
        parser.add_argument(
            "--rate", type=_rate, metavar="N", help="send N spans a second (default: all at once)"
        )
        parser.add_argument(
            "--start", default="now", metavar="TIME", help="of the first spans (default: now)"
        )
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--output", type=Path, metavar="FILE", help="delimited SpanBatches")
        where.add_argument("--dry-run", action="store_true", help="only count")
        _add_fleet_arguments(parser)
        add_delivery_arguments(parser, to_file=False)

    def run(self, args: argparse.Namespace) -> int:
        """Generate."""
        config = config_of(args)
        if args.seed is None:
            print(f"generate: --seed {config.seed} gives these spans again", file=sys.stderr)
        began = time.monotonic()
        with _sink(args) as sink:
            made = _send(config, sink, args.rate)
            sink.flush()
        took = time.monotonic() - began
        print(f"generated {made} spans in {took:.1f} s, {made / max(took, 1e-9):,.0f} a second")
        if isinstance(sink, KafkaSink):
            stats = sink.stats()
            print(f"delivered {stats.delivered_spans} spans in {stats.delivered_messages} batches")
        elif isinstance(sink, FileSink):
            print(f"wrote {sink.messages} batches, {sink.bytes} bytes, to {args.output}")
        return 0


def _add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fleet")
    for name, what in (
        ("hosts", "hosts"),
        ("processes", "engine processes a host"),
        ("devices", "GPUs a process"),
        ("layers", "layers of the model"),
        ("streams", "CUDA streams a GPU"),
        ("max-batch", "requests decoded together, at most"),
    ):
        default = getattr(_DEFAULTS, name.replace("-", "_"))
        group.add_argument(
            f"--{name}",
            type=_count,
            default=default,
            metavar="N",
            help=f"{what} (default: {default})",
        )
    for name, what in (
        ("requests-per-s", "arrivals at each process"),
        ("output-tokens", "mean length of an answer"),
        ("slow-share", "share of slow steps and of long requests"),
        ("error-share", "share of requests that fail"),
    ):
        default = getattr(_DEFAULTS, name.replace("-", "_"))
        group.add_argument(
            f"--{name}",
            type=float,
            default=default,
            metavar="X",
            help=f"{what} (default: {default})",
        )
    group.add_argument(
        "--service", default=_DEFAULTS.service, help="service.name (default: %(default)s)"
    )
    group.add_argument("--eager", action="store_true", help="launch each kernel, no CUDA graphs")


def config_of(args: argparse.Namespace) -> DecodeConfig:
    """The config that the flags ask for. Raises UsageError."""
    now = time.time_ns()
    return DecodeConfig(
        spans=args.spans,
        seed=now if args.seed is None else args.seed,
        start_ns=parse_time(args.start, now),
        service=args.service,
        hosts=args.hosts,
        processes=args.processes,
        devices=args.devices,
        layers=args.layers,
        streams=args.streams,
        max_batch=args.max_batch,
        requests_per_s=args.requests_per_s,
        output_tokens=args.output_tokens,
        graph_share=0.0 if args.eager else 1.0,
        slow_share=args.slow_share,
        error_share=args.error_share,
    )


def _sink(args: argparse.Namespace) -> AbstractContextManager[SpanSink]:
    if args.dry_run:
        return _discard()
    if args.output:
        if args.output.is_dir():
            raise UsageError(f"--output {args.output} is a folder; give a file")
        return FileSink(args.output, Numbering("generate", args.buckets), args.batch_spans)
    return open_sink(args, "generate")


@contextmanager
def _discard() -> Iterator[SpanSink]:
    yield DiscardSink()


def _send(config: DecodeConfig, sink: SpanSink, rate: float | None) -> int:
    """Write all spans, no faster than `rate` a second; returns how many."""
    made = 0
    began = told = time.monotonic()
    for spans, resource in generate(config):
        sink.write(spans, resource)
        made += spans.num_rows
        now = time.monotonic()
        if rate is not None and (early := began + made / rate - now) > 0:
            time.sleep(early)
        if now - told >= _PROGRESS_EVERY_S:
            told = now
            print(f"generate: {made} of {config.spans} spans", file=sys.stderr, flush=True)
    return made


command = GenerateCommand()
