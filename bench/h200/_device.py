"""What every table measured on the GPU carries, and the driver API it is measured with.

Plain Python, numpy and ctypes: the machine with the GPU need not have the packages installed.
"""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench._gpu import ask

TABLES = Path(__file__).parent / "tables"
_FIELDS = (
    "name", "driver_version", "compute_cap", "clocks.sm", "clocks.mem", "clocks.max.sm",
    "power.limit",
)  # fmt: skip


def surroundings() -> dict[str, Any]:
    """GPU, driver, clocks, command and date."""
    words = [Path(sys.argv[0]).stem, *sys.argv[1:]]
    return ask(*_FIELDS) | {
        "command": "python3 -m bench.h200." + " ".join(words),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python": platform.python_version(),
    }


def save(name: str, columns: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Path:
    """Write `tables/NAME.npz`: integer columns as small as they fit, and JSON under `about`."""
    TABLES.mkdir(exist_ok=True)
    small = {key: value.astype(_smallest(value)) for key, value in columns.items()}
    path = TABLES / f"{name}.npz"
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **small)
    return path


def _smallest(values: np.ndarray) -> np.dtype[Any]:
    if values.dtype.kind not in "iu" or values.size == 0:
        return values.dtype
    low, high = int(values.min()), int(values.max())
    return np.promote_types(np.min_scalar_type(low), np.min_scalar_type(high))


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Columns and what is said about them."""
    with np.load(path, allow_pickle=False) as stored:
        columns = {key: stored[key] for key in stored.files if key != "about"}
        return columns, json.loads(str(stored["about"]))


class Driver:
    """libcuda with one context on device 0. Every call that fails raises RuntimeError."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the API."""
        function: Callable[..., int] = getattr(self.library, name)
        status = function(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")

    def attribute(self, number: int) -> int:
        """A device attribute."""
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def load_module(self, cubin: bytes) -> ctypes.c_void_p:
        """Load a cubin."""
        module = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """A kernel of a module."""
        found = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found


def compile_cubin(source: str, folder: Path, name: str, nvcc: str, *flags: str) -> bytes:
    """Compile CUDA C++ for sm_90a."""
    path, cubin = folder / f"{name}.cu", folder / f"{name}.cubin"
    path.write_text(source)
    command = [nvcc, "-cubin", "-arch=sm_90a", "-std=c++17", *flags, "-o", str(cubin), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc failed on {name}:\n{done.stderr}")
    return cubin.read_bytes()
