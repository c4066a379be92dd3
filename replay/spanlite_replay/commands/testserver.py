"""`spanlite testserver`: an OpenAI-compatible server of known speed, to replay requests on."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading

from spanlite.errors import UsageError

from spanlite_replay.commands._http import need_aiohttp

_EPILOG = """\
It answers /v1/completions and /v1/chat/completions, streamed or not, with made-up words at the
speed asked for, and batches as an inference engine does: --slots requests run at a time, the
others wait in order of arrival.

example:
  spanlite testserver --port 8000 --decode 50 --slots 32 &
  spanlite replay requests.csv --target http --url http://127.0.0.1:8000/v1
"""


class TestServerCommand:
    """The `testserver` subcommand."""

    summary = "Serve made-up answers in OpenAI's API at a known speed, to try a replay on"
    __test__ = False  # no test, whatever its name looks like to pytest

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument("--host", default="127.0.0.1", help="address (default %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="port (default %(default)s)")
        parser.add_argument("--model", default="test", help="its name (default %(default)s)")
        parser.add_argument(
            "--prefill",
            type=float,
            default=20_000.0,
            metavar="N",
            help="tokens of prompts a second (default 20000); other requests wait meanwhile",
        )
        parser.add_argument(
            "--decode",
            type=float,
            default=100.0,
            metavar="N",
            help="tokens a second of each running request (default 100)",
        )
        parser.add_argument(
            "--slots", type=int, default=16, help="requests that run at a time (default 16)"
        )
        parser.add_argument(
            "--queue", type=int, help="requests that may wait; more get 429 (default: no limit)"
        )
        parser.add_argument(
            "--stop-after",
            type=int,
            metavar="N",
            help="end each answer after N tokens, unless the request has ignore_eos",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until Ctrl-C."""
        _check(args)
        need_aiohttp()
        from spanlite_replay.testserver.engine import Speed
        from spanlite_replay.testserver.server import running

        speed = Speed(args.prefill, args.decode, args.slots, args.queue, args.stop_after)
        done = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: done.set())
        with running(speed, args.model, host=args.host, port=args.port) as server:
            print(f"serving '{args.model}' at {server.url}", flush=True)
            done.wait()
            served = server.api.engine.served
        print(f"{len(served):,} requests served", file=sys.stderr)
        return 0


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError."""
    for name in ("prefill", "decode", "slots"):
        value = getattr(args, name)
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"--{name} {value} must be a number above 0")
    for name, least in (("queue", 0), ("stop_after", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value} must be {least} or more")
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port {args.port} must be 0 to 65535; 0 takes a free one")
    if not args.model:
        raise UsageError("--model '' must be a name")


command = TestServerCommand()
