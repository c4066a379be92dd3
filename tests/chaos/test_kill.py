"""kill -9 of the job and of the broker, under load, again and again: nothing lost, nothing twice.

SPANLITE_CHAOS=full runs twenty kills of the job and five of the broker (some ten minutes);
without it there are a few of each. SPANLITE_CHAOS_SEED changes the moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from chaos_account import Account, compare, read_archive
from chaos_run import Job, Load
from spanlite.archive.layout import LEDGER
from spanlite.archive.reader import ArchiveReader
from spanlite_pipeline.sampling import Budget, RuleSet, TraceSummaries
from spanlite_stack import Stack

FULL = os.environ.get("SPANLITE_CHAOS") == "full"
SEED = int(os.environ.get("SPANLITE_CHAOS_SEED", "1"))
KEEP_ALL = "policies:\n  - {name: all, type: always_sample}\n"
SOME = (
    "policies:\n  - {name: some, type: probabilistic, probabilistic: {sampling_percentage: 60}}\n"
)

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.stack,
    pytest.mark.flink,
    pytest.mark.timeout(7200 if FULL else 3600),
]


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    """A broker that may be killed."""
    stack = Stack(tmp_path / "stack")
    stack.up()
    yield stack
    stack.remove()


def wreck(job: Job, stack: Stack, chance: random.Random, job_kills: int, broker_kills: int) -> None:
    """Kill at seeded moments: at work, between checkpoints, and while still starting."""
    what = ["job"] * job_kills + ["broker"] * broker_kills
    chance.shuffle(what)
    job.start()
    for victim in what:
        while_starting = victim == "job" and chance.random() < 0.25
        if while_starting:
            time.sleep(chance.uniform(1.0, 8.0))
        else:
            job.wait_for_checkpoint()
            time.sleep(chance.uniform(0.0, 2.5))
        if victim == "job":
            job.kill9()
            job.start()
        else:
            stack.kill9()
            time.sleep(chance.uniform(0.0, 2.0))
            stack.up()
    job.wait_for_checkpoint()
    job.kill9()


def found_in(archive: Path, weight: float) -> Account:
    """Everything in the archive; each span must have this weight."""
    found = Account()
    for spans, resource, weights in read_archive(archive):
        found.add(spans, resource)
        np.testing.assert_allclose(weights, weight)
    return found


def kept_spans(rules: str, sent: Account) -> npt.NDArray[np.bool_]:
    """Which of the sent spans, by span id, the rules keep; chance is all they look at."""
    _, traces, _ = sent.sorted()
    none = np.zeros(len(traces), dtype=np.int64)
    summaries = TraceSummaries(
        traces[:, 0], traces[:, 1], none, none, none, none, none, none, none.astype(np.uint64)
    )
    return RuleSet.from_yaml(rules).decide(summaries, Budget(64), 0).kept


def ledger_of(archive: Path) -> dict[tuple[str, str, str], int]:
    """Spans by (hop, direction, reason)."""
    out: dict[tuple[str, str, str], int] = {}
    for row in ArchiveReader(archive).read_table(LEDGER).to_pylist():
        key = (row["hop"], row["direction"], row["reason"] or "")
        out[key] = out.get(key, 0) + row["spans"]
    return out


@pytest.mark.parametrize(
    ("rules", "weight", "job_kills", "broker_kills"),
    [
        pytest.param(KEEP_ALL, 1.0, 20 if FULL else 3, 5 if FULL else 1, id="keep_all"),
        pytest.param(SOME, 1 / 0.6, 5 if FULL else 1, 1 if FULL else 0, id="sampled"),
    ],
)
def test_nothing_lost_nothing_twice(
    own_stack: Stack, tmp_path: Path, rules: str, weight: float, job_kills: int, broker_kills: int
) -> None:
    archive, rules_file = tmp_path / "archive", tmp_path / "rules.yaml"
    rules_file.write_text(rules)
    info = own_stack.status()
    assert info is not None
    load = Load(info.bootstrap, SEED)
    job = Job(info.bootstrap, archive, rules_file, tmp_path)
    load.start()
    try:
        wreck(job, own_stack, random.Random(SEED), job_kills, broker_kills)
        sent = load.finish()
        job.finish()
    finally:
        load.stop()
        job.close()
    kept = kept_spans(rules, load.account)
    difference = compare(load.account, found_in(archive, weight), kept)
    assert difference.none and difference.sent > 1000, difference
    ledger = ledger_of(archive)
    duplicates = ledger.get(("pipeline", "dropped", "duplicate"), 0)
    assert ledger["pipeline", "in", ""] == sent + duplicates
    assert ledger["pipeline", "out", ""] == difference.sent
    assert ledger.get(("pipeline", "dropped", "sampled_out"), 0) == sent - difference.sent
    assert ledger.get(("wire", "dropped", "lost"), 0) == 0
