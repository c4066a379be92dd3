"""The agent in the life of a process: starts, forks, ends, other profilers, trouble."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builds import OPTIONS, Build, Hosts
from rings import RingReader

Until = Callable[[Callable[[], bool]], None]

#: Of the one long run: 50 million took 18 s on two cores.
LONG_RECORDS = int(os.environ.get("SPANLITE_LONG_RECORDS", "3000000"))
#: How much a process may be larger in the end than after a third of its run: what the
#: stand-in has not delivered at that moment.
GROWTH_KIB = 4 << 10


@pytest.mark.parametrize("refusal", ["register", "kernels"])
def test_where_cupti_refuses_ranges_go_on(build: Build, hosts: Hosts, refusal: str) -> None:
    """MPS, or a profiler that holds the device."""
    process = hosts.start(
        build, "steps=50", command=["env", f"STANDIN_REFUSE={refusal}", str(build.program("host"))]
    )
    ended = hosts.end(process)
    reader = hosts.reader()
    reader.drain()
    assert ended.stderr.count("spanlite agent") == 1
    assert reader.state()["disabled"] == 1
    assert reader.reason()
    assert len(reader.records.step) == 50
    assert len(reader.records.kernel) == 0


def test_without_cupti_ranges_go_on(plain: Build, hosts: Hosts) -> None:
    ended = hosts.run(plain, "steps=20", cupti="/nowhere/libcupti.so.13")
    reader = hosts.reader()
    reader.drain()
    assert ended.stderr.count("spanlite agent") == 1
    assert "libcupti" in reader.reason()
    assert len(reader.records.step) == 20


def test_off_makes_no_ring(plain: Build, hosts: Hosts) -> None:
    ended = hosts.run(plain, "steps=20", level="off")
    assert list(hosts.rings.iterdir()) == []
    assert ended.reports["host"]["register"] == 0


def test_a_folder_that_cannot_be_made_is_said_once(plain: Build, hosts: Hosts) -> None:
    (hosts.rings / "file").write_text("")
    process = hosts.start(plain, "steps=20", dir=hosts.rings / "file" / "rings")
    assert hosts.end(process).stderr.count("spanlite agent: off") == 1


def test_settings_that_make_no_sense_are_said_and_ignored(plain: Build, hosts: Hosts) -> None:
    ended = hosts.run(plain, "steps=5", level="sometimes", budget_pct="lots", buffer_bytes=1)
    assert ended.stderr.count("keeping the default") == 2
    assert len(list(hosts.rings.glob("*.ring"))) == 1


def test_a_misspelt_setting_is_said(plain: Build, hosts: Hosts) -> None:
    said = hosts.run(plain, "steps=5", level="ranges", budget_percent=2, port="tcp://10.0.0.1",
                     service_host="10.0.0.1").stderr  # fmt: skip
    assert said == (
        "spanlite agent: SPANLITE_AGENT_BUDGET_PERCENT is no setting of the agent and changes "
        "nothing\n"
    )


def test_flags_and_lists_are_taken_whole_or_not_at_all(plain: Build, hosts: Hosts) -> None:
    """A word that is none switches nothing on, and nothing off."""
    words = ["steps=30", "kernels=2", "step_us=100"]
    wrong = hosts.run(plain, *words, level="continuous", api_calls="maybe", activities="sync,foo")
    assert wrong.stderr.count("keeping the default") == 2
    reader = hosts.reader()
    reader.drain()
    assert len(reader.records.sync) > 0 and reader.wish("api_calls") == 0
    for word, on in {"false": False, "no": False, "0": False, "yes": True, "1": True}.items():
        process = hosts.start(plain, *words, level="ranges", api_calls=word, activities="")
        assert hosts.end(process).stderr == ""
        assert hosts.reader(process.pid).wish("api_calls") == on


def test_ranges_make_no_cupti_call(build: Build, hosts: Hosts) -> None:
    ended = hosts.run(build, "steps=100", level="ranges")
    assert ended.reports["host"]["register"] == ended.reports["host"]["flush"] == 0
    reader = hosts.reader()
    reader.drain()
    names = reader.records.names(reader.records.range)
    assert (names.count("QKV"), names.count("step:decode")) == (400, 100)
    ranges = reader.records.range
    steps = ranges[[n == "step:decode" for n in names]]
    inner = ranges[[n == "QKV" for n in names]]
    assert set(inner["parent"]) == set(steps["id"])


def test_ranges_of_all_kinds_of_names_and_domains(build: Build, hosts: Hosts) -> None:
    """Two domains that do not nest, a buffer that is used again, registered and wide texts."""
    hosts.run(build, "steps=2", "mixed=1", level="ranges")
    reader = hosts.reader()
    reader.drain()
    ranges = reader.records.range
    names = np.array(reader.records.names(ranges))
    ranges, names = ranges[names != "start"], names[names != "start"]
    assert list(names[:120]) == [name for i in range(40) for name in ("grüße", f"name {i}", "kept")]
    first, own, wide, kept = ranges[:120], ranges[1:120:3], ranges[:120:3], ranges[2:120:3]
    assert (own["depth"] == 0).all() and (kept["depth"] == 1).all() and (wide["depth"] == 2).all()
    assert (kept["parent"] == own["id"]).all() and (wide["parent"] == kept["id"]).all()
    assert len(set(first["id"])) == 120 and (first["id"] != 0).all()
    domains = [reader.records.strings[int(number)] for number in kept["domain"]]
    assert set(domains) == {"other"} and (own["domain"] == 0).all()
    deep = ranges[names == "deep"]
    assert list(deep["depth"]) == list(range(40))[::-1]
    assert (first["start"] <= first["end"]).all()
    assert list(names).count("step:decode") == 2 and "late" not in names


def test_names_and_their_numbers(build: Build, tmp_path: Path) -> None:
    command = [str(build.program("names_test")), str(tmp_path)]
    done = subprocess.run(command, env=OPTIONS, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("level", ["ranges", "windows", "continuous"])
def test_a_forked_child_has_its_own_ring(build: Build, hosts: Hosts, level: str) -> None:
    """Of ranges alone: CUDA does not work in it, and CUPTI would wait for threads it has not."""
    if build.name == "tsan":
        pytest.skip("the thread sanitizer follows no threads of a forked child")
    process = hosts.start(build, "steps=60", "fork_at=20", level=level)
    reports = hosts.end(process).reports
    assert len(list(hosts.rings.glob("*.ring"))) == 2
    for who, steps in {"parent": 60, "child": 40}.items():
        reader = hosts.reader(reports[who]["pid"])
        assert not reader.alive
        reader.drain()
        assert len(reader.records.step) == steps
        assert set(reader.records.names(reader.records.step)) == {"step:decode"}
    assert len(reader.records.kernel) == 0 and reader.state()["disabled"] == 1  # the child's


def test_a_child_takes_no_wish_for_kernels(plain: Build, hosts: Hosts, until: Until) -> None:
    """The daemon sets the level of each process it finds."""
    words = ["steps=100000000", "fork_at=20", "step_us=100"]
    hosts.start(plain, *words, level="windows")
    until(lambda: len(list(hosts.rings.glob("*.ring"))) == 2)
    newest = max(hosts.rings.glob("*.ring"), key=lambda path: int(path.stem.split("-")[1]))
    pid = int(newest.stem.split("-")[0])
    child = hosts.reader(pid)
    try:
        child.control(level=3)
        steps = child.state()["steps"]
        until(lambda: child.state()["steps"] > steps + 1000)
        assert child.state()["windows"] == child.state()["steps_covered"] == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_children_that_only_exec_make_no_ring(plain: Build, hosts: Hosts) -> None:
    program = (
        "import ctypes, os, subprocess\n"
        "shim = ctypes.CDLL('libnvtx_shim.so'); shim.shim_push(b'step:1'); shim.shim_pop()\n"
        "os.system('true'); subprocess.run(['true'], preexec_fn=lambda: None)\n"
    )
    process = hosts.start(plain, command=[sys.executable, "-c", program], level="ranges")
    hosts.end(process)
    assert len(list(hosts.rings.glob("*.ring"))) == 1


def _ranges_of(plain: Build, hosts: Hosts, program: str) -> dict[str, tuple[int, int, int]]:
    """Name -> id, parent's id and length in ns of each range that a program has."""
    start = (
        "import ctypes, os, time\n"
        "from pathlib import Path\n"
        "from spanlite_collectors.agent.layout import Level\n"
        "from spanlite_collectors.agent.ring import Ring, rings_in\n"
        "shim = ctypes.CDLL('libnvtx_shim.so')\n"
        "push, pop = lambda name: shim.shim_push(name.encode()), shim.shim_pop\n"
        "def level(which):\n"
        "    ring = Ring(next(iter(rings_in(Path(os.environ['SPANLITE_AGENT_DIR'])))))\n"
        "    ring.set_control('level', which); ring.close()\n"
    )
    command = [sys.executable, "-c", start + program]
    hosts.end(hosts.start(plain, command=command, level="ranges"))
    reader = hosts.reader()
    reader.drain()
    ranges = reader.records.range
    lengths = ranges["end"] - ranges["start"]
    whole = zip(ranges["id"], ranges["parent"], lengths, strict=True)
    return dict(zip(reader.records.names(ranges), whole, strict=True))


