"""The findings: what limits the kernel, the evidence, and what to try.

Each rule looks at one thing and gives at most one finding. Its weight, 0 to 1, is about how
much of the kernel's time the thing may cost; the findings come with the largest first.
"""

from __future__ import annotations

from collections.abc import Callable

from spanlite.occupancy import Limiter

from spanlite_analytics.lab.explain.case import Case
from spanlite_analytics.lab.explain.finding import BOUND_PCT, Finding
from spanlite_analytics.lab.explain.sampled_rules import RULES as SAMPLED_RULES
from spanlite_analytics.lab.explain.stalls import latency
from spanlite_analytics.lab.occupancy import needs
from spanlite_analytics.words import time_words

#: A launch takes about so long on the host; a graph node's start-up a good part of one.
SHORT_NS = 5_000
LOW_OCCUPANCY = 0.5
#: Waves after which an uneven last one no longer matters.
MANY_WAVES = 6
SECTOR_BYTES = 32


def explain(case: Case) -> list[Finding]:
    """All findings, the weightiest first; never empty."""
    found = [finding for rule in _RULES if (finding := rule(case)) is not None]
    if not found:
        evidence = "the grid fills the GPU and the SMs are full enough"
        if case.counted is None and case.sampled is None:
            advice = "profile it: which of memory, tensor pipe or latency bounds it is not known"
        else:
            advice = "look at the roofline: does it move more bytes or do more work than it must?"
        found = [Finding(0.0, "Nothing stands out", evidence, advice)]
    return sorted(found, key=lambda finding: -finding.weight)


def _fails(case: Case) -> Finding | None:
    if int(case.occupancy.blocks):
        return None
    return Finding(
        1.0,
        "Such a launch cannot run on this GPU",
        f"one block needs more than an SM has (limited by {_limiters(case)})",
        "check --cc and --gpu; else fewer threads, registers or shared memory a block",
    )


def _grid(case: Case) -> Finding | None:
    blocks, grid = case.launch.grid_blocks, case.grid
    if grid is None or blocks >= case.sms:
        return None
    idle = 1 - blocks / case.sms
    return Finding(
        idle,
        "The grid is smaller than the GPU",
        f"{blocks} blocks on {case.sms} SMs: at least {case.sms - blocks} SMs have nothing to do",
        "split the work finer (split-K, smaller tiles), batch more requests, or run other kernels "
        "beside it on another stream",
    )


def _tail(case: Case) -> Finding | None:
    grid = case.grid
    if grid is None or not 1 < grid.waves < MANY_WAVES or grid.used_fraction > 0.8:
        return None
    return Finding(
        1 - grid.used_fraction,
        "The last wave is mostly empty",
        f"{grid.waves:.2f} waves: {grid.used_fraction:.0%} of the block slots are used",
        "choose a tile or block size that makes whole waves, or a persistent kernel",
    )


def _short(case: Case) -> Finding | None:
    duration = case.duration_ns
    if duration is None or duration >= SHORT_NS:
        return None
    return Finding(
        0.6 * (1 - duration / SHORT_NS) + 0.1,
        "It is so short that starting it counts",
        f"{time_words(duration)} a launch",
        "fuse it with its neighbours, or put the sequence into a CUDA graph",
    )


def _occupancy(case: Case) -> Finding | None:
    got = case.occupancy
    fraction, blocks = float(got.fraction), int(got.blocks)
    if fraction >= LOW_OCCUPANCY or not blocks or _busiest(case)[1] >= BOUND_PCT:
        return None
    weight = 0.5 * (1 - fraction / LOW_OCCUPANCY)
    tensor = case.counter("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active")
    advice = _more_blocks(case, blocks + 1)
    if case.launch.shared_bytes > 64 * 1024 or (tensor or 0) > 1:
        weight *= 0.5
        advice += "; a kernel that pipelines tiles by itself may need no more warps"
    return Finding(
        weight,
        "Few warps hide its waits",
        f"{int(got.warps)} of {case.sm.max_warps} warps an SM ({fraction:.0%}), limited by "
        f"{_limiters(case)}",
        advice,
    )


