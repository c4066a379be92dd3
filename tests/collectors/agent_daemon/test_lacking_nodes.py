"""The stress bench's account: which nodes of a graph a whole step lacks, and which of them copy."""

import sys
from itertools import count
from pathlib import Path

import numpy as np
from numpy.lib.recfunctions import repack_fields
from spanlite_collectors.agent.layout import RECORDS, RecordType

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench._agent_copies import lacking_nodes
from bench._agent_rings import COLUMNS, Drained

LAUNCH, LAUNCH_OF_DRIVER, COPY, GRAPH = 211, 307, 41, 311
#: Of a graph of two streams: three kernels each, then a copy.
COPIES = (3, 7)
THREAD = 9
SECOND_NS = 10**9


class Written(Drained):
    """What a ring gave, written record by record, at one time after the other."""

    def __init__(self) -> None:
        super().__init__(texts={1: "gemm", 2: "copy kernel"})
        self.time, self.ids = count(1_000, 10), count(1)

    def write(self, kind: RecordType, **fields: int) -> None:
        row = np.zeros(1, RECORDS[kind])
        for name, value in fields.items():
            row[name] = value
        columns = COLUMNS.get(kind)
        self.parts[kind].append(repack_fields(row[columns]) if columns else row)

    def call(self, number: int, window: int = 1, domain: int = 1) -> int:
        start, number_of_call = next(self.time), next(self.ids)
        times = {"start_ns": start, "end_ns": start + 5}
        who = {"thread_id": THREAD, "correlation_id": number_of_call, "window": window}
        self.write(RecordType.API, **times, **who, call=number, domain=domain)
        if number == LAUNCH:  # the driver's call in it
            self.write(RecordType.API, **times, **who, call=LAUNCH_OF_DRIVER, domain=0)
        return number_of_call

    def kernel(self, correlation: int, node: int = -1, window: int = 1) -> None:
        start = next(self.time)
        self.write(
            RecordType.KERNEL,
            start_ns=start, end_ns=start + 1, correlation_id=correlation, window=window,
            name=2 if node in COPIES else 1, graph_node_id=(5 << 32 | node + 1) if node >= 0 else 0,
        )  # fmt: skip

    def step(self, window: int, lacks: tuple[int, ...]) -> None:
        start = next(self.time)
        correlation = self.call(GRAPH, window)
        for node in range(8):
            if node not in lacks:
                self.kernel(correlation, node, window)
        self.write(RecordType.STEP, start_ns=start, end_ns=next(self.time), thread_id=THREAD,
                   window=window, covered=1)  # fmt: skip


def recorded(first: tuple[int, ...], later: tuple[int, ...]) -> Written:
    """An eager step, a capture and copies after it; three steps that lack the nodes of `first`,
    seven of another window, of which one lacks those of `later`."""
    mine = Written()
    for _ in range(3):
        mine.kernel(mine.call(LAUNCH))
    mine.call(COPY)
    for node in range(8):
        mine.call(COPY if node in COPIES else LAUNCH)
    for _ in range(2):
        mine.call(COPY)
    for _ in range(3):
        mine.step(1, first)
    for number in range(7):
        mine.step(2, later if number == 4 else ())
    return mine


def test_nodes_that_ran_as_copies_are_told_apart():
    found = lacking_nodes(recorded(COPIES, (2,)))
    assert (found.copies, found.others) == (6, 1)
    assert found.names == {"copy kernel": 6, "gemm": 1}
    assert found.windows == {1: 3, 2: 1}


def test_kernels_that_a_whole_window_lacks_are_no_copies():
    found = lacking_nodes(recorded((1, 3, 7), ()))
    assert (found.copies, found.others) == (0, 9)


def test_steps_that_lack_nothing():
    found = lacking_nodes(recorded((), ()))
    assert (found.copies, found.others, found.names) == (0, 0, {})
    assert lacking_nodes(Drained()).others == 0


def test_of_a_long_run_the_first_and_the_last_records_are_judged() -> None:
    """A window a second of 8 kernels: 20 at either end are kept, and of the steps those far from
    the cut."""
    whole = Drained()
    for second in range(100):
        found = {}
        for kind, rows in ((RecordType.KERNEL, 8), (RecordType.STEP, 1)):
            found[kind] = np.zeros(rows, RECORDS[kind])
            found[kind]["start_ns"] = found[kind]["end_ns"] = second * SECOND_NS
        (whole.keep_late if whole.cut else whole.keep)(found, 20)
    end = whole.end()
    assert end is not None
    kept = [part.rows(RecordType.STEP)["start_ns"] // SECOND_NS for part in (whole, end)]
    assert kept[0].tolist() == [0, 1, 2]
    assert kept[1].tolist() == [96, 97, 98, 99]
    for part in (whole, end):
        part.trim()
    judged = [part.rows(RecordType.STEP)["start_ns"] // SECOND_NS for part in (whole, end)]
    assert judged[0].tolist() == []  # the third's may lack kernels that came later
    assert judged[1].tolist() == [99]
    assert Drained().end() is None