def test_ranges_keep_their_ends_while_the_level_is_off(plain: Build, hosts: Hosts) -> None:
    ranges = _ranges_of(
        plain,
        hosts,
        "push('request'); push('step:1'); level(Level.OFF)\n"
        "push('unseen'); level(Level.RANGES); push('seen'); pop(); pop()\n"
        "push('after'); pop(); time.sleep(0.02); pop(); time.sleep(0.02); pop()\n",
    )
    assert set(ranges) == {"request", "step:1", "seen", "after"}
    step = ranges["step:1"]
    assert ranges["seen"][1] == ranges["after"][1] == step[0]
    assert step[2] >= 20_000_000
    assert ranges["request"][2] >= step[2] + 20_000_000


def test_ranges_for_which_there_is_no_room_end_no_others(plain: Build, hosts: Hosts) -> None:
    ranges = _ranges_of(
        plain,
        hosts,
        "push('outer')\n"
        "for _ in range(100_005): push('inner')\n"
        "for _ in range(100_005): pop()\n"
        "time.sleep(0.02); pop()\n",
    )
    assert ranges["outer"][1] == 0
    assert ranges["outer"][2] >= 20_000_000


def test_a_python_host_unmodified(plain: Build, hosts: Hosts) -> None:
    """As torch does it: NVTX and the driver reached from Python, the agent by environment."""
    program = (
        "import ctypes\n"
        "cuda = ctypes.CDLL('libcuda.so.1'); shim = ctypes.CDLL('libnvtx_shim.so')\n"
        "cuda.cuInit(0); cuda.standin_context(0)\n"
        "for step in range(40):\n"
        "    shim.shim_push(b'step:%d' % step)\n"
        "    for k in range(3): cuda.standin_launch(7, b'kernel', ctypes.c_uint64(10_000))\n"
        "    cuda.cuCtxSynchronize(); shim.shim_pop()\n"
        "shim.shim_mark('gr\\u00fc\\u00dfe'.encode())\n"
    )
    process = hosts.start(plain, command=[sys.executable, "-c", program], level="continuous")
    hosts.end(process)
    reader = hosts.reader()
    reader.drain()
    assert len(reader.records.kernel) == 120
    assert reader.records.names(reader.records.range)[-1] == "grüße"


