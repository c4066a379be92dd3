"""CUPTI's own list of what PM sampling knows on a chip, and what fits into one pass.

The host part of CUPTI needs no GPU: its wheel (nvidia-cuda-cupti) is enough.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

_POINTER, _SIZE, _TEXT, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int
_TEXTS: Any = ctypes.POINTER(_TEXT)
#: Fields after the two that all have; the names of calls without `cuptiProfilerHost`.
_CALLS: dict[str, list[tuple[str, Any]]] = {
    "Initialize": [("type", _INT), ("chip", _TEXT), ("available", _POINTER), ("host", _POINTER)],
    "Deinitialize": [("host", _POINTER)],
    "GetBaseMetrics": [("host", _POINTER), ("kind", _INT), ("names", _TEXTS), ("count", _SIZE)],
    "GetSubMetrics": [("host", _POINTER), ("kind", _INT), ("name", _TEXT), ("count", _SIZE),
                      ("names", _TEXTS)],
    "GetMetricProperties": [("host", _POINTER), ("name", _TEXT), ("description", _TEXT),
                            ("unit", _TEXT), ("dimension", _TEXT), ("kind", _INT)],
    "ConfigAddMetrics": [("host", _POINTER), ("names", _TEXTS), ("count", _SIZE)],
    "GetConfigImageSize": [("host", _POINTER), ("bytes", _SIZE)],
    "GetConfigImage": [("host", _POINTER), ("bytes", _SIZE), ("image", _POINTER)],
    "GetNumOfPasses": [("bytes", _SIZE), ("image", _POINTER), ("passes", _SIZE)],
}  # fmt: skip
_PM_SAMPLING, _KINDS = 1, 3

PCT = ".avg.pct_of_peak_sustained_elapsed"
_TPC = "TPC.TriageCompute.tpc__warps_"
_SUBS = (
    PCT, ".avg.pct_of_peak_sustained_active", ".avg.per_cycle_elapsed", ".avg.peak_sustained",
    ".sum", ".min",
)  # fmt: skip
#: Counters of the same things as what the daemon samples, each list in one pass.
CANDIDATES: dict[str, list[str]] = {
    "warps": [f"{_TPC}active_realtime{sub}" for sub in _SUBS]
    + [f"sm__warps_active_realtime{sub}" for sub in _SUBS]
    + [f"{_TPC}{word}_realtime{PCT}" for word in ("inactive_sm_active", "inactive_sm_idle")]
    + ["sm__cycles_active" + PCT],
    "warps_not_realtime": [f"sm__warps_active{sub}" for sub in _SUBS]
    + ["TPC.TriageCompute.sm__cycles_active" + PCT, "gpc__cycles_elapsed.avg.per_second"],
    "tensor": [
        f"{name}{PCT}" for name in (
            "sm__pipe_tensor_cycles_active", "sm__inst_executed_realtime",
            "TPC.TriageCompute.sm__pipe_tensor_op_hmma_cycles_active_realtime",
        )
    ],
    "memory": [
        "LTS.TriageCompute.lts__average_t_sector_hit_rate_srcunit_tex_realtime.pct",
        "lts__t_sectors.sum.per_second", "dram__bytes_read.sum.per_second",
        "dram__bytes.sum.peak_sustained_elapsed.per_second", "dram__read_throughput" + PCT,
        "FBSP.TriageCompute.dramc__throughput" + PCT,
    ],
}  # fmt: skip

#: The cases that candidates are judged by.
ABOUT: dict[str, str | tuple[str, ...]] = {
    "warps": "spin", "warps_not_realtime": "spin", "tensor": "matmul", "memory": ("l2", "dram"),
}  # fmt: skip


class RefusedError(Exception):
    """CUPTI's answer to a call was an error."""


class MetricNames:
    """The metrics of a chip, GH100 for instance. Raises OSError where there is no libcupti."""

    def __init__(self, chip: str = "GH100", cupti: Path | None = None) -> None:
        path = cupti or _libcupti()
        host = path.with_name("libnvperf_host.so")
        if host.exists():  # else it is looked for in the loader's folders
            ctypes.CDLL(str(host), ctypes.RTLD_GLOBAL)
        self._cupti = ctypes.CDLL(str(path))
        self._chip = chip.encode()
        self._host = self._open()

    def names(self, word: str = "") -> dict[str, tuple[str, str]]:
        """Base metrics with that word in their name: description and dimension."""
        found = []
        for kind in range(_KINDS):
            listed = self._call("GetBaseMetrics", host=self._host, kind=kind)
            found += [listed.names[i] for i in range(listed.count)]
        return {name.decode(): self._about(name) for name in sorted(found) if word.encode() in name}

    def sub_metrics(self, name: str) -> list[str]:
        """The endings that a base metric can have."""
        for kind in range(_KINDS):
            try:
                found = self._call("GetSubMetrics", host=self._host, kind=kind, name=name.encode())
            except RefusedError:
                continue
            return [found.names[i].decode() for i in range(found.count)]
        return []

    def passes(self, metrics: Collection[str]) -> int:
        """How many passes these take together; 0: one of them does not exist."""
        host = self._open()
        texts = (_TEXT * len(metrics))(*[metric.encode() for metric in metrics])
        try:
            self._call("ConfigAddMetrics", host=host, names=texts, count=len(metrics))
            size = self._call("GetConfigImageSize", host=host).bytes
            image = ctypes.create_string_buffer(size)
            place = {"bytes": size, "image": ctypes.addressof(image)}
            self._call("GetConfigImage", host=host, **place)
            return int(self._call("GetNumOfPasses", **place).passes)
        except RefusedError:
            return 0
        finally:
            self._call("Deinitialize", host=host)

    def _about(self, name: bytes) -> tuple[str, str]:
        about = self._call("GetMetricProperties", host=self._host, name=name)
        return (about.description or b"").decode(), (about.dimension or b"").decode()

    def _open(self) -> Any:
        return self._call("Initialize", type=_PM_SAMPLING, chip=self._chip).host

    def _call(self, word: str, **values: Any) -> Any:
        fields = [("size", _SIZE), ("private", _POINTER), *_CALLS[word]]
        kind = type(word, (ctypes.Structure,), {"_fields_": fields})
        params = kind(**values)
        last, last_type = fields[-1]
        params.size = getattr(kind, last).offset + ctypes.sizeof(last_type)
        answer = getattr(self._cupti, f"cuptiProfilerHost{word}")(ctypes.byref(params))
        if answer != 0:
            raise RefusedError(f"cuptiProfilerHost{word}: {answer}")
        return params


def _libcupti() -> Path:
    found = [p for base in sys.path for p in Path(base).glob("nvidia/*/lib/libcupti.so.1?")]
    return max(found, key=lambda path: path.name) if found else Path("libcupti.so.13")
