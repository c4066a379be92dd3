"""The flags that every command with a Kafka sink shares, and the sink they ask for."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from spanlite.bucket import DEFAULT_BUCKETS
from spanlite.errors import ServiceError, UsageError
from spanlite.settings import add_bootstrap_argument, bootstrap_of
from spanlite.topics import RAW_TOPIC

from spanlite_collectors.batching import DEFAULT_BATCH_AGE_S, DEFAULT_BATCH_SPANS, Batcher
from spanlite_collectors.delivery.file import FileTransport
from spanlite_collectors.delivery.host_clock import clock_error_ns
from spanlite_collectors.delivery.numbering import Numbering
from spanlite_collectors.delivery.outbox import DEFAULT_WINDOW_BYTES, Outbox
from spanlite_collectors.delivery.sink import KafkaSink
from spanlite_collectors.delivery.spool import (
    DEFAULT_SPOOL_BYTES,
    MOST_RESERVED_BYTES,
    SUFFIX,
    Spool,
    SpoolBusyError,
)
from spanlite_collectors.delivery.transport import KafkaTransport

SPOOL_VARIABLE = "SPANLITE_SPOOL"
DEFAULT_SPOOL_DIR = "data/spool"
#: How long a command waits for its broker before it says that there is none.
BROKER_TIMEOUT_S = 10.0

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """`4GiB`, `512M`, `1000000`: a number of bytes, units are powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; write for instance 4GiB")
    return int(match[1]) * _UNITS[match[2]]


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0 and at most 1")
    return value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return value


def add_delivery_arguments(parser: argparse.ArgumentParser, *, to_file: bool = True) -> None:
    """Declare the flags; `open_sink` reads them. `to_file`: with `--output`."""
    group = parser.add_argument_group("delivery")
    add_bootstrap_argument(group)
    if to_file:
        group.add_argument(
            "--output",
            type=Path,
            metavar="FILE",
            help="into a file instead of Kafka (.zst: compressed); `spanlite import` takes it",
        )
    group.add_argument("--topic", default=RAW_TOPIC, help="(default: %(default)s)")
    group.add_argument("--producer", metavar="NAME", help="(default: HOST/COMMAND)")
    group.add_argument(
        "--buckets",
        type=_positive,
        default=DEFAULT_BUCKETS,
        help="as many as the archive has (default: %(default)s)",
    )
    group.add_argument(
        "--head-sample",
        type=_probability,
        default=1.0,
        metavar="P",
        help="keep this share of the traces, by trace id, the same on every host (default: all)",
    )
    group.add_argument(
        "--batch-spans", type=_positive, default=DEFAULT_BATCH_SPANS, help="(default: %(default)s)"
    )
    group.add_argument(
        "--batch-age",
        type=_seconds,
        default=DEFAULT_BATCH_AGE_S,
        metavar="S",
        help="send a batch that is not full after so many seconds (default: %(default)s)",
    )
    _add_spool_arguments(group)


def _add_spool_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--spool",
        metavar="DIR",
        help="keep batches here while the broker is away "
        f"(default: ${SPOOL_VARIABLE}, else {DEFAULT_SPOOL_DIR})",
    )
    group.add_argument("--no-spool", action="store_true", help="keep nothing on disk")
    group.add_argument(
        "--spool-bytes",
        type=parse_bytes,
        default=DEFAULT_SPOOL_BYTES,
        metavar="SIZE",
        help="largest size of the spool (default: 4GiB)",
    )
    group.add_argument(
        "--block",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="when the spool is full, wait for the broker, or drop spans and count them",
    )


@dataclass(frozen=True)
class Role:
    """How a kind of command delivers when its flags do not say."""

    name: str
    #: A command that reads files waits; a daemon that watches a live process drops.
    block: bool = True
    #: A command fails at once where there is no broker; a daemon starts and spools.
    needs_broker: bool = True
    #: A command makes its file anew; a daemon that starts anew adds one.
    keeps_files: bool = False