def test_exit_without_flush_leaves_what_was_delivered(build: Build, hosts: Hosts) -> None:
    ended = hosts.run(build, "steps=100", "exit=1", level="continuous")
    reader = hosts.reader()
    assert not reader.alive
    reader.drain()
    assert len(reader.records.step) == 100
    assert ended.code == 0


def test_closing_the_library_unmaps_nothing(build: Build, hosts: Hosts) -> None:
    hosts.run(build, "steps=100", "exit=2", level="ranges")
    reader = hosts.reader()
    reader.drain()
    assert len(reader.records.step) == 200


def test_kill_leaves_a_readable_ring(plain: Build, hosts: Hosts, until: Until) -> None:
    for wait in (0.0, 0.05, 0.2):
        process = hosts.start(plain, "steps=100000000", "step_us=100", level="continuous")
        reader = hosts.reader(process.pid)
        until(lambda reader=reader: reader.state()["steps"] > 20)  # type: ignore[misc]
        time.sleep(wait)
        process.kill()
        process.wait()
        while reader.drain() or reader.skip_torn():
            pass
        steps = reader.records.step
        assert not reader.alive
        assert (np.diff(steps["number"].astype(np.int64)) == 1).all()


def test_a_daemon_that_comes_later_gets_all_names_anew(
    plain: Build, hosts: Hosts, until: Until
) -> None:
    process = hosts.start(plain, "steps=100000000", "step_us=100", level="ranges")
    first = hosts.reader(process.pid)
    until(lambda: (first.drain(), len(first.records.step) > 10)[1])
    first.close()
    hosts.readers.clear()
    second = hosts.reader(process.pid)
    second.control(strings_epoch=1)
    until(lambda: (second.drain(), len(second.records.step) > 2000)[1])
    assert second.records.names(second.records.step)[-1] == "step:decode"
    assert "QKV" in second.records.strings.values()


