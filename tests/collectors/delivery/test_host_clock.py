"""Headers say how far the sender's clock may be off."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from spanlite_collectors.delivery import Role, add_delivery_arguments, host_clock, open_sink


def test_the_kernels_bound_is_between_nothing_and_16_s() -> None:
    assert 0 <= host_clock.clock_error_ns() <= 16_000_000_000


def test_where_the_kernel_does_not_say_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_clock.ctypes, "CDLL", lambda name: object())
    assert host_clock.clock_error_ns() == 0


@pytest.mark.parametrize(("role", "error_ns"), [("collector", 7000), ("import", 0)])
def test_a_collectors_batches_carry_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, error_ns: int
) -> None:
    """What is imported was timed by another clock."""
    monkeypatch.setattr("spanlite_collectors.delivery.arguments.clock_error_ns", lambda: 7000)
    parser = argparse.ArgumentParser()
    add_delivery_arguments(parser)
    args = parser.parse_args([])
    args.output = tmp_path / "spans.zst"
    with open_sink(args, Role(role)) as sink:
        header = sink._numbering.peek_header(0, 0)
    assert header.clock_uncertainty_ns == error_ns
