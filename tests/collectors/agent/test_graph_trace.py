"""What CUPTI takes only before a context exists: graph trace, and the GPU's own time stamps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builds import Build, Hosts
from rings import LEVELS, REASONS, Records, RingReader, check_whole

Until = Callable[[Callable[[], bool]], None]

GRAPH_LAUNCH = 311  # cudaGraphLaunch
NOT_TRIED, ON, REFUSED = 0, 1, 2
# A graph of 5 kernels a step.
STEPS = ["kernels=5", "step_us=400", "graph=1"]
OFTEN = {"window_seconds": 0.02, "window_steps": 10, "budget_pct": 100}


def nodes(records: Records) -> np.ndarray:
    """Kernels that are a graph's."""
    return records.kernel[records.kernel["graph"] != 0]


def check_graphs(records: Records, node_ns: int) -> None:
    """Each launch that was recorded has one record of a graph, with the times of its nodes."""
    graphs, calls = records.graph, records.api[records.api["call"] == GRAPH_LAUNCH]
    assert len(calls) and len(np.unique(graphs["correlation"])) == len(graphs)
    assert np.isin(calls["correlation"], graphs["correlation"]).all()
    assert set(graphs["graph"]) == {1} and set(graphs["stream"]) == {7}
    assert set(graphs["context"]) == {1} and set(graphs["device"]) == {0}
    # More where the host was slow between two nodes.
    assert (graphs["end"] - graphs["start"] >= 5 * node_ns).all()
    order = np.argsort(graphs["correlation"])
    at = order[np.searchsorted(graphs["correlation"][order], calls["correlation"])]
    assert (graphs["start"][at] >= calls["start"]).all()
    assert (graphs["window"][at] == calls["window"]).mean() > 0.5  # a last one may be later


@pytest.mark.parametrize("learn_seconds", [60, 0])
def test_one_record_a_launch_from_cuda_s_begin(
    build: Build, hosts: Hosts, learn_seconds: int
) -> None:
    """Also where nothing is to be learned: it could not be had later. And no window detaches, where
    the same steps without graph trace do (`test_a_late_attach_leaves_it_out`)."""
    ended = hosts.run(build, "steps=600", *STEPS, "warm_up=3", graph_trace=1,
                      learn_seconds=learn_seconds, learn_steps=20, **OFTEN)  # fmt: skip
    assert ended.stderr == ""
    reader = hosts.drained()
    records, state = reader.records, reader.state()
    assert (state["graph_trace"], state["hw_trace"]) == (1, NOT_TRIED)
    assert (state["attached"], state["detaches"]) == (1, 0)
    assert ended.reports["host"]["finalize"] == 0
    assert records.window["reason"][0] == REASONS["learn"] and len(records.window) >= 3
    # Between windows too, as it is never off.
    assert len(records.graph) == 600
    check_graphs(records, 80_000)
    assert len(nodes(records)) == 0
    assert records.names(records.kernel) == ["warm_up_kernel"] * 3
    assert reader.drops() == dict.fromkeys(reader.drops(), 0)


def test_kernels_outside_graphs_are_recorded(build: Build, hosts: Hosts) -> None:
    ended = hosts.run(build, "steps=200", *STEPS, "side=1", graph_trace=1, level="continuous")
    reader = hosts.drained()
    records = reader.records
    assert reader.state()["graph_trace"] == 1 and ended.reports["host"]["finalize"] == 0
    assert len(records.graph) == 200
    assert set(records.names(records.kernel)) == {"side_kernel"}
    assert len(nodes(records)) == 0
    assert not np.isin(records.graph["correlation"], records.kernel["correlation"]).any()


def test_a_late_attach_leaves_it_out(build: Build, hosts: Hosts, until: Until) -> None:
    """A graph exists by then: the stand-in would end the process. All is as without it."""
    words = ["steps=100000000", *STEPS]
    process = hosts.start(build, *words, graph_trace=1, hw_trace=1, level="ranges", **OFTEN)
    reader = hosts.reader()
    until(lambda: reader.state()["steps"] > 50)
    reader.control(level=LEVELS["windows"])
    until(lambda: reader.state()["detaches"] >= 2 or process.poll() is not None)
    assert process.poll() is None
    state = reader.state()
    assert (state["graph_trace"], state["hw_trace"]) == (0, NOT_TRIED)
    process.kill()
    process.communicate()
    while reader.drain() or reader.skip_torn():
        pass
    assert len(reader.records.graph) == 0
    check_whole(reader.records, 5)
    assert set(reader.records.kernel["graph"]) == {1}


@pytest.mark.parametrize("detach", ["proven", "held"])
def test_beside_several_threads_it_has_what_is_needed_where_cupti_stays(
    build: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, detach: str
) -> None:
    """The gate and one buffer, from the first window on: without the gate the stand-in ends the
    process. And windows open by themselves, as none makes CUPTI stay that would not."""
    if build.name != "tsan":  # that of GCC 12 does not know the stand-in's way to lock
        monkeypatch.setenv("STANDIN_CIRCLE", "1")
    words = ["steps=200", *STEPS, "wait=1", "threads=3"]
    settings = {**OFTEN, "budget_pct": 10000, "learn_seconds": 60, "learn_steps": 20}
    ended = hosts.run(build, *words, graph_trace=1, detach=detach, **settings)
    assert ended.stderr == ""
    assert {n: ended.reports["host"][n] for n in ("subscribe", "shared", "finalize")} == {
        "subscribe": 1, "shared": 1, "finalize": 0,
    }  # fmt: skip
    reader = hosts.drained()
    assert reader.state()["graph_trace"] == 1 and len(reader.records.window) >= 3
    assert len(reader.records.graph) == 600 and len(nodes(reader.records)) == 0


def test_where_graph_trace_is_refused_nodes_are_recorded(
    plain: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_REFUSE", "graph trace")
    hosts.run(plain, "steps=60", *STEPS, graph_trace=1, level="continuous")
    reader = hosts.drained()
    assert reader.state()["graph_trace"] == 0
    assert len(reader.records.graph) == 0 and len(nodes(reader.records)) == 300


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("graph_trace", [0, 1])
def test_the_gpus_own_time_stamps(
    build: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, there: bool, graph_trace: int
) -> None:
    """Asked for in cuInit, whatever is to be learned; else as usual: whole steps, and detaches."""
    if there:
        monkeypatch.setenv("STANDIN_HW_TRACE", "1")
    ended = hosts.run(build, "steps=600", *STEPS, hw_trace=1, graph_trace=graph_trace, **OFTEN)
    assert ended.stderr == ""
    reader: RingReader = hosts.drained()
    assert reader.state()["hw_trace"] == (ON if there else REFUSED)
    assert reader.state()["graph_trace"] == graph_trace
    assert (ended.reports["host"]["finalize"] == 0) == bool(graph_trace)
    if graph_trace:
        check_graphs(reader.records, 80_000)
    else:
        check_whole(reader.records, 5)
