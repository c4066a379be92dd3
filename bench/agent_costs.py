"""The agent's costs that comparing processes cannot judge, on an NVIDIA GPU with PyTorch and CuPy.

    python -m bench.agent_costs > bench/results/agent_costs.jsonl

Two processes without an agent differ by 0.3 to 0.8 % on an H200, as much as the goals. So: what a
full detach leaves behind is the change of one process against others (bench/_agent_detached.py);
what windows cost is read within one process from the steps around each (bench/_agent_windows.py),
on every load, and held against what the agent believes, as that is what it spaces them by; and
`continuous`, with other buffers too, takes turns with torch.profiler and cupti-python, each with
and without what its switching on and off takes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench._agent_costs import report_costs
from bench._agent_detached import measure_detached
from bench._agent_options import add_shared, variants, wait
from bench._agent_recording import Recorders, measure_recording
from bench._agent_rings import RingDrain
from bench._agent_turns import PROFILERS, WARM_UP_STEPS, Worker, start
from bench._agent_windows import Windows, report_windows
from bench._report import emit
from bench.agent_overhead import LEVELS, WORKLOADS, machine

#: The agent whose windows somebody else asks for: none before, none by itself.
ON_REQUEST = {"LEVEL": "ranges", "DETACH": "proven", "LEARN_SECONDS": "0",
              "WINDOW_SECONDS": "1000000"}  # fmt: skip
DETACHED_LOADS = ("graphs_600us", "graphs", "graphs_dense")
RECORDED_LOADS = ("graphs_600us", "graphs", "graphs_dense", "graphs_s8")
#: It makes an object of each record: minutes for graphs of thousands of kernels.
CUPTI_PYTHON_LOADS = ("graphs_600us", "graphs")
PARTS = ("detached", "windows", "recording")


class Processes:
    """Those that the chosen parts need, by name, and which loads each has built."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self.workers: dict[str, Worker] = {}
        self.loads: dict[str, list[str]] = {}
        chosen, parts = args.workloads, set(args.parts)
        recorded = [n for n in RECORDED_LOADS if n in chosen and "recording" in parts]
        compared = [n for n in DETACHED_LOADS if n in chosen and "detached" in parts]
        windows = chosen if "windows" in parts else []
        self._start("nothing", None, {*compared, *recorded})
        self._start("nothing_again", None, set(compared))
        self._start("agent", ON_REQUEST, {*compared, *windows, *recorded})
        for name, agent in self._recorders().items():
            odd = name == "cupti_python"
            loads = {n for n in recorded if n in CUPTI_PYTHON_LOADS} if odd else set(recorded)
            self._start(name, agent, loads)

    def _recorders(self) -> dict[str, dict[str, str] | None]:
        found = {"continuous": LEVELS["continuous"]} | variants(self._args, LEVELS)
        peers: dict[str, dict[str, str] | None] = dict.fromkeys(PROFILERS)
        return found | ({} if self._args.stand_in else peers)

    def _start(self, name: str, agent: dict[str, str] | None, loads: set[str]) -> None:
        if not loads:
            return
        self.workers[name] = start(name, agent, self._folder, self._args.stand_in)
        self.loads[name] = [load for load in self._args.workloads if load in loads]

    def build(self) -> None:
        """Build and warm up; a load that a process cannot build is left out there and said."""
        asked = [(name, load) for name, loads in self.loads.items() for load in loads]
        for name, load in asked:
            self.workers[name].ask(run=load, steps=WARM_UP_STEPS, sum=False)
        for name, load in asked:
            try:
                self.workers[name].answer()
            except RuntimeError as error:
                emit(f"agent.load_failed.{name}.{load}", 1, "failures", 0, error=str(error))
                self.loads[name].remove(load)
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.settle()
        print(f"{time.strftime('%T')} built", file=sys.stderr, flush=True)

    def able(self, names: list[str], load: str) -> list[Worker]:
        """Those of these processes that have the load."""
        return [self.workers[name] for name in names if load in self.loads.get(name, ())]

    def end(self) -> None:
        """Let all run to their end."""
        for worker in self.workers.values():
            worker.close()
        for worker in self.workers.values():
            worker.end()


