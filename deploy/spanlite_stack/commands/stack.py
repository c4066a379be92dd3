"""`spanlite stack up|status|down`: the local Kafka broker."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from spanlite.errors import UsageError
from spanlite.settings import DEFAULT_STACK_DIR
from spanlite.topics import DEFAULT_PARTITIONS

from spanlite_stack.stack import DEFAULT_HEAP_MB, Stack, StackInfo

_EXAMPLES = """examples:
  spanlite stack up
  spanlite stack status
  spanlite generate --spans 1000000
  spanlite stack down
"""


def _say(text: str) -> None:
    print(f"stack: {text}", file=sys.stderr, flush=True)


def _print_info(info: StackInfo, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(info)))
        return
    state = f"running, pid {info.pid}" if info.running else "down"
    print(f"broker     {state}\nbootstrap  {info.bootstrap}\ndata       {info.data}")
    for name, partitions in info.topics.items():
        print(f"topic      {name} ({partitions} partition{'s' * (partitions != 1)})")


def _up(args: argparse.Namespace) -> int:
    if not 1 <= args.partitions <= 1024:
        raise UsageError(f"--partitions {args.partitions}: give 1 to 1024")
    if args.heap_mb < 256:
        raise UsageError(f"--heap-mb {args.heap_mb}: Kafka needs 256 or more")
    stack = Stack(args.data, partitions=args.partitions, heap_mb=args.heap_mb, say=_say)
    try:
        info = stack.up()
    except KeyboardInterrupt:
        stack.down()
        raise
    _print_info(info, args.json)
    found = info.topics.get("spans.raw")
    if found != args.partitions:
        _say(f"spans.raw keeps its {found} partitions; to change them, remove {info.data}")
    return 0


def _status(args: argparse.Namespace) -> int:
    info = Stack(args.data).status()
    if info is None:
        info = StackInfo(str(args.data.absolute()), "", 0, False, {})
    _print_info(info, args.json)
    return 0 if info.running else 1


def _down(args: argparse.Namespace) -> int:
    was_running = Stack(args.data, say=_say).down()
    if args.json:
        print(json.dumps({"data": str(args.data.absolute()), "was_running": was_running}))
    else:
        print("stopped" if was_running else "was not running")
    return 0


class StackCommand:
    """Start, look at and stop the local broker."""

    summary = "Run a local Kafka broker: up, status, down"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare up, status and down."""
        parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        up = _action(actions, "up", _up, "start the broker and make the topics; returns when ready")
        up.add_argument(
            "--partitions",
            type=int,
            default=DEFAULT_PARTITIONS,
            help="partitions of spans.raw when it is made (default: %(default)s)",
        )
        up.add_argument(
            "--heap-mb",
            type=int,
            default=DEFAULT_HEAP_MB,
            help="the broker's largest heap in MB (default: %(default)s)",
        )
        _action(actions, "status", _status, "say whether it runs; exit code 1 when it does not")
        _action(actions, "down", _down, "stop the broker; its messages stay in the data folder")

    def run(self, args: argparse.Namespace) -> int:
        """Run the chosen action."""
        return int(args.action_function(args))


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_STACK_DIR,
        metavar="DIR",
        help="folder for everything the broker writes (default: ./%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(action_function=function)
    return parser


command = StackCommand()
