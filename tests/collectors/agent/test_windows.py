"""Windows: when they open and close, and that they hold every kernel of their steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from builds import Build, Hosts
from rings import REASONS, check_whole, kernels_of_steps

Until = Callable[[Callable[[], bool]], None]


def test_scheduled_windows_hold_whole_steps(build: Build, hosts: Hosts) -> None:
    words = ["steps=400", "kernels=6", "step_us=500", "sync=1"]
    ended = hosts.run(build, *words, window_seconds=0.05, window_steps=5, budget_pct=50)
    reader = hosts.drained()
    records = reader.records
    check_whole(records, 6)
    assert len(records.window) >= 2
    assert (records.window["steps"][:-1] == 5).all()
    assert len(records.step) == 400
    assert reader.drops() == dict.fromkeys(reader.drops(), 0)
    # Only windows' kernels were recorded, each placed in its window by its time.
    assert len(records.kernel) < ended.reports["host"]["launched"]
    assert set(np.unique(records.kernel["window"])) <= set(records.window["window"]) | {0}
    assert ended.stderr == ""


def test_work_still_running_at_a_windows_end_is_recorded(build: Build, hosts: Hosts) -> None:
    """Steps that never wait for the device: the last one's kernels end after its range."""
    words = ["steps=300", "kernels=5", "step_us=2000", "sync=0"]
    ended = hosts.run(build, *words, window_seconds=0.1, window_steps=4, budget_pct=50)
    check_whole(hosts.drained().records, 5)
    assert ended.reports["host"]["disable"] >= 1


def test_graph_nodes_are_complete(build: Build, hosts: Hosts) -> None:
    words = ["steps=300", "kernels=40", "step_us=400", "graph=1"]
    hosts.run(build, *words, window_seconds=0.05, window_steps=5, budget_pct=50)
    records = hosts.drained().records
    check_whole(records, 40)
    assert set(records.kernel["graph"]) == {1}
    assert set(records.kernel["node"] & 0xFFFFFFFF) == set(range(40))


def test_detaches_only_where_it_is_proved_safe(build: Build, hosts: Hosts) -> None:
    """One thread, as ten whole steps have shown: each window ends in a detach, after a wait."""
    words = ["steps=1500", "kernels=4", "step_us=300", "sync=0"]
    ended = hosts.run(build, *words, window_seconds=0.02, window_steps=10, budget_pct=100)
    reader = hosts.drained()
    check_whole(reader.records, 4)
    assert ended.reports["host"]["finalize"] >= 1
    assert reader.state()["detaches"] == ended.reports["host"]["finalize"]


def test_never_detaches_while_another_thread_launches(build: Build, hosts: Hosts) -> None:
    """The stand-in ends the process, as the driver does, if anybody detaches under load."""
    words = ["steps=300", "kernels=4", "step_us=300", "side=1"]
    settings = {"window_seconds": 0.02, "window_steps": 3, "budget_pct": 100, "detach": "never"}
    ended = hosts.run(build, *words, **settings)
    assert ended.reports["host"]["finalize"] == 0
    check_whole(hosts.drained().records, 4)


@pytest.mark.parametrize("reason", ["demand", "throttle"])
def test_no_window_opens_by_itself_beside_threads_that_launch(
    plain: Build, hosts: Hosts, reason: str
) -> None:
    """Said once; what a person asks for comes all the same."""
    words = ["steps=900", "kernels=4", "step_us=300", "side=1", "slow_step=200"]
    settings = {"window_seconds": 0.02, "window_steps": 3, "budget_pct": 100, "step_slo_ms": 15}
    process = hosts.start(plain, *words, **settings, learn_seconds=60, learn_steps=20)
    reader = hosts.reader()
    reader.control(capture_steps=7, capture_reason=REASONS[reason], capture_request=1)
    ended = hosts.end(process)
    assert ended.stderr.count("several threads launch") == 1
    reader.drain()
    windows = reader.records.window
    found = list(zip(windows["reason"].tolist(), windows["steps"].tolist(), strict=True))
    asked = [(REASONS["demand"], 7)] if reason == "demand" else []
    assert found == [(REASONS["learn"], 20), *asked]


