"""One process of `bench.instrument_cost`: times ranges as it is told, a JSON request a line.

`{"case": NAME, "count": N}` is answered with the ns that each of N uses took.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spanlite.instrument import metrics, request, stage, step

SHIM = Path(__file__).parents[1] / "collectors/agent/build/tests/libnvtx_shim.so"
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
#: What `spanlite.instrument` is used for, and a loop around nothing.
CASES = {
    "loop": "pass",
    "stage": "with stage('attention'): pass",
    "stage_prepared": "with prepared: pass",
    "step": "with step(served): pass",
    "request": "with request(context): pass",
    "decorated": "decorated()",
    "plain_call": "plain()",
    "gauge": "gauge.set(1.0, sequence=3)",
}
#: NVTX as torch calls it: names as Python texts. A model's names, one after the other.
NVTX_CASES = {
    "nvtx_stage": "push('FFN'); pop()",
    "nvtx_layers": "push(next_name()); pop()",
    "nvtx_step": "push('step:7'); pop()",
}


def nvtx(with_torch: bool) -> tuple[str, Callable[[str], Any], Callable[[], Any]] | None:
    """(whose, push, pop): torch's, else those of the tests' small library, else none."""
    if with_torch:
        import torch  # type: ignore[import-not-found,unused-ignore]

        return "torch", torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    if not SHIM.exists():
        return None
    shim = ctypes.PyDLL(str(SHIM))
    return "shim", lambda text: shim.shim_push(text.encode()), shim.shim_pop


def names() -> Callable[[], str]:
    """The next name of a decoder's ranges: 12 layers, each with four stages."""
    parts = ("QKV", "attention", "output", "FFN")
    every = [name for layer in range(12) for name in (f"layer:{layer}", *parts)]
    state = iter(every)

    def following() -> str:
        nonlocal state
        name = next(state, None)
        if name is None:
            state = iter(every)
            name = next(state)
        return name

    return following


def main() -> None:
    """Say which cases there are; answer requests until stdin closes."""
    if sys.platform == "linux" and (os.cpu_count() or 1) >= 8:
        os.sched_setaffinity(0, {3})
    found = nvtx("--torch" in sys.argv)

    def plain() -> None:
        pass

    space: dict[str, Any] = {
        "stage": stage, "step": step, "request": request, "context": CONTEXT, "plain": plain,
        "prepared": stage("attention"), "decorated": stage("attention")(plain),
        "served": [CONTEXT] * 8, "gauge": metrics.ROPE_FREQ_INV_MAX, "next_name": names(),
    }  # fmt: skip
    cases = CASES | (NVTX_CASES if found else {})
    if found:
        space |= {"push": found[1], "pop": found[2]}
    timers = {name: timeit.Timer(code, globals=space) for name, code in cases.items()}
    print(json.dumps({"cases": list(cases), "nvtx": found[0] if found else ""}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        print(timers[told["case"]].timeit(told["count"]) / told["count"] * 1e9, flush=True)


if __name__ == "__main__":
    main()
