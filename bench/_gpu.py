"""What `nvidia-smi` says of the machine's GPUs. Plain Python, for every machine."""

from __future__ import annotations

import subprocess


def ask(*fields: str) -> dict[str, str]:
    """The first GPU's fields by name. Raises OSError or SubprocessError where there is no GPU."""
    (line,) = _lines("--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return dict(zip(fields, (value.strip() for value in line.split(",")), strict=True))


def programs() -> list[str]:
    """The programs that the driver knows as processes of the GPUs. Raises as `ask` does."""
    return _lines("--query-compute-apps=process_name", "--format=csv,noheader")


def in_use_mib() -> dict[int, int]:
    """Memory of each process on the GPUs, in MiB by process id; empty without a GPU."""
    found: dict[int, int] = {}
    try:
        lines = _lines("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    except (OSError, subprocess.SubprocessError):
        return found
    for line in lines:
        process, _, size = line.partition(",")
        if process.strip().isdigit() and size.strip().isdigit():
            found[int(process)] = found.get(int(process), 0) + int(size)
    return found


def _lines(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip().splitlines()
