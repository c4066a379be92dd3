"""What a binary's kernels take: registers, stack, shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spanlite.occupancy.limits import KIB

_FUNCTION = re.compile(r"Function (\S+):\s*\n?\s*(REG:.*)")
#: A symbol of binaries in which CUDA 13 counts the driver's 1 KiB as the kernel's own.
_RESERVED = b"__nv_reservedSMEM"
_FIELD = re.compile(r"([A-Z]+):(\d+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a binary says of a kernel."""

    name: str
    registers: int
    #: Local memory a thread: spilled registers, and arrays that are indexed at run time.
    stack_bytes: int
    #: Static, without what the driver takes.
    shared_bytes: int


def read_resources(cubin: bytes, pattern: str) -> list[Resources]:
    """Kernels of a binary whose name holds `pattern`. Raises InputError and ServiceError."""
    from spanlite_analytics.lab.toolchain import run_tool

    text = run_tool("cuobjdump", ("-res-usage", "{in}"), cubin, ".cubin").words
    return parse_resources(text, pattern, KIB if _RESERVED in cubin else 0)


def parse_resources(text: str, pattern: str, reserved_bytes: int = 0) -> list[Resources]:
    """The same from what `cuobjdump -res-usage` prints.

    `reserved_bytes`: of the shared memory that it shows, what is the driver's.
    """
    found = []
    for name, fields in _FUNCTION.findall(text):
        if pattern.lower() in name.lower():
            values = {key: int(value) for key, value in _FIELD.findall(fields)}
            shared = max(values.get("SHARED", 0) - reserved_bytes, 0)
            found.append(Resources(name, values["REG"], values.get("STACK", 0), shared))
    return found
