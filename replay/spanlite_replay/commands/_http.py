"""The flags of `replay --target http`, and the target they make."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spanlite.errors import UsageError
from spanlite.timewindow import parse_duration

from spanlite_replay.commands._progress import Progress
from spanlite_replay.recording import PLAN_COLUMNS

if TYPE_CHECKING:
    from spanlite_replay.targets.http import HttpTarget, Server

#: What a plan of requests needs of an archive.
HTTP_COLUMNS = (*PLAN_COLUMNS, "parent_span_id", "attributes")
_FLAGS = (
    "url", "model", "api", "prompt", "stop_early", "body", "api_key_env", "timeout",
    "connections", "clients",
)  # fmt: skip


def add_http(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("target http")
    group.add_argument("--url", metavar="URL", help="the API, such as http://127.0.0.1:8000/v1")
    group.add_argument("--model", metavar="NAME", help="(default: the only one that is served)")
    group.add_argument(
        "--api", choices=["completions", "chat"], help="endpoint (default completions)"
    )
    group.add_argument(
        "--prompt",
        choices=["ids", "words"],
        help="made-up prompts as token ids, exactly as many as recorded (default with "
        "completions), or as words of about one token each (chat)",
    )
    group.add_argument(
        "--stop-early",
        action="store_true",
        help="let the model end its answers; without it ignore_eos asks for the recorded length",
    )
    group.add_argument("--body", metavar="JSON", help="added to every request: '{\"top_k\": 1}'")
    group.add_argument(
        "--api-key-env", metavar="VARIABLE", help="environment variable that holds the key"
    )
    group.add_argument(
        "--timeout", metavar="DURATION", help="of one request, from when it is sent (default 10m)"
    )
    group.add_argument(
        "--connections",
        type=int,
        metavar="N",
        help="at most N at a time for each client; the wait for one counts (default: no limit)",
    )
    group.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="processes that send (default: a third of the cores)",
    )


def http_conflicts(args: argparse.Namespace) -> Iterator[tuple[object, str]]:
    """(what is wrong, message) of flags that contradict the target."""
    is_http = args.target == "http"
    for name in _FLAGS:
        if not is_http:
            yield getattr(args, name), f"--{name.replace('_', '-')} needs --target http"
    yield is_http and not args.url, "--target http needs --url, such as http://127.0.0.1:8000/v1"
    yield (
        is_http and args.no_wait,
        "--target http sends each request when it is due: leave --no-wait out, or use --speed",
    )
    yield (
        is_http and args.late == "reanchor",
        "--late reanchor would hide how late requests are: use burst or drop",
    )
    yield (
        is_http and args.unit not in (None, "request"),
        "--target http sends requests: --unit request is all there is",
    )
    for name in ("connections", "clients"):
        number = getattr(args, name)
        yield number is not None and number < 1, f"--{name} {number} must be 1 or more"


def need_aiohttp() -> None:
    """Raises UsageError where the extra is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise UsageError(
            "this needs aiohttp: install it with `pip install 'spanlite-replay[http]'`"
        )


def make_http(
    args: argparse.Namespace, replay_id: str, out: Path | None, progress: Progress
) -> HttpTarget:
    """The target. Raises UsageError."""
    need_aiohttp()
    from spanlite_replay.targets.http import HttpTarget

    def waiting(launched: int) -> None:
        progress.say(f"{launched:,} requests sent; waiting for the answers that are still open")

    return HttpTarget(_server(args), replay_id, out, waiting)


def _server(args: argparse.Namespace) -> Server:
    from spanlite_replay.targets.http import Server, default_clients

    api = args.api or "completions"
    return Server(
        args.url,
        args.model,
        api,
        ids=(args.prompt or ("words" if api == "chat" else "ids")) == "ids",
        ignore_eos=not args.stop_early,
        extra=_extra(args.body),
        headers=_key(args.api_key_env),
        timeout_s=parse_duration(args.timeout or "10m") / 1e9,
        connections=args.connections or 0,
        clients=args.clients or default_clients(),
    )


def _extra(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise UsageError(f"--body '{text}' is not a JSON object")
    return extra


def _key(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    if not (key := os.environ.get(variable)):
        raise UsageError(f"--api-key-env {variable}: this variable is not set")
    return {"Authorization": f"Bearer {key}"}
