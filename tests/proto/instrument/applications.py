"""Applications under the agent, or without one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
AGENT = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"

FAKE_TORCH = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_torch
from fake_torch import Model, Module, Table
"""
FAKE_TRITON = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_triton as triton
def softmax_kernel(x, BLOCK, dtype): pass
kernel = triton.JITFunction(softmax_kernel)
"""


def run(code: str, folder: Path | None = None) -> str:
    """Run an application; with an agent that writes to `folder` if there is one."""
    env = {k: v for k, v in os.environ.items() if "INJECTION64_PATH" not in k}
    if folder:
        env |= {"NVTX_INJECTION64_PATH": str(AGENT), "SPANLITE_AGENT_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(rows):
    return {row["name"]: row for row in rows}
