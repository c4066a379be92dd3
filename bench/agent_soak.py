"""Minutes at full rate: a decoding process under the agent, and the real daemon beside it.

    python -m bench.agent_soak --seconds 600    on an NVIDIA GPU
    python -m bench.agent_soak --stand-in --seconds 12 --switch 2                anywhere

One process decodes (bench/_soak_worker.py). `spanlite collect` reads its ring, samples the GPU's
counters and NVML, and spools all it has, as no broker answers. `spanlite capture --level` goes
round from `ranges` to `windows`, where it stays for most of the time, and `continuous`: so the
shares of stages and kernels that the windows estimate by their weights can be compared with those
that are known of all kernels, and steps with those a few seconds before. On the way steps are slow
and a queue grows, and somebody asks for 50 steps. The spool is read while it grows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypeAlias

from bench._report import emit
from bench._soak_judge import Judge
from bench._soak_processes import Process, Watch, capture, note, start_daemon, start_server
from bench._soak_report import Report, Run

SLO_MS = 40
#: What a process left in its ring is read within this.
DRAIN_S = 30
#: Of the time at `windows` each of the other levels has this part.
OTHERS = 0.15
#: In one of so many rounds things happen: what somebody asks for is no part of the budget.
STIR_EVERY = 4
#: Nothing is asked of a server that ends within this: the command itself takes a while.
LAST_S = 4.0
#: Seconds at each level in a round.
Turns: TypeAlias = dict[str, float]


def drive(
    folder: Path, server: subprocess.Popen[bytes], end: float, turns: Turns, judge: Judge
) -> tuple[list[tuple[str, int]], list[int]]:
    """Change levels and make things happen until the server ends; (level, since when in ns)."""
    levels, codes = [("ranges", time.time_ns())], [0]
    _wait(turns["ranges"] + 2, end, server)
    rounds = 0
    last = end - min(LAST_S, sum(turns.values()) / 2)
    while time.monotonic() < last and server.poll() is None:
        for level in ("windows", "continuous", "ranges"):
            if time.monotonic() > last or server.poll() is not None:
                break
            codes.append(_ask(folder, server, "--level", level))
            levels.append((level, time.time_ns()))
            until = min(time.monotonic() + turns[level], end)
            rest = end - time.monotonic()
            if level == "windows" and rounds % STIR_EVERY == 0 and rest > turns[level]:
                codes += _stir(folder, turns[level], until, server)
            _wait(until - time.monotonic(), until, server)
            judge.look()
        rounds += 1
    note("waiting for the server's end")
    server.wait(60)
    return levels, codes


def _stir(folder: Path, switch: float, until: float, server: subprocess.Popen[bytes]) -> list[int]:
    """Slow steps, a queue that grows, and somebody who asks."""
    _wait(switch * 0.2, until, server)
    (folder / "slow").touch()
    _wait(switch * 0.25, until, server)
    (folder / "queue").touch()
    _wait(switch * 0.25, until, server)
    return [_ask(folder, server, "--steps", "50", "--wait", "5")]


def _ask(folder: Path, server: subprocess.Popen[bytes], *words: str) -> int:
    """The command's exit code. It is right to fail where the server has ended meanwhile."""
    code = capture(folder, *words)
    return code if server.poll() is None else 0


def _wait(seconds: float, until: float, server: subprocess.Popen[bytes]) -> None:
    stop = min(time.monotonic() + seconds, until)
    while time.monotonic() < stop and server.poll() is None:
        time.sleep(min(0.1, max(0.0, stop - time.monotonic())))


def soak(args: argparse.Namespace, folder: Path) -> int:
    """Run it, then say what was found. The number of goals that were missed."""
    (folder / "rings").mkdir()
    judge = Judge(folder / "spool", max(1, min(6, (os.cpu_count() or 1) // 2)))
    server = start_server(folder, args.seconds, args.stand_in)
    daemon, page, said = start_daemon(folder, args.stand_in)
    try:
        while not (folder / "ready").exists():
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode}")
            time.sleep(0.05)
        end = time.monotonic() + args.seconds
        capture(folder, "--level", "ranges", "--step-slo-ms", str(SLO_MS))
        watched = [Process(server.pid), Process(daemon.pid)]
        watch = Watch(watched, page)
        note("server ready")
        others = max(OTHERS * args.switch, min(args.switch, 3.5))
        turns = {"ranges": others, "windows": args.switch, "continuous": others}
        levels, codes = drive(folder, server, end, turns, judge)
        note("server ended")
        until = time.monotonic() + DRAIN_S
        while list((folder / "rings").glob("*.ring")) and time.monotonic() < until:
            time.sleep(0.2)
        note("ring read to its end")
        watch.read_page()
        watch.stop()
    finally:
        if server.poll() is None:
            server.kill()
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        note("daemon ended")
    emit("agent.soak_exit_codes", server.returncode + daemon.returncode + sum(codes), "sum", 0)
    if args.keep:
        keep(folder, args.keep, levels)
    run = Run(folder, args.seconds, args.stand_in, levels, watched, watch, said)
    report = Report(run)
    report.first()
    began = time.monotonic()
    run.found = judge.end()
    emit("agent.soak_judge_s", time.monotonic() - began, "s", files=judge.files, bytes=judge.bytes,
         note="after the daemon's end; most was read before")  # fmt: skip
    return report.rest()


def keep(folder: Path, target: Path, levels: list[tuple[str, int]]) -> None:
    """Copy what was found out to a folder."""
    shutil.copytree(folder / "spool", target / "spool", dirs_exist_ok=True)
    for path in (folder / "steps.npz", folder / "events.json"):
        if path.exists():  # not where the server died
            shutil.copy(path, target)
    (target / "levels.json").write_text(json.dumps(levels))


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="of decoding (%(default)s)")
    parser.add_argument("--switch", type=float, default=36,
                        help="seconds at `windows` in each round (%(default)s)")  # fmt: skip
    parser.add_argument("--stand-in", action="store_true", help="try the bench without a GPU")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the batches there")
    parser.add_argument("--quick", action="store_true", help="40 s")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.switch = 40, 5
    if not args.stand_in:
        if not Path("/dev/nvidiactl").exists():
            print(
                "bench.agent_soak needs an NVIDIA GPU, or --stand-in; bench/results/"
                "agent_soak.jsonl holds an H200's figures",
                file=sys.stderr,
            )
            return 0
        from bench.agent_overhead import machine

        emit("agent.soak", 1, "run", command=" ".join(["python -m bench.agent_soak",
             *sys.argv[1:]]), **machine())  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        missed = soak(args, Path(folder))
    emit("agent.soak_goals_missed", missed, "goals", 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
