"""`spanlite whatif`: what would have been, had one thing been different."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.markup import escape
from spanlite.archive.reader import ArchiveReader
from spanlite.errors import UsageError
from spanlite.occupancy import KNOWN_GPUS
from spanlite.settings import add_archive_words, archive_of
from spanlite.timewindow import add_window_arguments, parse_duration, window_of

from spanlite_replay import whatif
from spanlite_replay.bottlenecks.recorded import read
from spanlite_replay.bottlenecks.report import BOTTLENECK_COLUMNS
from spanlite_replay.commands._console import stdout_console
from spanlite_replay.commands._progress import Progress
from spanlite_replay.recording import Recording, read_recording
from spanlite_replay.sim import GpuModel, known_model
from spanlite_replay.transforms import check_ratio
from spanlite_replay.whatif import Answer, Change
from spanlite_replay.whatif_load import ASSUMED, Breaking, Load, Loaded

_EPILOG = """\
Each flag is a question of its own, answered by the simulator; --together asks them all at once.
The error bar holds the noise of the recording, the simulator's own error on it, and what the
assumptions leave open.

examples:
  spanlite whatif data/archive --last 15m --kernel 'nvjet|gemm=2' --clock 0.8 --graph
  spanlite whatif data/archive --qps-times 1.5 --slo 50ms
"""
_GRAPH, _STREAMS = "one graph launch between waits", "streams folded onto"
Question = tuple[str, Change, list[str]]


class WhatIfCommand:
    """Asks the simulator."""

    summary = "Ask what would have been: other load, streams, clocks, kernels, copies, graphs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        add_archive_words(parser)
        add_window_arguments(parser)
        _add_questions(parser)
        parser.add_argument(
            "--together", action="store_true", help="one question with all changes (not of load)"
        )
        parser.add_argument(
            "--gpu",
            metavar="NAME",
            help=f"the GPU recorded, of {', '.join(KNOWN_GPUS)} (default: H200)",
        )
        parser.add_argument("--json", action="store_true", help="the answers as one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0."""
        questions = list(_questions(args))
        slo_ns = None if args.slo is None else parse_duration(args.slo)
        denser = None if args.qps_times is None else check_ratio("--qps-times", args.qps_times)
        if not questions and denser is None and slo_ns is None:
            raise UsageError("ask something: see `spanlite whatif --help` for the questions")
        if args.together and not questions:
            raise UsageError(
                "--together asks several changes as one, and not those of load: give --kernel, "
                "--clock, --drop-copies, --streams or --graph, or leave it out"
            )
        model = None if args.gpu is None else known_model(args.gpu)
        progress = Progress(sys.stderr)
        archive = archive_of(args)
        with progress.doing("reading"):
            recording = read_recording(ArchiveReader(archive), window_of(args), BOTTLENECK_COLUMNS)
        with progress.doing("simulating"):
            answers = _answers(recording, model, questions, args.together)
            loads, breaking = _load(recording, model, denser, slo_ns)
        if args.json:
            print(_as_json(answers, loads, breaking))
        else:
            _print(stdout_console(), answers, loads, breaking)
        return 0


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions")
    group.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="REGEX=X",
        help="kernels of such a name X times as fast; may be repeated",
    )
    group.add_argument("--clock", metavar="X", help="the SMs' clock X times as fast")
    group.add_argument(
        "--drop-copies",
        nargs="?",
        const="all",
        metavar="DIRECTION",
        help="copies take no time (htod, dtoh, dtod, ptop; default all)",
    )
    group.add_argument("--streams", type=int, metavar="N", help="streams folded onto N")
    group.add_argument(
        "--graph", action="store_true", help="what is launched between two waits as one CUDA graph"
    )
    group.add_argument("--qps-times", metavar="K", help="arrivals K times as dense")
    group.add_argument(
        "--slo", metavar="DURATION", help="the rate at which the p99 latency breaks this"
    )


