"""From a launch and its loop to what is known of its time, and to the numbers the fit sees."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

from spanlite.occupancy import SmLimits, limits_of
from spanlite.occupancy.limits import SUB_PARTITIONS, WARP_THREADS

from spanlite_analytics.lab.occupancy import Launch, on
from spanlite_analytics.lab.predict.work import Work

#: A warp that reads at random fetches a sector for each lane.
SECTOR_BYTES = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU: its SMs, clock, L2 and the bandwidths that a copy reaches."""

    sm: SmLimits
    sms: int
    clock_hz: float
    l2_bytes: float
    l2_bytes_per_s: float
    dram_bytes_per_s: float
    flops_per_s: float
    #: From the end of one launch to the start of the next.
    gap_s: float


#: 132 SMs; clock as measured; bandwidth and peak of memory and FP32 from the datasheet; the L2's
#: is a round number among published measurements. The fit corrects what is not so.
H200 = Machine(
    limits_of("9.0"), 132, 1.98e9, 60 * 2**20, 5.5e12, dram_bytes_per_s=4.8e12, flops_per_s=67e12,
    gap_s=2e-6,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """One launch of one kernel. `footprint_bytes`: distinct bytes that it touches."""

    launch: Launch
    work: Work
    #: Elements that a thread takes in a turn, and all of them.
    unroll: int
    elements: int
    footprint_bytes: float
    random_loads: bool = False
    random_stores: bool = False
    #: Bytes that an element moves between SM and L2; 0: as many as the code loads and stores.
    element_bytes: float = 0


@dataclass(frozen=True, slots=True)
class Known:
    """What can be said without a fit."""

    #: Blocks that an SM holds.
    blocks: int
    #: Registers, threads and shared memory over what a block asks for, as course notes have it.
    published_occupancy: float
    theoretical_occupancy: float
    #: Of the SMs that have any block, averaged over the waves.
    wave_occupancy: float
    #: max(bytes / bandwidth, operations / peak): the roofline.
    roofline_s: float
    #: The longest of issue, latency, L2 and DRAM.
    bound_s: float
    features: dict[str, float]


#: What each feature is, for people; `log` is natural, of seconds, bytes or numbers.
MEANING = {
    "log_issue": "time if the schedulers and pipes did nothing else",
    "log_latency": "time if every turn waited for all its loads in a row",
    "log_l2": "time if the L2 did nothing else",
    "log_dram": "time if memory did nothing else",
    "log_bound": "the longest of the four",
    "log_turns": "turns of a thread's loop",
    "log_unroll": "elements a thread takes in a turn",
    "log_l2_share": "distinct bytes over the L2's size",
    "registers": "of a thread",
    "log_shared": "shared memory of a block",
    "log_block": "threads of a block",
    "log_blocks_per_sm": "blocks of the grid for each SM that has any",
    "log_waves": "grid over the blocks that the GPU holds",
    "tail": "share of the block slots that is used in all waves",
    "theoretical": "theoretical occupancy",
    "wave": "occupancy over the waves, if all blocks took as long",
    "active": "share of the SMs that have a block",
    "log_flight": "bytes that an SM's resident warps load in a turn",
    "random_loads": "whether lanes load at random",
    "atomics": "whether the loop has atomics",
    "barriers": "whether it has barriers",
    "stores": "bytes stored of those moved",
    "random_stores": "whether lanes store, or add by atomics, at random",
    "spills": "loads and stores of spilled registers for each element",
    "shared_ops": "accesses to shared memory and shuffles for each element",
    "log_intensity": "clocks of issue for each byte",
    "log_latency_over_issue": "clocks of waiting for each of issue, in a turn of one warp",
}


def know(query: Query, machine: Machine) -> Known | None:
    """None where no block fits."""
    launch, work = query.launch, query.work
    blocks = int(on(machine.sm, launch).blocks)
    if not blocks or not launch.grid_blocks:
        return None
    theoretical = blocks * launch.warps / machine.sm.max_warps
    active = min(launch.grid_blocks, machine.sms)
    on_sm = launch.grid_blocks / active
    waves = ceil(on_sm / blocks - 1e-9)
    resident = on_sm / waves * launch.warps
    turns = _turns(query)
    moved = _moved_bytes(query, turns)
    miss = _miss_fraction(query, machine)
    missed = moved * miss
    wait = work.latency_clocks + miss * (work.memory_clocks - work.latency_clocks)
    all_warps = launch.grid_blocks * launch.warps
    times = {
        "issue": all_warps * turns * work.issue_clocks / (SUB_PARTITIONS * active),
        "latency": waves * turns * wait,
    }
    seconds = {name: clocks / machine.clock_hz for name, clocks in times.items()}
    seconds["l2"] = moved / machine.l2_bytes_per_s * machine.sms / active
    seconds["dram"] = missed / machine.dram_bytes_per_s
    flops = work.flops * turns * all_warps * WARP_THREADS
    bound = max(seconds.values()) + machine.gap_s
    roofline = max(moved / machine.dram_bytes_per_s, flops / machine.flops_per_s)
    flight = resident * WARP_THREADS * work.load_bytes * (8 if query.random_loads else 1)
    stored = work.store_bytes / max(work.load_bytes + work.store_bytes, 1)
    features = {f"log_{name}": log(value + 1e-7) for name, value in seconds.items()} | {
        "log_bound": log(bound),
        "log_turns": log(turns),
        "log_unroll": log(query.unroll),
        "log_l2_share": log(query.footprint_bytes / machine.l2_bytes),
        "registers": float(launch.registers),
        "log_shared": log(1 + launch.shared_bytes),
        "log_block": log(launch.threads),
        "log_blocks_per_sm": log(on_sm),
        "log_waves": log(launch.grid_blocks / (blocks * machine.sms)),
        "tail": on_sm / blocks / waves,
        "theoretical": theoretical,
        "wave": resident / machine.sm.max_warps,
        "active": active / machine.sms,
        "log_flight": log(1 + flight),
        "random_loads": float(query.random_loads),
        "atomics": float(work.atomics > 0),
        "barriers": float(work.barriers > 0),
        "stores": stored,
        "random_stores": float(query.random_stores),
        "spills": log(1 + work.spills / query.unroll),
        "shared_ops": log(1 + work.shared / query.unroll),
        "log_intensity": log(work.issue_clocks / max(work.load_bytes + work.store_bytes, 1)),
        "log_latency_over_issue": log(wait / work.issue_clocks),
    }
    return Known(
        blocks,
        published_occupancy(launch, machine.sm),
        theoretical,
        resident / machine.sm.max_warps,
        roofline + machine.gap_s,
        bound,
        features,
    )


def _turns(query: Query) -> float:
    """Turns of a thread, the rest of fewer than `unroll` elements among them."""
    threads = query.launch.grid_blocks * query.launch.threads
    return max(query.elements / (threads * query.unroll), 1 / query.unroll)


def _moved_bytes(query: Query, turns: float) -> float:
    """Bytes between SMs and L2."""
    work, threads = query.work, query.launch.grid_blocks * query.launch.threads
    if query.element_bytes:
        return threads * turns * query.unroll * query.element_bytes
    loaded = work.loads * SECTOR_BYTES if query.random_loads else work.load_bytes
    stored = work.stores * SECTOR_BYTES if query.random_stores else work.store_bytes
    return threads * turns * (loaded + stored)


def _miss_fraction(query: Query, machine: Machine) -> float:
    """Of the sectors, those that the L2 cannot have kept from the launch before."""
    return max(0.0, min(1.0, 1.5 - machine.l2_bytes / max(query.footprint_bytes, 1.0)))


def published_occupancy(launch: Launch, sm: SmLimits) -> float:
    """As course notes and blogs have it: the least of four divisions, without granularity."""
    blocks = min(
        sm.max_threads // launch.threads,
        sm.registers // max(launch.registers * launch.threads, 1),
        sm.shared_bytes // max(launch.shared_bytes, 1),
        sm.max_blocks,
    )
    return blocks * launch.threads / sm.max_threads
