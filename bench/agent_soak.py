"""Minutes at full rate: a decoding process under the agent, and the real daemon beside it.

    python -m bench.agent_soak --seconds 480    on an NVIDIA GPU
    python -m bench.agent_soak --stand-in --seconds 12 --switch 2                anywhere

One process decodes (bench/_soak_worker.py). `spanlite collect` reads its ring, samples the GPU's
counters and NVML, and spools all it has, as no broker answers. Each half minute `spanlite capture
--level` goes from `windows` to `continuous` and back, so the stages' shares that the windows
estimate by their weights can be compared with those that are known of all kernels. On the way
steps are slow and a queue grows, and somebody asks for 50 steps. Then the spool is read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench import _soak_judge as judging
from bench._report import emit
from bench._soak_worker import KINDS, SHORT

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
STAND_IN = ROOT / "collectors" / "agent" / "build" / "tests"
#: Nothing listens there, so everything goes to the spool.
NO_BROKER = "127.0.0.1:9"
SLO_MS = 40
#: Windows as often in half the time as by default in all of it.
WINDOW_SECONDS = 10
#: Memory is judged after so many seconds: rings are touched and pools are full by then.
SETTLED_S = 90
#: What a process left in its ring is read within this.
DRAIN_S = 30
SPANLITE = [sys.executable, "-m", "spanlite.cli"]


@dataclass
class Process:
    """Memory and CPU time of a process, each second."""

    pid: int
    seconds: list[float] = field(default_factory=list)
    resident_kib: list[int] = field(default_factory=list)
    anonymous_kib: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def look(self, now: float) -> None:
        """Read /proc, where it still lives."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            resident, anonymous = (
                int(status.split(f"{word}:")[1].split()[0]) for word in ("VmRSS", "RssAnon")
            )
        except (OSError, IndexError):
            return
        self.seconds.append(now)
        self.resident_kib.append(resident)
        self.anonymous_kib.append(anonymous)
        self.cpu_s.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    def slope(self, values: list[int], settled_s: float) -> float:
        """MiB a minute, by regression; NaN where there is too little."""
        at = np.array(self.seconds)
        late = at >= settled_s
        if late.sum() < 5:
            return float("nan")
        return float(np.polyfit(at[late], np.array(values)[late], 1)[0] * 60 / 1024)


class Watch(threading.Thread):
    """Looks at both processes each second, and now and then at the daemon's page."""

    def __init__(self, processes: list[Process], page: str) -> None:
        super().__init__(daemon=True)
        self._processes, self._page, self._done = processes, page, threading.Event()
        self.began = time.monotonic()
        self.families: set[str] = set()
        self.page_text = ""
        self.start()

    def run(self) -> None:
        """Look."""
        second = 0
        while not self._done.wait(max(0.0, self.began + second - time.monotonic())):
            for process in self._processes:
                process.look(time.monotonic() - self.began)
            if second % 5 == 0:
                self.read_page()
            second += 1

    def read_page(self) -> None:
        """Keep what is on the page; which series have ever been there."""
        try:
            with urllib.request.urlopen(self._page, timeout=2) as page:
                self.page_text = page.read().decode()
        except OSError:
            return
        self.families |= set(re.findall(r"^(\w+)[ {]", self.page_text, re.M))

    def value(self, name: str) -> float:
        """A series of the last page; NaN where there is none."""
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.page_text, re.M)
        return float(found[1]) if found else float("nan")

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self.join()