@pytest.mark.parametrize(("steps", "length", "forgets"), [(70000, 1, 2), (20000, 500, 4)])
def test_names_without_end_keep_memory_flat(
    plain: Build, hosts: Hosts, steps: int, length: int, forgets: int
) -> None:
    """A name of its own for each step: the agent forgets, says so, and sends what it needs."""
    words = [f"steps={steps}", "kernels=0", f"unique={length}", "sync=0", "step_us=0"]
    process = hosts.start(plain, *words, level="ranges", ring_bytes=64 << 20)
    hosts.end(process)
    reader = hosts.reader()
    reader.drain()
    assert reader.records.forgets == forgets
    names = reader.records.names(reader.records.step)
    assert names == [f"step:{i}".ljust(length, ".") for i in range(steps)]


@pytest.mark.parametrize(
    ("shared", "steps", "apart_s", "taken_at"), [(0, 600, 0.02, 100), (1, 13_000, 1.2, 1500)]
)
def test_another_profiler_takes_the_buffers(
    build: Build, hosts: Hosts, shared: int, steps: int, apart_s: float, taken_at: int
) -> None:
    """torch.profiler replaces CUPTI's callbacks: said once, and later windows work again.

    Of a buffer that threads share nothing may have come after so short a time.
    """
    words = [f"steps={steps}", "kernels=4", "step_us=300", f"take_over_at={taken_at}"]
    settings = {"window_seconds": apart_s, "window_steps": 4, "budget_pct": 100, "detach": "never"}
    ended = hosts.run(build, *words, **settings, shared_buffers=shared)
    assert ended.stderr.count("spanlite agent") == 1
    reader = hosts.reader()
    reader.drain()
    last = reader.records.window[-2]["window"]
    assert (reader.records.kernel["window"] == last).any()


def test_odd_times_are_flagged_and_drops_counted(plain: Build, hosts: Hosts) -> None:
    faults = ["STANDIN_ZERO_EVERY=10", "STANDIN_INVERT_EVERY=15", "STANDIN_DROP_EVERY=25"]
    host = ["env", *faults, str(plain.program("host"))]
    process = hosts.start(plain, "steps=150", "kernels=4", command=host, level="continuous")
    hosts.end(process)
    reader = hosts.reader()
    reader.drain()
    kernels = reader.records.kernel
    assert reader.drops()["cupti_dropped"] == 600 // 25
    assert len(kernels) == 600 - 600 // 25
    zero, inverted = kernels["start"] == 0, kernels["end"] < kernels["start"]
    assert zero.any() and inverted.any()
    assert ((kernels["flags"] & 1 != 0) == zero).all()
    assert ((kernels["flags"] & 2 != 0) == inverted).all()


