"""What `nvidia-smi` says of the machine's first GPU. Plain Python, for every machine."""

from __future__ import annotations

import subprocess


def ask(*fields: str) -> dict[str, str]:
    """Its fields by name. Raises OSError or SubprocessError where there is no GPU."""
    done = subprocess.run(
        ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(fields, values, strict=True))