def test_detaches_while_other_launching_threads_are_held(build: Build, hosts: Hosts) -> None:
    """The stand-in ends the process if anybody launches while CUPTI detaches."""
    words = ["steps=700", "kernels=4", "step_us=300", "threads=3", "sync=1"]
    settings = {"window_seconds": 0.02, "window_steps": 4, "budget_pct": 10000}
    learn = {"learn_seconds": 60, "learn_steps": 20}
    ended = hosts.run(build, *words, detach="held", hold_ms=1000, **settings, **learn)
    reader = hosts.drained()
    assert ended.reports["host"]["finalize"] >= 2  # so it attached again with all of them held
    assert reader.state()["detaches"] == ended.reports["host"]["finalize"]
    check_whole(reader.records, 4)
    cut = reader.records.step[(reader.records.step["window"] > 0)]
    assert (cut["covered"] == 0).any()  # other threads' steps that the last one's end cut


def test_a_thread_that_cannot_be_held_keeps_cupti_attached(plain: Build, hosts: Hosts) -> None:
    """It launches and never comes to a step's edge: said once."""
    words = ["steps=400", "kernels=4", "step_us=300", "side=1"]
    settings = {"window_seconds": 0.02, "window_steps": 5, "budget_pct": 10000}
    learn = {"learn_seconds": 60, "learn_steps": 20}
    ended = hosts.run(plain, *words, detach="held", **settings, **learn)
    assert ended.reports["host"]["finalize"] == 0
    assert ended.stderr.count("spanlite agent") == 1
    check_whole(hosts.drained().records, 4)


def test_an_attach_beside_a_thread_that_launches_is_never_undone(
    plain: Build, hosts: Hosts
) -> None:
    """Nobody knew of that thread at the attach; it ends later, and the steps go on alone."""
    words = ["steps=600", "kernels=4", "step_us=300", "side=1", "side_until=200"]
    settings = {"window_seconds": 0.02, "window_steps": 5, "budget_pct": 10000}
    ended = hosts.run(plain, *words, **settings)
    assert ended.reports["host"]["finalize"] == 0
    check_whole(hosts.drained().records, 4)


CARELESS = {
    "detach under load": (
        "cuda.standin_launch(7, b'kernel', ctypes.c_uint64(5_000_000_000))",
        "cupti.cuptiFinalize()",
    ),
    "calls switched under load": (
        # It goes on launching: one that had ended could be gone before the switch.
        "begun = threading.Event(); threading.Thread(daemon=True, target=lambda: any("
        "not (cuda.standin_launch(7, b'kernel', 0), begun.set()) for _ in iter(int, 1))).start(); "
        "begun.wait()",
        "cupti.cuptiActivityEnableRuntimeApi(211, 0)",
    ),
    "late graph trace": ("cuda.standin_graph(3)", "cupti.cuptiActivityEnable(51)"),
}


@pytest.mark.parametrize("what", CARELESS)
def test_the_stand_in_would_end_a_careless_agent(plain: Build, hosts: Hosts, what: str) -> None:
    """The tests above mean something: what ended processes on the GPU ends them here."""
    program = [
        "import ctypes, threading",
        "cuda = ctypes.CDLL('libcuda.so.1'); cupti = ctypes.CDLL('libcupti.so.13')",
        "cuda.standin_context(0); cupti.cuptiActivityRegisterCallbacks(None, None)",
        *CARELESS[what],
    ]
    process = hosts.start(plain, command=[sys.executable, "-c", "\n".join(program)], level="off")
    assert "unspecified launch failure" in hosts.end(process, code=-6).stderr


def test_several_threads_and_devices(build: Build, hosts: Hosts) -> None:
    words = ["steps=200", "kernels=4", "step_us=400", "threads=3", "devices=2", "streams=2"]
    settings = {"window_seconds": 0.05, "window_steps": 4, "budget_pct": 50, "detach": "never"}
    ended = hosts.run(build, *words, **settings)
    records = hosts.drained().records
    assert set(kernels_of_steps(records)) == {4}
    assert set(records.kernel["device"]) == {0, 1}
    assert len(set(records.step["thread"])) == 3
    assert ended.reports["host"]["finalize"] == 0


def start_server(hosts: Hosts, build: Build, **settings: object) -> subprocess.Popen[str]:
    words = ["steps=100000000", "kernels=4", "step_us=400"]
    return hosts.start(build, *words, **({"window_seconds": 3600} | settings))


def test_capture_on_demand(build: Build, hosts: Hosts, until: Until) -> None:
    start_server(hosts, build)
    reader = hosts.reader()
    until(lambda: reader.state()["windows"] == 1)  # the first is due at once
    reader.control(capture_steps=17, capture_request=1)
    until(lambda: reader.state()["windows"] == 2)
    until(lambda: reader.drain() == 0 or len(reader.records.window) == 2)
    until(lambda: (reader.drain(), len(reader.records.window) == 2)[1])
    window = reader.records.window[1]
    assert (window["reason"], window["steps"], window["partial"]) == (REASONS["demand"], 17, 0)


