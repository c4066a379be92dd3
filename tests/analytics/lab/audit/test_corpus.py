"""The corpus: kernels with a fault that a rule must find, and kernels with none."""

import sys
from pathlib import Path

import pytest
from spanlite_analytics.lab.audit.findings import RULES
from spanlite_analytics.lab.toolchain import has_tools

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench.lab_audit import CLEAN, Kernel, run

pytestmark = pytest.mark.skipif(
    not has_tools("nvcc", "ptxas"), reason="needs nvcc (spanlite-analytics[lab]) and g++"
)


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return run()


def test_faults_are_found(kernels: list[Kernel]) -> None:
    missed = [k.name for k in kernels if k.is_missed]
    faulty = [k for k in kernels if k.verdict != CLEAN]
    assert len(faulty) >= 30
    assert len(missed) <= 0.05 * len(faulty), missed


def test_clean_kernels_pass(kernels: list[Kernel]) -> None:
    alarms = {k.name: sorted(k.rules) for k in kernels if k.is_false_alarm}
    assert sum(k.verdict == CLEAN for k in kernels) >= len(kernels) // 2
    assert len(alarms) <= 2, alarms


def test_each_rule_has_kernels(kernels: list[Kernel]) -> None:
    assert {k.verdict for k in kernels} - {CLEAN} == set(RULES)