def open_sink(args: argparse.Namespace, role: Role | str) -> KafkaSink:
    """The sink that the flags ask for. Raises UsageError or ServiceError.

    What an earlier run left in the spool is sent first.
    """
    role = Role(role) if isinstance(role, str) else role
    if args.no_spool and args.spool:
        raise UsageError("--spool and --no-spool exclude each other")
    output = getattr(args, "output", None)
    if output is not None and (args.spool or args.bootstrap):
        raise UsageError("--output writes a file, so --bootstrap and --spool have no meaning")
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output} is a folder; give a file")
    _check_text(bootstrap=bootstrap_of(args), topic=args.topic, producer=args.producer or "")
    numbering = Numbering(
        args.producer or f"{socket.gethostname()}/{role.name}",
        args.buckets,
        sampling_probability=args.head_sample,
        # What is imported is of another host's clock, or of another day.
        clock_error_ns=clock_error_ns if role.name == "collector" else lambda: 0,
    )
    batcher = Batcher(batch_spans=args.batch_spans, batch_age_s=args.batch_age)
    if output is not None:
        transport = FileTransport(output, keep=role.keeps_files, say=_say)
        return KafkaSink(Outbox(transport), numbering, batcher, block=True)
    broker = KafkaTransport(
        bootstrap_of(args), args.topic, queue_bytes=DEFAULT_WINDOW_BYTES, log=_say
    )
    if role.needs_broker:
        check_broker(broker, bootstrap_of(args), args.topic)
    spool = None if args.no_spool else open_spool(_spool_dir(args), args.topic, args.spool_bytes)
    if spool is not None and spool.unread:
        _say(f"{spool.unread} batches of an earlier run are in {spool.folder}; sending them first")
    block = role.block if args.block is None else args.block
    return KafkaSink(Outbox(broker, spool), numbering, batcher, block=block)


def _check_text(**flags: str) -> None:
    """Raise UsageError where a word of the command line is bytes that are no text."""
    for name, value in flags.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"--{name} is not text in UTF-8") from None


def check_broker(
    transport: KafkaTransport, bootstrap: str, topic: str, timeout_s: float = BROKER_TIMEOUT_S
) -> None:
    """Raise ServiceError, with what to do, unless the broker is there and has the topic."""
    if transport.ask_partitions(timeout_s):
        return
    if transport.broker_answers(timeout_s / 2):
        raise ServiceError(
            f"the broker at {bootstrap} has no topic {topic}; "
            f"`spanlite stack up` makes it in a local broker"
        )
    raise ServiceError(
        f"no Kafka broker answers at {bootstrap}; start one with `spanlite stack up` "
        f"or name yours with --bootstrap HOST:PORT"
    )


def open_spool(root: Path, topic: str, max_bytes: int) -> Spool:
    """A spool below the folder that no other process uses; one with messages left first.

    Raises ServiceError where the folder cannot be used.
    """
    reserved = min(max_bytes // 4, MOST_RESERVED_BYTES)
    base = root / re.sub(r"[^A-Za-z0-9._-]", "_", topic)
    found = sorted(path for path in base.glob("*") if path.is_dir())
    found.sort(key=lambda path: not any(path.glob(f"*{SUFFIX}")))
    names = {path.name for path in found}
    fresh = (base / str(number) for number in range(len(found) + 1))
    candidates = [*found, *(path for path in fresh if path.name not in names)]
    for folder in candidates[:-1]:
        try:
            return Spool(folder, max_bytes=max_bytes, reserved_bytes=reserved)
        except SpoolBusyError:
            continue
    return Spool(candidates[-1], max_bytes=max_bytes, reserved_bytes=reserved)


def _spool_dir(args: argparse.Namespace) -> Path:
    return Path(args.spool or os.environ.get(SPOOL_VARIABLE) or DEFAULT_SPOOL_DIR)


def _say(text: str) -> None:
    print(f"delivery: {text}", file=sys.stderr, flush=True)