def test_a_window_says_why_it_was_asked_for(plain: Build, hosts: Hosts, until: Until) -> None:
    start_server(hosts, plain)
    reader = hosts.reader()
    until(lambda: reader.state()["windows"] == 1)
    for number, reason in enumerate((REASONS["throttle"], REASONS["slo"], 99), 1):
        reader.control(capture_steps=3, capture_reason=reason, capture_request=number)
        until(lambda number=number: reader.state()["windows"] == 1 + number)
    until(lambda: (reader.drain(), len(reader.records.window) == 4)[1])
    assert [w["reason"] for w in reader.records.window[1:]] == [
        REASONS["throttle"],
        REASONS["slo"],
        REASONS["demand"],
    ]


def test_a_slow_step_opens_a_window(plain: Build, hosts: Hosts) -> None:
    words = ["steps=200", "kernels=4", "step_us=200", "slow_step=100"]
    hosts.run(plain, *words, window_seconds=3600, window_steps=5, step_slo_ms=15)
    records = hosts.drained().records
    slow = [w for w in records.window if w["reason"] == REASONS["slo"]]
    assert slow and slow[-1]["steps"] == 5
    assert slow[-1]["first"] > 100


def test_level_changes_while_running(build: Build, hosts: Hosts, until: Until) -> None:
    start_server(hosts, build, level="ranges")
    reader = hosts.reader()
    until(lambda: reader.state()["steps"] > 50)
    assert reader.state()["attached"] == 0
    reader.control(level=3)
    until(lambda: reader.state()["window_open"] == 1)
    until(lambda: reader.state()["steps_covered"] > 20)
    reader.control(level=1)
    until(lambda: reader.state()["window_open"] == 0)

    def whole() -> bool:  # the last step's own record follows that of its window
        reader.drain()
        windows, steps = reader.records.window["steps"], reader.records.step["covered"]
        return len(windows) > 0 and windows.sum() == steps.sum()

    until(whole)
    check_whole(reader.records, 4)
    assert reader.records.window[0]["reason"] == REASONS["continuous"]
    reader.control(level=0)
    before = reader.state()["steps"]
    until(lambda: (reader.drain(), reader.drain() == 0)[1])
    assert reader.state()["steps"] - before < 50_000


def test_a_process_without_steps_gets_windows_by_the_clock(
    plain: Build, hosts: Hosts, until: Until
) -> None:
    start = ["steps=100000000", "kernels=4", "step_us=400", "named=0"]
    hosts.start(plain, *start, window_seconds=0.2, budget_pct=100)
    reader = hosts.reader()
    until(lambda: reader.state()["windows"] >= 2)
    until(lambda: (reader.drain(), len(reader.records.window) >= 2)[1])
    assert reader.records.window["partial"].all()
    assert (reader.records.window["steps"] == 0).all()
    assert len(reader.records.kernel) > 100


def test_budget_spaces_windows(plain: Build, hosts: Hosts) -> None:
    """Windows of a loop in which they cost nothing come often; a tiny budget keeps them apart."""
    words = ["steps=800", "kernels=4", "step_us=500"]
    hosts.run(plain, *words, window_seconds=0.01, window_steps=2, budget_pct=100)
    often = len(hosts.drained().records.window)
    next(hosts.rings.glob("*.ring")).unlink()
    hosts.run(plain, *words, window_seconds=0.01, window_steps=2, budget_pct=0.0001)
    rare = len(hosts.drained().records.window)
    assert rare <= 2 < often


def test_windows_grow_rare_where_detaches_have_taken_their_memory(
    plain: Build, hosts: Hosts, until: Until
) -> None:
    """Each detach leaves GPU memory allocated (CUPTI 13.0.85): 2 MiB a day allow three of them."""
    often = {"window_seconds": 0.01, "window_steps": 12, "budget_pct": 1000}
    process = start_server(hosts, plain, **often, detach_mib_per_day=2)
    reader = hosts.reader()
    until(lambda: reader.state()["detaches"] == 3)
    steps = reader.state()["steps"]
    until(lambda: reader.state()["steps"] > steps + 500)
    assert reader.state()["detaches"] == 3 and reader.state()["windows"] <= 4

    def ask(number: int, reason: str) -> int:
        """For a window; how many there are once it must have come."""
        reason_number, steps = REASONS[reason], reader.state()["steps"]
        reader.control(capture_steps=12, capture_reason=reason_number, capture_request=number)
        until(lambda: reader.state()["steps"] > steps + 300)
        return int(reader.state()["detaches"])

    # What happens may take three more, and whoever asks gets one all the same.
    assert [ask(number, "throttle") for number in range(1, 6)] == [4, 5, 6, 6, 6]
    assert ask(6, "demand") == 7
    process.kill()
    assert process.communicate()[1].count("each detach takes 0.65 MiB of GPU memory") == 1