def detached(args: argparse.Namespace, processes: Processes, opener: Windows) -> None:
    """What a full detach leaves behind."""
    loads = [
        load
        for load in DETACHED_LOADS
        if len(processes.able(["nothing", "nothing_again", "agent"], load)) == 3
    ]
    controls = [processes.workers["nothing"], processes.workers["nothing_again"]]
    measure_detached(controls, opener, loads, args.detached_seconds, args.turn_seconds)


def windows(args: argparse.Namespace, processes: Processes, opener: Windows) -> None:
    """What a window costs, on each load."""
    for load in processes.loads["agent"]:
        if time.monotonic() > args.ends:
            emit(f"agent.load_left_out.windows.{load}", 1, "loads", note="out of time")
            continue
        try:
            report_windows(opener, load, args.windows, args.window_seconds)
        except (RuntimeError, ValueError) as error:
            emit(f"agent.load_failed.windows.{load}", 1, "failures", 0, error=str(error))


def recording(args: argparse.Namespace, processes: Processes, opener: Windows) -> None:
    """Every kernel all the time, against the peers."""
    names = [name for name in processes.workers if name not in ("nothing_again", "agent")]
    recorders = Recorders(opener, [processes.workers[n] for n in names if n in PROFILERS])
    for load in RECORDED_LOADS:
        mine = processes.able([*names, "agent"], load)
        if len(mine) < 2 or mine[0].name != "nothing":
            continue
        if time.monotonic() > args.ends:
            emit(f"agent.load_left_out.recording.{load}", 1, "loads", note="out of time")
            continue
        measure_recording(recorders, mine, load, args.rounds, args.seconds, args.ends)
        report_costs(mine, load)


def costs(args: argparse.Namespace) -> bool:
    """All chosen parts; whether each came to its end."""
    whole = True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder), most_kernels=0)
        processes = Processes(args, Path(folder))
        processes.build()
        wait(args)
        time.sleep(0.3)  # the drain has found the rings
        opener = Windows(processes.workers["agent"], drain)
        parts = {"detached": detached, "windows": windows, "recording": recording}
        for part in args.parts:
            try:
                parts[part](args, processes, opener)
            except Exception as error:  # the parts that come after it are worth having
                whole = False
                emit(f"agent.part_failed.{part}", 1, "failures", 0,
                     error=f"{type(error).__name__}: {error}"[:500])  # fmt: skip
        processes.end()
        drain.stop()
        report_rings(processes, drain)
    return whole


def report_rings(processes: Processes, drain: RingDrain) -> None:
    """What came through each ring, what was lost, and what parsing took."""
    for worker in processes.workers.values():
        if (mine := drain.drained.get(worker.process.pid)) is None:
            continue
        state = mine.state
        parse_ns = state["parse_ns"] / max(1, state["records"])
        emit(f"agent.records.costs.{worker.name}", state["records"], "records", drops=mine.drops,
             parse_ns_a_record=round(parse_ns, 1), buffers=state["buffers"],
             windows=state["windows"], detaches=state["detaches"])  # fmt: skip


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--detached-seconds", type=float, default=12, metavar="SECONDS",
                        help="of each load before the detach, and as many after it")  # fmt: skip
    parser.add_argument("--turn-seconds", type=float, default=0.045, metavar="SECONDS",
                        help="of each process in a round of these")  # fmt: skip
    parser.add_argument("--windows", type=int, default=25, help="of each load at most")
    parser.add_argument("--window-seconds", type=float, default=9, metavar="SECONDS",
                        help="about so long for the windows of a load")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=12, help="with every kernel recorded")
    parser.add_argument("--seconds", type=float, default=0.15, help="of each process in a round")
    parser.add_argument("--quick", action="store_true", help="everything in its smallest form")
    add_shared(parser)
    args = parser.parse_args()
    args.ends = time.monotonic() + args.until
    if args.quick:
        args.detached_seconds, args.windows, args.window_seconds, args.rounds = 0.5, 8, 0.5, 2
    if not args.stand_in and not Path("/dev/nvidiactl").exists():
        print("bench.agent_costs needs an NVIDIA GPU; --stand-in tries it without", file=sys.stderr)
        return 0
    if not args.stand_in:
        command = " ".join(["python -m bench.agent_costs", *sys.argv[1:]])
        emit("agent.bench", 1, "run", command=command, **machine())
    return int(not costs(args))


if __name__ == "__main__":
    sys.exit(main())