def _more_blocks(case: Case, blocks: int) -> str:
    most = needs(case.sm, case.launch, blocks)
    over = [
        f"at most {limit:,} {word}"
        for key, word, now in (
            ("registers", "registers a thread", case.launch.registers),
            ("shared_bytes", "bytes of shared memory a block", case.launch.shared_bytes),
        )
        if (limit := most.get(key, now)) < now
    ]
    if not over:
        return "larger blocks, since their number is what limits"
    return f"for {blocks} blocks an SM: " + " and ".join(over)


def _limiters(case: Case) -> str:
    return Limiter(int(case.occupancy.limiters)).words


_UNITS = {
    "device memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1 and shared memory": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "the tensor pipe": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "the SM's pipes": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}
_BOUND_ADVICE = {
    "device memory": "move fewer bytes: fuse with its neighbours, narrower types, reuse in L2",
    "L2": "keep more in shared memory or registers; larger tiles read each operand less often",
    "L1 and shared memory": "check bank conflicts and coalescing; wider accesses, register tiles",
    "the tensor pipe": "it does what it can; narrower types or less work",
    "the SM's pipes": "fewer instructions: vector accesses, unrolling, the tensor pipe",
}


def _busiest(case: Case) -> tuple[str, float]:
    """The busiest unit and its percent; 0 without counters."""
    known = {unit: case.counter(metric) or 0.0 for unit, metric in _UNITS.items()}
    unit = max(known, key=lambda u: known[u])
    return unit, known[unit]


def _bound(case: Case) -> Finding | None:
    if case.counted is None:
        return None
    unit, percent = _busiest(case)
    if percent >= BOUND_PCT:
        what, evidence = f"Bound by {unit}", f"{percent:.0f}% of what it can do"
        return Finding(percent / 100, what, evidence, _BOUND_ADVICE[unit])
    found = latency(case.counted.values)
    if found is None:
        return None
    evidence = f"no unit is busy (most: {unit}, {percent:.0f}%); {found.evidence}"
    return Finding(1 - percent / 100, f"Bound by latency: {found.what}", evidence, found.advice)