@pytest.mark.parametrize(("held", "reason"), [(1, None), (2, "agent_budget")])
def test_what_finds_no_buffer_is_counted_as_our_own_bound(
    build: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, held: int, reason: str | None
) -> None:
    """CUPTI counts it too, and does not know why: the pool gives two buffers at most."""
    monkeypatch.setenv("STANDIN_HOLD", str(held))
    words = ["steps=50", "kernels=4", "step_us=300"]
    hosts.run(build, *words, level="continuous", max_buffers=2, activities="none")
    reader = hosts.drained()
    # 50 calls and as many waits' calls; the last buffer refused has nobody to tell its count.
    drops = {name: count for name, count in reader.drops().items() if count}
    assert set(drops) <= {reason}
    assert (len(reader.records.kernel) == 200) == (reason is None)


def test_the_ring_is_mapped_before_records_come(plain: Build, hosts: Hosts, until: Until) -> None:
    """So that no range pays for a page's first touch."""
    if tuple(map(int, platform.release().split(".")[:2])) < (5, 14):
        pytest.skip("madvise(MADV_POPULATE_WRITE) is of Linux 5.14")
    process = hosts.start(plain, "steps=100000000", "kernels=1", "step_us=1000", level="ranges")
    hosts.reader(process.pid)

    def mapped_kib() -> int:
        text = Path(f"/proc/{process.pid}/smaps").read_text()
        _, _, entry = text.partition(".ring")
        return int(entry.partition("Rss:")[2].split()[0])

    until(lambda: mapped_kib() >= 8 << 10)
    assert hosts.reader(process.pid).drain() < 1000


def test_a_full_ring_counts_what_it_cannot_take(plain: Build, hosts: Hosts) -> None:
    """No daemon: the oldest stay, the rest is counted, the host goes on."""
    words = ["steps=400", "kernels=20", "step_us=100"]
    ended = hosts.run(plain, *words, level="continuous", ring_bytes=65536)
    reader = hosts.reader()
    before = reader.drops()["ring_full"]
    reader.drain()
    assert before > 0
    assert len(reader.records.kernel) < ended.reports["host"]["launched"]


