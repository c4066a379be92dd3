"""The figures of a soak, and which goals they reach."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import _soak_judge as judging
from bench._agent_costs import interval, tail_cost
from bench._report import emit
from bench._soak_memory import over_time, rounds_slope
from bench._soak_processes import Process, Watch
from bench._soak_worker import KINDS, SHORT

#: Memory is judged after so many seconds: rings are touched and pools are full by then.
SETTLED_S = 90
#: Stages and kernels with a smaller part of the time are judged by points of it.
LARGE_SHARE = 0.01
#: Kernels of the driver's own that stand for a graph's copies and sets: no program has such names.
COPY_KERNEL = re.compile(r"mem(cpy|set)\d+\w*$")
#: Each change of level takes effect within this.
SETTLING_NS = 1_500_000_000


@dataclass
class Run:
    """What a soak left behind."""

    folder: Path
    seconds: float
    stand_in: bool
    #: Level, and since when in ns.
    levels: list[tuple[str, int]]
    #: The server and the daemon.
    watched: list[Process]
    watch: Watch
    #: The daemon's lines.
    said: list[str]
    found: judging.Findings = field(default_factory=judging.Findings)

    def __post_init__(self) -> None:
        steps = np.load(self.folder / "steps.npz")
        self.start, self.duration, self.kind = steps["start"], steps["duration"], steps["kind"]
        told = json.loads((self.folder / "events.json").read_text())
        self.events, self.requests = told["events"], told["requests"]
        slow = [event["number"] for event in self.events if event["what"] == "slow step"]
        self.slow = np.isin(np.arange(len(self.start)), slow)

    def level_at(self, times: Any) -> Any:
        """Which of `levels` each time lies in; near a change: -1."""
        since = np.array([at for _, at in self.levels])
        at = np.searchsorted(since, times, side="right") - 1
        near = np.minimum.reduce([np.abs(times - s) for s in since]) < SETTLING_NS
        return np.where(near & (at > 0), -1, at)

    def stretches(self, level: str) -> list[int]:
        """Places of that level in `levels`."""
        return [n for n, (word, _) in enumerate(self.levels) if word == level]


class Report:
    """Prints the figures."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.missed = 0

    @property
    def found(self) -> judging.Findings:
        """What the spool says."""
        return self.run.found

    def first(self) -> None:
        """What needs no spool: printed before it is read, as that may take a while."""
        self._print(self.memory, self.cost, self.nvml, self.sampler)

    def rest(self) -> int:
        """All else; how many goals were missed."""
        self._print(
            self.rates, self.ledger, self.completeness, self.coverage, self.stages, self.kernels,
            self.counters, self.triggers, self.told_cost,
        )  # fmt: skip
        return self.missed

    def _print(self, *parts: Callable[[], None]) -> None:
        for part in parts:
            try:
                part()
            except Exception as error:  # the other figures are worth having
                self.missed += 1
                emit(f"agent.soak_failed.{part.__name__}", 1, "failures", 0,
                     error=f"{type(error).__name__}: {error}"[:300])  # fmt: skip

    def say(self, metric: str, value: float, unit: str, goal: float | None = None,
            at_least: bool = False, **more: Any) -> None:  # fmt: skip
        """One figure, and whether its goal was reached."""
        if goal is not None:
            reached = bool(value >= goal if at_least else value <= goal)
            self.missed += not reached
            more["reached"] = reached
        emit(f"agent.{metric}", value, unit, goal, **more)

    def rates(self) -> None:
        """How much there was."""
        seconds = (int(self.run.start[-1]) - int(self.run.start[0])) / 1e9
        kernels = self.found.spans["kernel"]
        self.say("soak_seconds", round(seconds, 1), "s", steps=len(self.run.start),
                 requests=self.run.requests,
                 levels=dict(Counter(level for level, _ in self.run.levels)))  # fmt: skip
        counts = [int((self.run.kind == k).sum()) for k in range(len(KINDS))]
        spans = sum(self.found.spans.values())
        self.say("soak_spans", spans, "spans", kinds=dict(self.found.spans),
                 flags=dict(self.found.flags),
                 steps=dict(zip(KINDS, counts, strict=True)))  # fmt: skip
        self.say("soak_bytes_per_span", self.found.payload_bytes / max(spans, 1), "B",
                 note="before the topic's zstd")  # fmt: skip
        inside = np.isin(self.run.level_at(self.run.start), self.run.stretches("continuous"))
        busy = float(self.run.duration[inside].sum()) / 1e9
        per_step = self.per_step()
        made = sum(int((self.run.kind[inside] == k).sum()) * per_step.get(k, 0) for k in per_step)
        self.say("soak_kernels_per_s.continuous", made / busy if busy else 0.0, "kernels/s",
                 of_all=kernels)  # fmt: skip

    def cost(self) -> None:
        """Steps of the commonest kind at each level, against those at `ranges` just before."""
        run, at = self.run, self.run.level_at(self.run.start)
        picked = {
            level: [
                run.duration[(run.kind == SHORT) & ~run.slow & (at == n)]
                for n in run.stretches(level)
            ]
            for level in ("ranges", "windows", "continuous")
        }
        picked = {level: [t for t in turns if len(t) > 20] for level, turns in picked.items()}
        whole = {level: np.concatenate(turns) for level, turns in picked.items() if turns}
        for level, times in whole.items():
            self.say(f"soak_step_us.{level}", float(times.mean()) / 1e3, "us",
                     median_us=round(float(np.median(times)) / 1e3, 1),
                     p99_us=round(float(np.percentile(times, 99)) / 1e3, 1),
                     steps=len(times))  # fmt: skip
        if "ranges" not in whole:
            return
        for level, goals in (("windows", (1.0, 2.0)), ("continuous", (None, None))):
            if level not in whole:
                continue
            rounds = min(len(picked[level]), len(picked["ranges"]))
            pairs = zip(picked[level][:rounds], picked["ranges"][:rounds], strict=True)
            costs = np.array([(mine.mean() / base.mean() - 1) * 100 for mine, base in pairs])
            tail, edges = tail_cost(picked[level][:rounds], picked["ranges"][:rounds])
            self.say(f"soak_cost_pct.{level}", float(costs.mean()), "%", goals[0],
                     interval=interval(costs), rounds=rounds)  # fmt: skip
            self.say(f"soak_p99_cost_pct.{level}", tail, "%", goals[1],
                     interval=edges)  # fmt: skip

    def told_cost(self) -> None:
        """What the agent itself says that windows cost."""
        windows = sorted(self.found.windows.items())
        told = [w.cost_ppm / 1e4 for _, w in windows if w.level == "windows" and w.cost_ppm]
        if told:
            self.say("soak_cost_told_pct", told[-1], "%", 1, most=max(told))

    def memory(self) -> None:
        """Memory of both processes, and the daemon's CPU time at each level."""
        settled = SETTLED_S if self.run.seconds > 2 * SETTLED_S else self.run.seconds / 3
        for word, process in zip(("process", "daemon"), self.run.watched, strict=True):
            late = np.array(process.seconds) >= settled
            mib = np.array(process.resident_kib)[late] / 1024
            self.say(f"soak_resident_mib.{word}", float(np.median(mib)), "MiB",
                     least=round(float(mib.min()), 1), most=round(float(mib.max()), 1))  # fmt: skip
            regression = process.slope(process.anonymous_kib, settled)
            slope = rounds_slope(self.run, process, settled)
            self.say(f"soak_memory_slope_mib_per_min.{word}",
                     regression if slope is None else slope, "MiB/min",
                     1.0 if self.run.seconds > 200 else None, regression=round(regression, 3),
                     resident=round(process.slope(process.resident_kib, settled), 3),
                     kinds=process.kinds(settled), grown=process.grown(settled))  # fmt: skip
        rows = over_time(self.run)
        self.say("soak_memory_over_time", len(rows), "rows",
                 columns=["second", "process MiB", "daemon MiB", "windows", "detaches", "records"],
                 rows=rows)  # fmt: skip
        daemon = self.run.watched[1]
        offset = time.time_ns() / 1e9 - (time.monotonic() - self.run.watch.began)
        at = self.run.level_at(((np.array(daemon.seconds) + offset) * 1e9).astype(np.int64))
        used = np.diff(daemon.cpu_s) / np.maximum(np.diff(daemon.seconds), 1e-3)
        for level in ("ranges", "windows", "continuous"):
            mine = self.run.stretches(level)
            pick = np.isin(at[1:], mine) & np.isin(at[:-1], mine)
            if pick.any():
                self.say(f"soak_daemon_cores.{level}", float(used[pick].mean()), "cores")

    def ledger(self) -> None:
        """Records in, spans out, drops by reason, at each hop."""
        found, spans = self.found, sum(self.found.spans.values())
        drops = {k: v for k, v in found.dropped.items() if v}
        self.say("soak_dropped", sum(drops.values()), "records", reasons=drops)
        told = next((m for line in reversed(self.run.said) if (m := re.search(
            r"(\d+) records read from rings, (\d+) of spans; (\d+) spans made, (\d+) dropped", line
        ))), None)  # fmt: skip
        if told is None:
            raise RuntimeError("the daemon told no account")
        _, rows, made, lost = map(int, told.groups())
        taken = next((m for line in reversed(self.run.said) if (m := re.search(
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
                if covered and 0 <= number < len(self.run.kind):
                    count = kernels.get(trace, 0)
                    seen.setdefault(int(self.run.kind[number]), Counter())[count] += 1
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
        names = self._lacking_names()
        # Copies of graphs, which windows do not record; at times the driver runs them as kernels.
        # The account by node is bench/_agent_copies.py's, of the stress.
        copies = sum(n for name, n in names.items() if COPY_KERNEL.match(name))
        accounted = min(copies, missing) + sum(self.found.dropped.values())
        self.say("unaccounted_records", max(0, missing - accounted), "records", 0, lacking=missing,
                 ran_as_copies=copies, whole_steps=covered,
                 steps_that_lack=short, examples=self._lacking()[:4], lacking_names=names,
                 kernels_a_step={KINDS[k]: n for k, n in sorted(per_step.items())})  # fmt: skip
        numbers = {number for _, _, number, _, _ in self.found.steps}
        lost = len(self.run.start) - len(numbers & set(range(len(self.run.start))))
        self.say("soak_steps_lost", lost, "steps", 0, windows=len(self.found.windows))

    def _lacking(self) -> list[str]:
        """Covered steps with fewer kernels than others of their kind."""
        kernels, per_step = judging.kernels_by_step(self.found), self.per_step()
        lacking = []
        for trace, _, number, window, _ in sorted(self.found.steps, key=lambda step: step[1]):
            kind = int(self.run.kind[number]) if 0 <= number < len(self.run.kind) else -1
            if window and kernels.get(trace, 0) < per_step.get(kind, 0):
                reason = self.found.windows[window].reason
                told = f"{kernels.get(trace, 0)} of {per_step[kind]} kernels"
                lacking.append(f"step {number}, window {window} ({reason}): {told}")
        return lacking

    def _lacking_names(self) -> dict[str, int]:
        """What covered steps in windows lack of the names that most of their kind have."""
        names = self.found.names
        whole = [(t, int(self.run.kind[n])) for t, _, n, window, _ in self.found.steps
                 if window and t in names and 0 <= n < len(self.run.kind)]  # fmt: skip
        lacking: Counter[str] = Counter()
        for kind in {kind for _, kind in whole}:
            mine = [names[trace] for trace, of in whole if of == kind]
            usual = Counter(tuple(sorted(each.items())) for each in mine).most_common(1)[0][0]
            for each in mine:
                lacking += Counter(dict(usual)) - each
        return dict(lacking)

    def coverage(self) -> None:
        """How many steps the windows covered, of those that ran at that level."""
        covered = sum(w.steps for w in self.found.windows.values() if w.level == "windows")
        windows = sum(w.level == "windows" for w in self.found.windows.values())
        at = self.run.level_at(self.run.start)
        ran = int(np.isin(at, self.run.stretches("windows")).sum())
        self.say("soak_covered_pct", 100 * covered / max(ran, 1), "%", covered=covered,
                 windows=windows)  # fmt: skip

    def stages(self) -> None:
        """The windows' estimate against what is known of all kernels."""
        estimated, true = self.found.stage_ns["windows"], self.found.stage_ns["continuous"]
        self._shares("stage", judging.by_leaf(estimated), judging.by_leaf(true))
        paths = judging.share_errors(estimated, true, LARGE_SHARE)
        self.say("soak_layer_share_error_pct.max", max(paths.values(), default=0.0), "%",
                 layers_and_stages=len(paths))  # fmt: skip
        unknown = judging.shares(true).get(judging.UNKNOWN, 0.0) * 100
        self.say("soak_stage_unknown_pct", unknown, "%", windows=round(
            judging.shares(estimated).get(judging.UNKNOWN, 0.0) * 100, 3))  # fmt: skip

    def kernels(self) -> None:
        """The same for each kernel's name; and that all names were seen."""
        estimated, true = self.found.name_ns["windows"], self.found.name_ns["continuous"]
        self._shares("kernel", estimated, true)
        never = true.keys() - estimated.keys()
        self.say("soak_kernel_names_missed", len(never), "names", 0, of=len(true),
                 which=sorted(never)[:3])  # fmt: skip

    def _shares(self, what: str, estimated: Mapping[str, float], true: Mapping[str, float]) -> None:
        told, known = judging.shares(estimated), judging.shares(true)
        if not known:
            raise RuntimeError("no kernels at continuous")
        for name, share in sorted(known.items(), key=lambda item: -item[1])[:12]:
            guess = told.get(name, 0.0)
            self.say(f"soak_{what}_share_pct.{name[:60] or '(step)'}", share * 100, "%",
                     estimated=round(guess * 100, 3),
                     error_pct=round(abs(guess / share - 1) * 100, 3))  # fmt: skip
        errors = judging.share_errors(estimated, true, LARGE_SHARE)
        small = [name for name in known.keys() | told.keys() if known.get(name, 0) < LARGE_SHARE]
        points = [abs(told.get(name, 0.0) - known.get(name, 0.0)) * 100 for name in small]
        self.say(f"{what}_share_error_pct.max", max(errors.values(), default=0.0), "%", 5,
                 of=len(errors), smaller=len(small),
                 smaller_most_points=round(max(points, default=0.0), 4))  # fmt: skip

    def sampler(self) -> None:
        """What PM sampling costs."""
        if self.run.stand_in:
            return
        samples, busy = (self.run.watch.value(f"spanlite_pm_{w}_total") for w in
                         ("samples", "cpu_seconds"))  # fmt: skip
        seconds = self.run.watched[1].seconds[-1]
        self.say("soak_pm_cores", busy / seconds, "cores", 0.1,
                 samples_per_s=round(samples / seconds),
                 overflows=self.run.watch.value("spanlite_pm_overflows_total"))  # fmt: skip

    def counters(self) -> None:
        """PM sampling: figures of the steps."""
        if self.run.stand_in:
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
        if self.run.stand_in:
            return
        from spanlite_collectors.agent.nvml import FAMILIES, OPTIONAL

        words = {
            f"{name}_total" if counts else name
            for name, (_, counts) in FAMILIES.items()
            if name not in OPTIONAL
        }
        there = words & self.run.watch.families
        self.say("soak_nvml_series", len(there), "series", len(words), True,
                 missing=sorted(words - there),
                 counters="hw_gpu_counter_ratio" in self.run.watch.families)  # fmt: skip

    def triggers(self) -> None:
        """What opened windows, and how soon."""
        reasons = Counter(w.reason for w in self.found.windows.values())
        self.say("soak_windows", len(self.found.windows), "windows", reasons=dict(reasons))
        slow = sorted(e["end_ns"] for e in self.run.events if e["what"] == "slow step")
        firsts = [ns for ns, before in zip(slow, [0, *slow], strict=False) if ns - before > 10**9]
        opened = sorted(w.first_step_ns for w in self.found.windows.values() if w.reason == "slo")
        self.say("soak_slo_window_ms", *self._after(firsts, opened), 200)
        asked = sorted(w.first_step_ns for w in self.found.windows.values() if w.reason == "queue")
        grown = [e["at_ns"] for e in self.run.events if e["what"] == "queue"]
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