def _questions(args: argparse.Namespace) -> Iterator[Question]:
    for text in args.kernel:
        pattern, sign, factor = text.rpartition("=")
        if not sign or not pattern:
            raise UsageError(f"--kernel '{text}': write REGEX=X, such as gemm=2")
        faster = float(check_ratio("--kernel", factor))
        yield (
            f"kernels '{pattern}' {faster:g} times as fast",
            whatif.kernels_times(pattern, faster),
            [],
        )
    if args.clock is not None:
        faster = float(check_ratio("--clock", args.clock))
        yield (
            f"SM clock {faster:g} times",
            whatif.clock_times(faster),
            [
                "compute-bound kernels follow the clock, memory-bound ones do not; the range takes "
                "all and those alone of which it is known"
            ],
        )
    if args.drop_copies is not None:
        direction = None if args.drop_copies == "all" else args.drop_copies
        yield f"no time in copies ({args.drop_copies})", whatif.copies_dropped(direction), []
    if args.streams is not None:
        yield f"{_STREAMS} {args.streams}", whatif.streams_remapped(args.streams), []
    if args.graph:
        yield (
            "one graph launch between waits",
            whatif.merged_into_graphs(),
            [
                f"a graph launch takes {whatif.GRAPH_CALL_NS / 1e3:g} us of the host, and the host "
                "does nothing else between the launches that it replaces"
            ],
        )


def _answers(
    recording: Recording, model: GpuModel | None, questions: list[Question], together: bool
) -> list[Answer]:
    if not questions:
        return []
    ground = whatif.prepare(read(recording), model)
    if together:
        texts, changes, assumed = zip(*questions, strict=True)
        all_assumed = [line for lines in assumed for line in lines]
        reordered = any(map(_reorders, texts))
        return [whatif.ask(ground, ", and ".join(texts), changes, all_assumed, reordered)]
    return [
        whatif.ask(ground, text, [change], assumed, _reorders(text))
        for text, change, assumed in questions
    ]


def _reorders(text: str) -> bool:
    return text.startswith((_GRAPH, _STREAMS))


def _load(
    recording: Recording, model: GpuModel | None, denser: Fraction | None, slo_ns: int | None
) -> tuple[list[Loaded], Breaking | None]:
    if denser is None and slo_ns is None:
        return [], None
    load = Load(recording, model)
    loads = [] if denser is None else [load.at(times) for times in (Fraction(1), denser)]
    return loads, None if slo_ns is None else load.breaking(slo_ns)


def _as_json(answers: list[Answer], loads: list[Loaded], breaking: Breaking | None) -> str:
    body: dict[str, Any] = {
        "answers": [dataclasses.asdict(one) | {"change": one.change} for one in answers],
        "loads": [dataclasses.asdict(one) for one in loads],
        "slo": None if breaking is None else dataclasses.asdict(breaking),
    }
    return json.dumps(_finite(body), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null says "not known"."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(
    console: Console, answers: list[Answer], loads: list[Loaded], breaking: Breaking | None
) -> None:
    for one in answers:
        noise = "not known" if math.isnan(one.noise) else f"{one.noise * 100:.1f} %"
        _say(console, f"[bold]{escape(one.question)}[/]")
        _say(
            console,
            f"  median {one.unit} of {one.windows}: {_ms(one.predicted_ns)} in place of "
            f"{_ms(one.recorded_ns)} ({_change(one.change)})",
        )
        _say(
            console,
            f"  between {_ms(one.low_ns)} and {_ms(one.high_ns)}: noise {noise}, simulator "
            f"{one.simulator_error * 100:.1f} %, and what is assumed",
        )
        for line in one.assumptions:
            _say(console, escape(f"  assumed: {line}"))
    for load in loads:
        _say(
            console,
            f"[bold]{load.qps:,.1f} arrivals/s ({load.times:g} times as recorded)[/]: p50 "
            f"{_ms(load.p50_ns)}, p99 {_ms(load.p99_ns)}, between {_ms(load.low_p99_ns)} and "
            f"{_ms(load.high_p99_ns)}, of {load.arrivals} arrivals",
        )
    if loads and breaking is None:
        for line in ASSUMED:
            _say(console, escape(f"  assumed: {line}"))
    if breaking is not None:
        _print_breaking(console, breaking)


def _change(share: float) -> str:
    """In words where it rounds to nothing."""
    return "no change" if abs(share) < 0.0005 else f"{share * 100:+.1f} %"


def _print_breaking(console: Console, one: Breaking) -> None:
    asked = f"p99 of {_ms(one.slo_ns)}"
    if one.fails_always:
        _say(console, f"[bold]{asked} is broken at every rate tried[/]")
    elif one.qps is None:
        _say(console, f"[bold]{asked} holds at every rate tried[/]")
    else:
        low = "any rate" if one.low_qps is None else f"{one.low_qps:,.1f}"
        high = "no rate tried" if one.high_qps is None else f"{one.high_qps:,.1f}"
        _say(
            console,
            f"[bold]{asked} breaks at {one.qps:,.1f} arrivals/s[/], between {low} and {high}",
        )
    for line in one.notes:
        _say(console, escape(f"  assumed: {line}"))


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f} ms"


command = WhatIfCommand()
