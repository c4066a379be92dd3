"""Compile the stand-ins of a replay with this environment's CuPy and its NVRTC, for sm_90.

Needs no GPU: an environment with cupy-cuda12x and nvidia-cuda-nvrtc-cu12 makes what
`python -m bench.h200.replay_features --cubins FOLDER` runs elsewhere.

    python -m bench.h200.replay_cubins FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from spanlite_replay.targets.gpu.source import source_of

#: Classes of registers that `core` and `cuda12` of replay_features need.
REGISTERS = (24, 32)


def main() -> int:
    """Write `registers_N.cubin` for each class."""
    from cupy.cuda import nvrtc
    from spanlite_replay.targets.gpu import compiling

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for one in REGISTERS:
        told = ("--std=c++17", f"--maxrregcount={one}")
        code = compiling._with_cupy(source_of(one), "sm_90", told)
        (folder / f"registers_{one}.cubin").write_bytes(code)
        print(f"registers_{one}.cubin: {len(code)} bytes by NVRTC {nvrtc.getVersion()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
