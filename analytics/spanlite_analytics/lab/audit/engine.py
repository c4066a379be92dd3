"""Audits one module: runs each kernel in a few scenarios under all rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spanlite_analytics.lab.audit.findings import Finding, in_order
from spanlite_analytics.lab.audit.flow import endless_loops, graph_of
from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Function, Instruction, Module, Place
from spanlite_analytics.lab.audit.state import Scenario
from spanlite_analytics.lab.audit.steps import execute
from spanlite_analytics.lab.audit.watch.lanes import RedundantShuffle
from spanlite_analytics.lab.audit.watch.matrix import MatrixOrder
from spanlite_analytics.lab.audit.watch.order import Handovers, Order, finish
from spanlite_analytics.lab.audit.watch.race import SharedRace
from spanlite_analytics.lab.audit.watch.traffic import Traffic

Block = tuple[int, int, int]
#: A branch on the input is turned round in a run of its own; so many at most a kernel.
TURNED_RUNS = 10
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_FUNCTION = re.compile(r"Function properties for (\S+)")


@dataclass(slots=True)
class _Report:
    """Collects the findings of a kernel."""

    kernel: str
    findings: list[Finding] = field(default_factory=list)

    def __call__(self, rule: str, instruction: Instruction, evidence: str) -> None:
        place = instruction.place
        self.findings.append(
            Finding(
                rule,
                self.kernel,
                place.file,
                place.line,
                evidence,
                instruction.ptx_line,
                instruction.text,
            )
        )


def block_of(entry: Function) -> Block:
    """The block to run: what the kernel asks for, else 256 threads in as many axes as it reads."""
    if entry.block:
        return entry.block
    read = {text for i in entry.code for text in i.operands if text.startswith(("%tid.", "%ntid."))}
    # A rank within the block, as cooperative groups compute it, reads all axes of any block.
    if {"%tid.z", "%ntid.y", "%ntid.x"} <= read:
        return (256, 1, 1)
    if "%tid.z" in read:
        return (8, 8, 4)
    return (32, 8, 1) if "%tid.y" in read else (256, 1, 1)


def scenarios(block: Block) -> list[Scenario]:
    """Whole data, data that ends within the block, next to no data; first and later blocks."""
    threads = block[0] * block[1] * block[2]
    cut = 1000
    return [
        Scenario(block, 1, 8, 2048),
        Scenario(block, cut // max(block[0], 1), max(8, cut // block[0] + 1), cut, seed=1),
        Scenario(block, 0, 8, 3, seed=2),
        Scenario(block, 0, 8, 4 * threads, seed=3),
    ]


def audit(
    module: Module,
    counts: str = "",
    blocks: Mapping[str, Block] | None = None,
    unjudged: list[str] | None = None,
) -> list[Finding]:
    """Findings of all kernels of a module.

    `counts` is what `ptxas -v` said of it, for spills. `blocks` gives the block of a kernel by
    name, or by "" for all. Kernels whose PTX says what is not understood go to `unjudged`; without
    it, the error is raised.
    """
    findings = list(_local_memory(module, counts))
    for entry in module.entries:
        given = blocks or {}
        block = given.get(entry.name) or given.get("") or block_of(entry)
        try:
            findings += audit_kernel(module, entry, block)
        except (LookupError, ValueError, TypeError, StopIteration, AttributeError):
            # PTX has more instructions and spellings than the machine knows; the others go on.
            if unjudged is None:
                raise
            unjudged.append(entry.name)
    return in_order(findings)


def audit_kernel(module: Module, entry: Function, block: Block) -> list[Finding]:
    """Findings of one kernel that is launched with `block`."""
    report = _Report(entry.name)
    handovers = Handovers()
    for index in endless_loops(graph_of(entry)):
        report("endless-loop", entry.code[index], "no way leads out of it")
    ways: dict[tuple[str, int], set[bool]] = {}
    machine = None
    for place, scenario in enumerate(scenarios(block)):
        machine = _run(module, entry, scenario, report, handovers, measure=place == 0)
        for key, seen in machine.ways.items():
            ways.setdefault(key, set()).update(seen)
    base = scenarios(block)[0]
    one_sided = [key for key, seen in ways.items() if len(seen) == 1][:TURNED_RUNS]
    for key in one_sided:
        turned = replace(base, turned=frozenset({key}))
        machine = _run(module, entry, turned, report, handovers, measure=False)
    if machine is not None:
        finish(machine, handovers)
    return report.findings


def _run(
    module: Module,
    entry: Function,
    scenario: Scenario,
    report: _Report,
    handovers: Handovers,
    measure: bool,
) -> Machine:
    machine = Machine(module, entry, scenario, [], execute, report)
    race, shuffles, traffic = SharedRace(machine), RedundantShuffle(machine), Traffic()
    machine.watchers = [race, shuffles, Order(machine, handovers), MatrixOrder(machine)]
    machine.watchers += [traffic] if measure else []
    machine.run()
    for first, last in machine.barriers.mixed:
        line = f" at line {last.place.line}" if last.place.line else ""
        report(
            "divergent-barrier",
            first,
            f"some threads wait here, others at another barrier{line}: they count as one",
        )
    if measure:
        traffic.finish(machine)
        shuffles.finish(machine)
    return machine


def _local_memory(module: Module, counts: str) -> Iterable[Finding]:
    """Spills by ptxas's own count; arrays by their `.local` variable."""
    name = ""
    for line in counts.splitlines():
        named = _FUNCTION.search(line)
        name = named.group(1) if named else name
        found = _SPILL.search(line)
        function = module.by_name.get(name)
        if not found or function is None:
            continue
        stack, stores, loads = map(int, found.groups())
        arrays = [v for v in function.variables if v.space == "local"]
        place = function.code[0].place
        if stores or loads:
            what = f"{stores} bytes of spill stores and {loads} bytes of spill loads"
            yield Finding("local-memory", name, place.file, place.line, what)
        elif arrays and stack:
            at = _first_local(function) or place
            what = f"{stack} bytes of stack for arrays that are indexed at run time"
            yield Finding("local-memory", name, at.file, at.line, what)


def _first_local(function: Function) -> Place | None:
    uses = (i.place for i in function.code if i.has("local") and i.name in ("ld", "st"))
    return next(uses, None)