def test_long_runs_keep_memory_flat(plain: Build, hosts: Hosts) -> None:
    """Millions of records through a small ring, drained meanwhile: none lost untold, no growth.

    A kernel and its call each. The process looks at its own size after equal numbers of them,
    whatever time they take.
    """
    blast = LONG_RECORDS // 2
    words = ["steps=3", f"blast={blast}", "kernels=1"]
    process = hosts.start(plain, *words, level="continuous", ring_bytes=32 << 20)
    reader = hosts.reader(process.pid)
    records = 0
    while process.poll() is None or reader.drain():
        reader.drain()
        records += len(reader.records.kernel) + len(reader.records.api)
        for parts in reader._parts.values():
            parts.clear()
    lost = reader.drops()["ring_full"]
    assert records + lost >= 2 * blast and records > 0
    assert sum(reader.drops().values()) == lost
    sizes = hosts.end(process).reports["host"]["sizes_kib"]
    third = len(sizes) // 3
    early, late = sizes[third : third + third // 2], sizes[-third // 2 :]
    after_a_third, at_last = np.median(early), np.median(late)
    print(f"{records:,} records, {lost:,} lost; {after_a_third} KiB after a third, {at_last} last")
    assert at_last <= after_a_third + GROWTH_KIB, sizes
    assert max(sizes) < 64 << 10, sizes


def test_several_agents_do_not_meet(plain: Build, hosts: Hosts) -> None:
    words = ["steps=50", "kernels=2"]
    processes = [hosts.start(plain, *words, level="continuous") for _ in range(4)]
    for process in processes:
        hosts.end(process)
        reader = hosts.reader(process.pid)
        reader.drain()
        assert len(reader.records.kernel) == 100


def test_rings_that_nobody_fetches_do_not_pile_up(plain: Build, hosts: Hosts) -> None:
    living = hosts.start(plain, "steps=100000000", level="ranges", ring_bytes=65536)
    hosts.reader(living.pid)
    for _ in range(20):
        hosts.run(plain, "steps=1", level="ranges", ring_bytes=65536)
    pids = {int(path.name.split("-")[0]) for path in hosts.rings.glob("*.ring")}
    assert len(pids) == 18  # the living one, 16 dead ones, and the last, made after the clean-up
    assert living.pid in pids


def test_what_was_in_rings_that_are_deleted_is_counted(plain: Build, hosts: Hosts) -> None:
    """Not what a daemon has read before; and a ring that one reads at this moment stays."""

    def next_one() -> RingReader:
        process = hosts.start(plain, "steps=7", "kernels=2", level="continuous", ring_bytes=1 << 18)
        hosts.end(process)
        return hosts.reader(process.pid)

    readers = [next_one() for _ in range(17)]
    time.sleep(1.1)  # who reads a ring, or writes into it, makes it no newer
    readers[0].drain()
    # What their own agents dropped is counted too, as far as no daemon has told it.
    readers[0].set_drops("torn", dropped=3, told=3)
    readers[1].set_drops("ring_full", dropped=9, told=4)
    with readers[2].path.open("r+b") as file:
        lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        after = [next_one() for _ in range(3)]
    left = [reader.path.exists() for reader in (*readers, *after)]
    assert left == [False, False, *[True] * 18]
    readers[1].drain()
    unread = sum(map(len, readers[1].records.arrays.values()))
    assert unread > 14
    assert [reader.drops()["deleted"] for reader in after] == [0, 0, unread]
    assert [reader.drops()["ring_full"] for reader in after] == [0, 0, 5]
    assert [reader.drops()["torn"] for reader in after] == [0, 0, 0]


def test_a_ring_is_whole_as_soon_as_it_is_there(plain: Build, hosts: Hosts, until: Until) -> None:
    """What the daemon asks for at once must not be lost to the agent's own beginning."""
    for _ in range(15):
        process = hosts.start(plain, "steps=100000000", "step_us=100", level="windows")
        until(lambda pid=process.pid: any(hosts.rings.glob(f"{pid}-*.ring")))  # type: ignore[misc]
        reader = hosts.reader(process.pid)
        assert reader.executable().endswith("host")
        reader.control(level=1, capture_steps=77)
        until(lambda reader=reader: reader.state()["steps"] > 5)  # type: ignore[misc]
        assert (reader.wish("level"), reader.wish("capture_steps")) == (1, 77)
        process.kill()
        process.wait()


def test_nothing_in_the_folder_keeps_a_process_from_starting(plain: Build, hosts: Hosts) -> None:
    """Any user may put things there: pipes, and rings whose numbers make no sense."""
    os.mkfifo(hosts.rings / "1-1.ring")
    for _ in range(17):
        hosts.run(plain, "steps=20", level="ranges", ring_bytes=65536)
    rings = [path for path in hosts.rings.glob("*.ring") if path.is_file()]
    rings.sort(key=lambda path: int(path.stem.split("-")[1]))
    library = hosts.reader(int(rings[0].name.split("-")[0])).lib
    head = library.spanlite_ring_offset(3)
    with rings[0].open("r+b") as file:
        file.seek(head)
        (used,) = struct.unpack("<Q", file.read(8))
        file.seek(4096 + used % 65536)
        file.write(struct.pack("<IHH", 65536 - used % 65536, 0, 0))  # one padding to the end
        file.seek(head)
        file.write(struct.pack("<Q", 1 << 50))
        file.seek(library.spanlite_ring_offset(2))
        file.write(struct.pack("<Q", 2**64 - 1))
    ended = hosts.run(plain, "steps=5", level="ranges", ring_bytes=65536)
    assert ended.code == 0 and not rings[0].exists()
    newest = max(hosts.rings.glob("*.ring"), key=lambda path: int(path.stem.split("-")[1]))
    assert set(hosts.reader(int(newest.name.split("-")[0])).drops().values()) == {0}


@pytest.mark.parametrize(
    ("given", "steps"), [("foo, step:", 20), (" step:", 20), (",", 20), ("foo", 0)]
)
def test_prefixes_of_steps(plain: Build, hosts: Hosts, given: str, steps: int) -> None:
    ended = hosts.run(plain, "steps=20", level="ranges", step_ranges=given)
    assert ended.stderr.count("keeping the default") == (given == ",")
    reader = hosts.reader()
    reader.drain()
    assert len(reader.records.step) == steps


def test_budget_and_window_times(build: Build) -> None:
    done = subprocess.run([build.program("budget_test")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
