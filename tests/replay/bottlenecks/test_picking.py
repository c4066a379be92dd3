"""Which steps are slow: a change in time, else those that stand out."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from spanlite_replay.bottlenecks.diagnose import diagnose
from spanlite_replay.bottlenecks.picking import _change

US = 1_000


def _run(machine: Any, seed: int, faulty_from: int, longer: int = 220, every: int = 1) -> Any:
    """20 steps of three 30 us kernels beside a host whose work varies by a factor of three."""
    r = random.Random(seed)
    for number in range(21):
        machine.begin_step(f"step:{number}")
        hit = number >= faulty_from and number % every == 0
        for kernel in ("one", "two", "custom_kernel"):
            machine.host(int(r.uniform(60, 180) * US))
            machine.launch(kernel, (longer if hit and kernel == "custom_kernel" else 30) * US)
        machine.sync()
        machine.end_step()
    return diagnose(machine.recording())


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_the_devices_work_is_seen_through_the_hosts_noise(
    machine: Any, seed: int
) -> None:
    found = _run(machine, seed, faulty_from=11)
    assert found.causes[0].name == "slow_kernel"
    assert found.compared.startswith("10 slow steps")


@pytest.mark.parametrize("seed", range(10))
def test_a_noisy_host_alone_is_no_cause(machine: Any, seed: int) -> None:
    assert _run(machine, seed, faulty_from=99).causes == []


def test_every_fifth_step_is_found_by_its_length(machine: Any) -> None:
    found = _run(machine, 1, faulty_from=1, longer=5_000, every=5)
    assert found.causes[0].name == "slow_kernel"
    assert found.compared.split()[0] in ("4", "5")  # the noise may add one


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([1] * 10 + [2] * 10, 10),
        ([2] * 12 + [1] * 8, 12),
        ([1.0] * 20, 0),
        ([1, 2] * 10, 0),
        ([1, 2], 0),
        ([], 0),
    ],
)
def test_where_values_change(values: list[float], place: int) -> None:
    assert _change(np.array(values, np.float64))[0] == place