@pytest.mark.parametrize(("renew_kernels", "whole"), [(400, True), (0, False)])
def test_continuous_attaches_anew_before_cuptis_room_on_the_device_is_used_up(
    plain: Build, hosts: Hosts, until: Until, renew_kernels: int, whole: bool
) -> None:
    """CUPTI 13.0.85 records no kernel of graphs with copies once its buffers are used up."""
    words = ["steps=100000000", "kernels=4", "step_us=400"]
    host = ["env", "STANDIN_ROOM=6000", str(plain.program("host"))]
    hosts.start(plain, *words, command=host, level="ranges", renew_kernels=renew_kernels)
    reader = hosts.reader()
    until(lambda: reader.state()["steps"] > 50)
    reader.control(level=3)
    until(lambda: (reader.drain(), reader.state()["steps_covered"] > 9000)[1])
    counts = kernels_of_steps(reader.records)[:5000]
    assert (set(counts) == {4}) == whole
    assert (reader.state()["detaches"] > 3) == whole


def test_what_was_asked_for_all_the_time_delays_no_window_after_it(
    plain: Build, hosts: Hosts, until: Until
) -> None:
    """With so small a budget the next window after one by schedule would be ten minutes away."""
    start_server(hosts, plain, level="ranges", window_seconds=0.01, budget_pct=0.0001)
    reader = hosts.reader()
    until(lambda: reader.state()["steps"] > 100)
    reader.control(level=3)
    until(lambda: reader.state()["steps_covered"] > 20)
    reader.control(level=2)
    until(lambda: (reader.drain(), len(reader.records.window) >= 2)[1])
    reasons = reader.records.window["reason"].tolist()
    assert reasons == [REASONS["continuous"], REASONS["schedule"]]


def test_learning_covers_the_start_and_gives_way_to_windows(build: Build, hosts: Hosts) -> None:
    words = ["steps=200", "kernels=4", "step_us=300", "warm_up=25"]
    hosts.run(build, *words, learn_seconds=60, learn_steps=6, window_seconds=0.05, window_steps=3)
    records = hosts.drained().records
    assert records.window[0]["reason"] == REASONS["learn"]
    assert records.window[0]["steps"] == 6
    warm = [name == "warm_up_kernel" for name in records.names(records.kernel)]
    assert sum(warm) == 25
    check_whole(records, 4)


def test_nothing_opens_before_cuda_begins(plain: Build, hosts: Hosts) -> None:
    """NVTX loads the agent; the imports between that and cuInit may take longer than a process
    without steps waits for windows by the clock. The first window is that of cuInit all the same.
    """
    program = (
        "import ctypes, time\n"
        "cuda = ctypes.CDLL('libcuda.so.1'); shim = ctypes.CDLL('libnvtx_shim.so')\n"
        "shim.shim_push(b'import'); time.sleep(6.5); shim.shim_pop()\n"
        "cuda.cuInit(0); cuda.standin_context(0)\n"
        "for step in range(60):\n"
        "    shim.shim_push(b'step:%d' % step)\n"
        "    for k in range(3): cuda.standin_launch(7, b'kernel', ctypes.c_uint64(10_000))\n"
        "    cuda.cuCtxSynchronize(); shim.shim_pop()\n"
    )
    command = [sys.executable, "-c", program]
    settings = {"learn_seconds": 60, "learn_steps": 20, "window_seconds": 0.05}
    hosts.end(hosts.start(plain, command=command, **settings))
    reader = hosts.drained()
    assert reader.records.window[0]["reason"] == REASONS["learn"]
    assert reader.state()["detaches"] >= 1


def test_continuous_records_everything(build: Build, hosts: Hosts) -> None:
    words = ["steps=150", "kernels=5", "step_us=200"]
    ended = hosts.run(build, *words, level="continuous")
    records = hosts.drained().records
    assert len(records.kernel) == ended.reports["host"]["launched"] == 750
    assert kernels_of_steps(records) == [5] * 150