def _conflicts(case: Case) -> Finding | None:
    parts = []
    for kind in ("ld", "st"):
        conflicts = case.counter(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum")
        fronts = case.counter(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum")
        if conflicts and fronts and conflicts > 0.1 * fronts:
            word = "loads" if kind == "ld" else "stores"
            share = conflicts / fronts
            degree = fronts / max(fronts - conflicts, 1)
            parts.append((share, f"{share:.0%} of the wavefronts of {word} (degree {degree:.1f})"))
    if not parts:
        return None
    return Finding(
        max(share for share, _ in parts) * 0.9,
        "Shared-memory bank conflicts",
        " and ".join(text for _, text in parts),
        "`spanlite lab banks` with the access finds the padding or swizzle",
    )


def _coalescing(case: Case) -> Finding | None:
    used, listed = [], []
    for kind, word in (("ld", "loads"), ("st", "stores")):
        ratio = case.counter(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{kind}.ratio")
        count = case.counter(f"smsp__sass_inst_executed_op_global_{kind}.sum")
        most = ""
        if ratio is None:
            ratio, count = _at_most_of_a_sector(case, kind)
            most = "at most "
        # A bound of half is reached by no access that is coalesced.
        few = ratio and (ratio < SECTOR_BYTES / 2 or (most and ratio == SECTOR_BYTES / 2))
        if ratio and few and (count or 0) > case.launch.grid_blocks:
            used.append(ratio)
            listed.append(f"{most}{ratio:.0f} of {SECTOR_BYTES} in {word}")
    if not used:
        return None
    return Finding(
        (1 - min(used) / SECTOR_BYTES) * 0.8,
        "Global memory is used in pieces",
        "bytes used of each sector: " + ", ".join(listed),
        "let neighbouring lanes touch neighbouring addresses; go by way of shared memory",
    )


#: A warp's widest access: 16 bytes a lane.
_WIDEST_BYTES = 512


def _at_most_of_a_sector(case: Case, kind: str) -> tuple[float | None, float | None]:
    """Bytes, by sectors and requests: the range profiler does not see how wide an access is."""
    unit = f"pipe_lsu_mem_global_op_{kind}.sum"
    sectors = case.counter(f"l1tex__t_sectors_{unit}")
    requests = case.counter(f"l1tex__t_requests_{unit}")
    if not sectors or not requests:
        return None, None
    return min(_WIDEST_BYTES * requests / sectors, SECTOR_BYTES), requests


def _local(case: Case) -> Finding | None:
    loads, stores = _local_accesses(case, "ld"), _local_accesses(case, "st")
    stack = case.resources.stack_bytes if case.resources else 0
    if not loads + stores and not stack:
        return None
    total = case.counter("smsp__inst_executed.sum")
    share = (loads + stores) / total if total else 0.0
    evidence = [f"{int(loads + stores):,} local accesses of warps"] if loads + stores else []
    evidence += [f"{stack} bytes of stack a thread"] if stack else []
    return Finding(
        min(0.5 + 4 * share, 0.95),
        "Registers spill, or arrays live in local memory",
        ", ".join(evidence),
        "more registers a thread (-maxrregcount, __launch_bounds__), constant indices into arrays, "
        "or shared memory for them",
    )


def _local_accesses(case: Case, kind: str) -> float:
    """Of warps; the range profiler has them as requests to L1."""
    for name in (f"smsp__sass_inst_executed_op_local_{kind}.sum",
                 f"l1tex__t_requests_pipe_lsu_mem_local_op_{kind}.sum"):  # fmt: skip
        found = case.counter(name)
        if found is not None:
            return found
    return 0.0


def _atomics(case: Case) -> Finding | None:
    names = ("smsp__inst_executed_op_global_red.sum", "smsp__inst_executed_op_global_atom.sum")
    count = sum(case.counter(name) or 0 for name in names)
    total = case.counter("smsp__inst_executed.sum")
    percent = _busiest(case)[1]
    if not total or count < 0.02 * total or percent >= BOUND_PCT / 2:
        return None
    return Finding(
        1 - percent / 200,
        "Atomics to few addresses wait for each other",
        f"{int(count):,} atomic instructions of warps, {count / total:.0%} of all, and no unit "
        f"above {percent:.0f}%",
        "add up first: within the warp (shuffles), within the block (shared memory), then one "
        "atomic a block",
    )


def _uneven(case: Case) -> Finding | None:
    active = case.counter("sm__warps_active.avg.pct_of_peak_sustained_active")
    theory = float(case.occupancy.fraction) * 100
    if active is None or not theory or active >= 0.6 * theory or case.launch.grid_blocks < case.sms:
        return None
    return Finding(
        0.5 * (1 - active / theory),
        "Fewer warps are there than could be",
        f"{active:.0f}% of an SM's warps on average; {theory:.0f}% fit",
        "blocks end at different times or start too slowly: fewer, longer blocks; even work",
    )


def _varies(case: Case) -> Finding | None:
    seen = case.seen
    if seen is None or seen.launches < 20 or seen.max_ns < 3 * seen.median_ns:
        return None
    return Finding(
        0.2,
        "The same launch takes very different times",
        f"median {time_words(seen.median_ns)}, longest {time_words(seen.max_ns)}",
        "look at what runs beside it (`spanlite trace`), and at clocks and power",
    )


_RULES: tuple[Callable[[Case], Finding | None], ...] = (
    _fails,
    _grid,
    _tail,
    _short,
    _occupancy,
    _bound,
    _conflicts,
    _coalescing,
    _local,
    _atomics,
    _uneven,
    _varies,
    *SAMPLED_RULES,
)