def note(text: str) -> None:
    """Say on stderr how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def start_daemon(folder: Path, stand_in: bool) -> tuple[subprocess.Popen[str], str, list[str]]:
    """The real command; its metrics page, and what it says."""
    more = ["--no-nvml"] if stand_in else ["--pm-sampling"]
    command = [*SPANLITE, "collect", "--agent-dir", str(folder / "rings"), "--bootstrap", NO_BROKER,
               "--spool", str(folder / "spool"), "--spool-bytes", "32GiB", "--otlp-port", "0",
               "--metrics-port", "0", *more]  # fmt: skip
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            said.append(line.rstrip())
            print(line, end="", file=sys.stderr, flush=True)
            if "taking spans on" in line and "ring" in line:
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    ready.wait(60)
    page = next((m[1] for line in said if (m := re.search(r"metrics on (\S+)", line))), "")
    if not page:
        raise RuntimeError(f"the daemon did not start: {said}")
    return daemon, page, said


def start_server(folder: Path, seconds: float, stand_in: bool) -> subprocess.Popen[bytes]:
    """The decoding process, with two variables set."""
    environment = os.environ | {
        "CUDA_INJECTION64_PATH": str(LIBRARY),
        "NVTX_INJECTION64_PATH": str(LIBRARY),
        "SPANLITE_AGENT_DIR": str(folder / "rings"),
        "SPANLITE_AGENT_WINDOW_SECONDS": str(WINDOW_SECONDS if seconds > 100 else 1),
        "OTEL_SERVICE_NAME": "soak",
    }
    flags = []
    if stand_in:
        environment["LD_LIBRARY_PATH"] = str(STAND_IN)
        flags = ["--stand-in"]
    command = [sys.executable, "-m", "bench._soak_worker", str(folder), str(seconds), *flags]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def capture(folder: Path, *words: str) -> int:
    """`spanlite capture`, as an operator types it."""
    command = [*SPANLITE, "capture", "--agent-dir", str(folder / "rings"), "--all", *words]
    return subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode


def drive(
    folder: Path, server: subprocess.Popen[bytes], seconds: float, switch: float
) -> tuple[list[tuple[str, int]], list[int]]:
    """Change levels and make things happen until the server ends; (level, since when in ns)."""
    calm = min(15.0, seconds / 12)
    end = time.monotonic() + seconds
    levels, codes = [("ranges", time.time_ns())], []
    _wait(calm, end - calm, server)
    rounds = 0
    while time.monotonic() < end - calm - 2 and server.poll() is None:
        for level in ("windows", "continuous"):
            if time.monotonic() > end - calm - 2 or server.poll() is not None:
                break
            codes.append(capture(folder, "--level", level))
            levels.append((level, time.time_ns()))
            until = min(time.monotonic() + switch, end - calm)
            if level == "windows" and rounds % 2 == 0:
                codes += _stir(folder, switch, until, server)
            _wait(until - time.monotonic(), until, server)
        rounds += 1
    if server.poll() is None:
        codes.append(capture(folder, "--level", "ranges"))
        levels.append(("ranges", time.time_ns()))
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
    return [capture(folder, "--steps", "50", "--wait", "5")]


def _wait(seconds: float, until: float, server: subprocess.Popen[bytes]) -> None:
    stop = min(time.monotonic() + seconds, until)
    while time.monotonic() < stop and server.poll() is None:
        time.sleep(min(0.1, max(0.0, stop - time.monotonic())))


def soak(args: argparse.Namespace, folder: Path) -> int:
    """Run it, then say what was found. The number of goals that were missed."""
    (folder / "rings").mkdir()
    daemon, page, said = start_daemon(folder, args.stand_in)
    server = start_server(folder, args.seconds, args.stand_in)
    watch = None
    try:
        while not (folder / "ready").exists():
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode}")
            time.sleep(0.05)
        capture(folder, "--level", "ranges", "--step-slo-ms", str(SLO_MS))
        watched = [Process(server.pid), Process(daemon.pid)]
        watch = Watch(watched, page)
        note("server ready")
        levels, codes = drive(folder, server, args.seconds, args.switch)
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
        shutil.copytree(folder / "spool", args.keep / "spool", dirs_exist_ok=True)
        for name in ("steps.npz", "events.json"):
            shutil.copy(folder / name, args.keep)
        (args.keep / "levels.json").write_text(json.dumps(levels))
    return Report(folder, args, levels, watched, watch, said).all()


class Report:
    """Prints the figures."""

    def __init__(
        self,
        folder: Path,
        args: argparse.Namespace,
        levels: list[tuple[str, int]],
        watched: list[Process],
        watch: Watch,
        said: list[str],
    ) -> None:
        self.args, self.levels, self.watched = args, levels, watched
        self.watch, self.said, self._folder = watch, said, folder
        steps = np.load(folder / "steps.npz")
        self.start, self.duration, self.kind = steps["start"], steps["duration"], steps["kind"]
        told = json.loads((folder / "events.json").read_text())
        self.events, self.requests = told["events"], told["requests"]
        self.missed = 0

    def all(self) -> int:
        """All of them; how many goals were missed."""
        for part in (
            self.memory, self.cost, self.nvml, self.sampler, self.rates, self.ledger,
            self.completeness, self.stages, self.counters, self.triggers, self.told_cost,
        ):  # fmt: skip
            try:
                part()
            except Exception as error:  # the other figures are worth having
                self.missed += 1
                emit(f"agent.soak_failed.{part.__name__}", 1, "failures", 0,
                     error=f"{type(error).__name__}: {error}"[:300])  # fmt: skip
        return self.missed

    @cached_property
    def found(self) -> judging.Findings:
        """What the spool holds; reading it takes a while, so the figures without it come first."""
        note("reading the spool")
        began = time.monotonic()
        files = sorted((self._folder / "spool").rglob("*.spool"))
        found = judging.judge(files, min(14, os.cpu_count() or 1))
        emit("agent.soak_judge_s", time.monotonic() - began, "s", files=len(files),
             bytes=sum(path.stat().st_size for path in files))  # fmt: skip
        return found

    def say(self, metric: str, value: float, unit: str, goal: float | None = None,
            at_least: bool = False, **more: Any) -> None:  # fmt: skip
        """One figure, and whether its goal was reached."""
        if goal is not None:
            reached = bool(value >= goal if at_least else value <= goal)
            self.missed += not reached
            more["reached"] = reached
        emit(f"agent.{metric}", value, unit, goal, **more)

    def level_at(self, times: Any) -> Any:
        """Which of `levels` each time lies in; within 1.5 s of a change: -1."""
        since = np.array([at for _, at in self.levels])
        at = np.searchsorted(since, times, side="right") - 1
        near = np.minimum.reduce([np.abs(times - s) for s in since]) < 1_500_000_000
        return np.where(near & (at > 0), -1, at)

    def rates(self) -> None:
        """How much there was."""
        seconds = (int(self.start[-1]) - int(self.start[0])) / 1e9
        kernels = self.found.spans["kernel"]
        self.say("soak_seconds", round(seconds, 1), "s", steps=len(self.start),
                 requests=self.requests, levels=[level for level, _ in self.levels])  # fmt: skip
        counts = [int((self.kind == k).sum()) for k in range(len(KINDS))]
        spans = sum(self.found.spans.values())
        self.say("soak_spans", spans, "spans", kinds=dict(self.found.spans),
                 flags=dict(self.found.flags),
                 steps=dict(zip(KINDS, counts, strict=True)))  # fmt: skip
        self.say("soak_bytes_per_span", self.found.payload_bytes / max(spans, 1), "B",
                 note="before the topic's zstd")  # fmt: skip
        long = [n for n, (level, _) in enumerate(self.levels) if level == "continuous"]
        inside = np.isin(self.level_at(self.start), long)
        busy = float(self.duration[inside].sum()) / 1e9
        per_step = self.per_step()
        made = sum(int((self.kind[inside] == k).sum()) * per_step.get(k, 0) for k in per_step)
        self.say("soak_kernels_per_s.continuous", made / busy if busy else 0.0, "kernels/s",
                 of_all=kernels)  # fmt: skip

    def cost(self) -> None:
        """Steps of the commonest kind at each level, against those at `ranges`."""
        at = self.level_at(self.start)
        common = self.kind == SHORT
        means, medians, tails = {}, {}, {}
        for level in ("ranges", "windows", "continuous"):
            mine = [n for n, (word, _) in enumerate(self.levels) if word == level]
            times = self.duration[common & np.isin(at, mine)]
            times = times[times < 30_000_000]  # but for those that are slow on purpose
            if len(times):
                means[level] = float(times.mean()) / 1e3
                medians[level] = float(np.median(times)) / 1e3
                tails[level] = float(np.percentile(times, 99)) / 1e3
        for level, mean in means.items():
            more = {"median_us": round(medians[level], 1), "p99_us": round(tails[level], 1)}
            self.say(f"soak_step_us.{level}", mean, "us", **more)
        for level in ("windows", "continuous"):
            if "ranges" in means and level in means:
                self.say(f"soak_cost_pct.{level}", (means[level] / means["ranges"] - 1) * 100, "%",
                         median=round((medians[level] / medians["ranges"] - 1) * 100, 2),
                         p99=round((tails[level] / tails["ranges"] - 1) * 100, 2))  # fmt: skip

    def told_cost(self) -> None:
        """What the agent itself says that windows cost."""
        windows = sorted(self.found.windows.items())
        told = [w.cost_ppm / 1e4 for _, w in windows if w.level == "windows" and w.cost_ppm]
        if told:
            self.say("soak_cost_told_pct", told[-1], "%", 1, most=max(told))

    def memory(self) -> None:
        """Memory of both processes, and the daemon's CPU time at each level."""
        settled = SETTLED_S if self.args.seconds > 2 * SETTLED_S else self.args.seconds / 3
        for word, process in zip(("process", "daemon"), self.watched, strict=True):
            late = np.array(process.seconds) >= settled
            mib = np.array(process.resident_kib)[late] / 1024
            self.say(f"soak_resident_mib.{word}", float(np.median(mib)), "MiB",
                     least=round(float(mib.min()), 1), most=round(float(mib.max()), 1))  # fmt: skip
            slope = process.slope(process.anonymous_kib, settled)
            self.say(f"soak_memory_slope_mib_per_min.{word}", slope, "MiB/min",
                     1.0 if self.args.seconds > 200 else None,
                     resident=round(process.slope(process.resident_kib, settled), 3))  # fmt: skip
        daemon = self.watched[1]
        offset = time.time_ns() / 1e9 - (time.monotonic() - self.watch.began)
        at = self.level_at(((np.array(daemon.seconds) + offset) * 1e9).astype(np.int64))
        used = np.diff(daemon.cpu_s) / np.maximum(np.diff(daemon.seconds), 1e-3)
        for level in ("ranges", "windows", "continuous"):
            mine = [n for n, (word, _) in enumerate(self.levels) if word == level]
            pick = np.isin(at[1:], mine) & np.isin(at[:-1], mine)
            if pick.any():
                self.say(f"soak_daemon_cores.{level}", float(used[pick].mean()), "cores")

    def ledger(self) -> None:
        """Records in, spans out, drops by reason, at each hop."""
        found, spans = self.found, sum(self.found.spans.values())
        drops = {k: v for k, v in found.dropped.items() if v}
        self.say("soak_dropped", sum(drops.values()), "records", 0, reasons=drops)
        told = next((m for line in reversed(self.said) if (m := re.search(
            r"(\d+) records read from rings, (\d+) of spans; (\d+) spans made, (\d+) dropped", line
        ))), None)  # fmt: skip
        if told is None:
            raise RuntimeError("the daemon told no account")
        _, rows, made, lost = map(int, told.groups())
        taken = next((m for line in reversed(self.said) if (m := re.search(
            r"(\d+) spans taken, (\d+) delivered, (\d+) batches in the spool, (\d+) spans dropped, "
            r"(\d+) lost", line))), None)  # fmt: skip
        received, delivered, _, dropped, undelivered = (
            map(int, taken.groups()) if taken else [0] * 5
        )
        hops = {
            "rings": rows - made - lost,
            "daemon": made - received,
            "delivery": received
            - delivered
            - spans
            - (dropped - sum(drops.values()))
            - undelivered,
            "batches": judging.gaps(found),
        }
        self.say("soak_ledger_open", sum(map(abs, hops.values())), "spans", 0, hops=hops,
                 rows=rows, spans=spans)  # fmt: skip

    def per_step(self) -> dict[int, int]:
        """Kernels of a whole step of each kind: the commonest count of those covered."""
        if not hasattr(self, "_per_step"):
            kernels = judging.kernels_by_step(self.found)
            seen: dict[int, Counter[int]] = {}
            for trace, _, number, covered, _ in self.found.steps:
                if covered and 0 <= number < len(self.kind):
                    count = kernels.get(trace, 0)
                    seen.setdefault(int(self.kind[number]), Counter())[count] += 1
            self._seen = seen
            self._per_step = {k: c.most_common(1)[0][0] for k, c in seen.items()}
        return self._per_step

    def completeness(self) -> None:
        """Whole steps must have every kernel, and every step of the server must be there."""
        per_step = self.per_step()
        missing = covered = short = 0
        for kind, counts in self._seen.items():
            for count, steps in counts.items():
                covered += steps
                lack = max(0, per_step[kind] - count)
                missing += lack * steps
                short += steps * bool(lack)
        missing = max(0, missing - sum(self.found.dropped.values()))
        self.say("unaccounted_records", missing, "records", 0, whole_steps=covered,
                 steps_that_lack=short,
                 kernels_a_step={KINDS[k]: n for k, n in sorted(per_step.items())})  # fmt: skip
        numbers = {number for _, _, number, _, _ in self.found.steps}
        lost = len(self.start) - len(numbers & set(range(len(self.start))))
        self.say("soak_steps_lost", lost, "steps", 0, windows=len(self.found.windows))

    def stages(self) -> None:
        """The windows' estimate against what is known of all kernels."""
        estimated, true = self.found.stage_ns["windows"], self.found.stage_ns["continuous"]
        leaves = judging.share_errors(judging.by_leaf(estimated), judging.by_leaf(true))
        paths = judging.share_errors(estimated, true)
        for stage, share in sorted(judging.shares(judging.by_leaf(true)).items()):
            told = judging.shares(judging.by_leaf(estimated)).get(stage, 0.0)
            self.say(f"soak_stage_share_pct.{stage or '(step)'}", share * 100, "%",
                     estimated=round(told * 100, 3), error_pct=round(leaves[stage], 3))  # fmt: skip
        if not leaves:
            raise RuntimeError("no kernels in either half")
        self.say("stage_share_error_pct.max", max(leaves.values()), "%", 5, stages=len(leaves),
                 with_layers=round(max(paths.values()), 3),
                 layers_and_stages=len(paths))  # fmt: skip
        unknown = judging.shares(true).get(judging.UNKNOWN, 0.0) * 100
        self.say("soak_stage_unknown_pct", unknown, "%")
        never = self.found.names["continuous"] - self.found.names["windows"]
        self.say("soak_kernel_names_missed", len(never), "names", 0,
                 of=len(self.found.names["continuous"]), which=sorted(never)[:3])  # fmt: skip

    def sampler(self) -> None:
        """What PM sampling costs."""
        if self.args.stand_in:
            return
        samples, busy = (self.watch.value(f"spanlite_pm_{w}_total") for w in
                         ("samples", "cpu_seconds"))  # fmt: skip
        seconds = self.watched[1].seconds[-1]
        self.say("soak_pm_cores", busy / seconds, "cores", 0.1,
                 samples_per_s=round(samples / seconds),
                 overflows=self.watch.value("spanlite_pm_overflows_total"))  # fmt: skip

    def counters(self) -> None:
        """PM sampling: figures of the steps."""
        if self.args.stand_in:
            return
        have = sum(figures for *_, figures in self.found.steps)
        self.say("soak_steps_with_counters_pct", 100 * have / max(len(self.found.steps), 1), "%")
        for name, values in sorted(self.found.pm.items()):
            quartiles = [round(float(q), 2) for q in np.percentile(values, [25, 75])]
            self.say(f"soak_counter.{name}", float(np.median(values)), "%", quartiles=quartiles)
        idle = self.found.idle_active
        if idle:  # counters and spans are of one clock where these are idle and the rest is not
            self.say("soak_counter_of_waiting_steps.gpu.active_pct", float(np.median(idle)), "%",
                     most=max(idle), steps=len(idle))  # fmt: skip

    def nvml(self) -> None:
        """Series that were on the page."""
        if self.args.stand_in:
            return
        from spanlite_collectors.agent.nvml import FAMILIES

        words = {f"{name}_total" if counts else name for name, (_, counts) in FAMILIES.items()}
        there = words & self.watch.families
        self.say("soak_nvml_series", len(there), "series", len(words), True,
                 missing=sorted(words - there),
                 counters="hw_gpu_counter_ratio" in self.watch.families)  # fmt: skip

    def triggers(self) -> None:
        """What opened windows, and how soon."""
        reasons = Counter(w.reason for w in self.found.windows.values())
        self.say("soak_windows", len(self.found.windows), "windows", reasons=dict(reasons))
        slow = sorted(e["end_ns"] for e in self.events if e["what"] == "slow step")
        firsts = [ns for ns, before in zip(slow, [0, *slow], strict=False) if ns - before > 10**9]
        opened = sorted(w.first_step_ns for w in self.found.windows.values() if w.reason == "slo")
        self.say("soak_slo_window_ms", *self._after(firsts, opened), 200)
        asked = sorted(w.first_step_ns for w in self.found.windows.values() if w.reason == "demand")
        grown = [e["at_ns"] for e in self.events if e["what"] == "queue"]
        self.say("soak_queue_window_ms", *self._after(grown, asked), 5000)
        fifty = sum(w.reason == "demand" and w.steps == 50 for w in self.found.windows.values())
        self.say("soak_capture_of_50_steps", fifty, "windows", 1, True)

    @staticmethod
    def _after(causes: list[int], windows: list[int]) -> tuple[float, str]:
        """The longest time from a cause to the window that followed; 10^6 ms where none did."""
        waits = []
        for cause in causes:
            later = [w for w in windows if w >= cause]
            waits.append((min(later) - cause) / 1e6 if later else 1e6)
        return (max(waits) if waits else 1e6), "ms"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=480, help="of decoding (%(default)s)")
    parser.add_argument("--switch", type=float, default=30, help="seconds at a level (%(default)s)")
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
