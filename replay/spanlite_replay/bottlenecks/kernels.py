"""Whether a kernel is bound by compute or memory, and how much others slowed it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import I64, Bound, Reason, Stretches
from spanlite_replay.bottlenecks.gpus import Gpu, gpu_of
from spanlite_replay.bottlenecks.recorded import Recorded, ancestor
from spanlite_replay.recording import factorise

F64 = npt.NDArray[np.float64]
SIGNATURE = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
#: A kernel counts as alone where other streams ran in less of its time than this.
ALONE = 0.1
#: So often it must have been alone before it is said to be slowed.
ALONE_TIMES = 3
#: Slower than alone by less than this is no contention.
SLOWED = 1.15
#: Attributes that counters leave on a kernel: share of the peak, in percent.
_MEMORY_COUNTERS = ("dram_throughput_pct", "dram__throughput.avg.pct_of_peak_sustained_elapsed")
_COMPUTE_COUNTERS = ("sm_throughput_pct", "sm__throughput.avg.pct_of_peak_sustained_elapsed")
#: Below this share of the peak a counter says that something else is the limit.
NEAR_PEAK_PCT = 50
_GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|wgmma|xmma|conv|_mm_|matmul", re.I)
_ATTENTION = re.compile(r"flash|fmha|sdpa|attention", re.IGNORECASE)
_STREAMING = re.compile(
    r"elementwise|reduce|norm|softmax|copy|cat|index|gather|scatter|fill|arange|topk|sort|argmax|"
    r"rotary|rope|embedding|triton_(poi|red|per)|splitkreduce|distribution|cast|transpose",
    re.IGNORECASE,
)
_MATRIX_OPS = re.compile(r"aten::(mm|addmm|bmm|baddbmm|linear|matmul)$")
_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Float8": 1, "Char": 1, "Byte": 1}


@dataclass(frozen=True)
class Signature:
    """Kernels of one name, grid and block."""

    name: str
    blocks: int
    bound: Bound
    #: How it is known: `counters`, `shapes`, `family` (of the name), or `assumed`.
    known_by: str
    evidence: str
    alone_ns: float | None  # median duration without company
    alone_times: int


@dataclass(frozen=True)
class Kernels:
    """All signatures, and of each span which one it is (-1: not a kernel)."""

    gpu: Gpu
    signatures: list[Signature]
    of: I64
    accompanied: F64  # share of a span's time in which other streams ran

    def excess_ns(self, rec: Recorded) -> I64:
        """How much longer than alone each kernel took, beside others. Shape (spans,)."""
        alone = np.array([one.alone_ns or math.nan for one in self.signatures] or [math.nan])
        usual = np.where(self.of >= 0, alone[self.of], math.nan)
        took = rec.end - rec.start
        slowed = (self.accompanied > ALONE) & (took > SLOWED * usual)
        return np.where(slowed, took - np.nan_to_num(usual), 0).astype(np.int64)


def find_kernels(rec: Recorded) -> Kernels:
    """Look at each signature once."""
    kernel = np.flatnonzero(rec.kind == SpanKind.KERNEL)
    of = np.full(len(rec.start), -1, np.int64)
    table = rec.recording.table
    codes, keys = factorise(table, SIGNATURE, rec.work.row[kernel])
    of[kernel] = codes
    company = _company(rec)
    gpu = gpu_of(_gpu_name(rec))
    first = np.zeros(len(keys), np.int64)
    first[codes[::-1]] = kernel[::-1]
    operators = ancestor(rec.parent, _is_matrix_op(rec), first)
    rows = keys.to_pylist()
    texts = attributes_at(rec, first)
    shapes = attributes_at(rec, np.maximum(operators, 0))
    took = (rec.end - rec.start)[kernel]
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(keys) + 1))
    signatures = []
    for number, key in enumerate(rows):
        mine = order[bounds[number] : bounds[number + 1]]
        alone = took[mine][company[kernel[mine]] <= ALONE]
        usual = float(np.median(alone)) if len(alone) >= ALONE_TIMES else None
        operator = shapes[number] if operators[number] >= 0 else {}
        name = rec.names[int(rec.name[operators[number]])] if operators[number] >= 0 else ""
        told = _bound(key["name"] or "", texts[number], name, operator, gpu)
        blocks = math.prod(key[f"grid_{axis}"] or 1 for axis in "xyz")
        signatures.append(Signature(key["name"] or "", blocks, *told, usual, len(alone)))
    return Kernels(gpu, signatures, of, company)


def judge(stretches: Stretches, rec: Recorded, kernels: Kernels) -> Stretches:
    """Give kernels' stretches their bound, and cut off what contention cost."""
    running = np.flatnonzero(stretches.reason == Reason.KERNEL)
    signature = kernels.of[stretches.span[running]]
    by_signature = np.array([int(one.bound) for one in kernels.signatures] or [0], np.int64)
    bound = stretches.bound.copy()
    bound[running] = np.where(signature >= 0, by_signature[signature], Bound.COMPUTE)
    span = stretches.span[running]
    lost = kernels.excess_ns(rec)[span]
    # Of a stretch that is part of a kernel only the same part.
    took = np.maximum((rec.end - rec.start)[span], 1)
    lost = lost * stretches.ns[running] // took
    cut = running[lost > 0]
    middle = stretches.end_ns.copy()
    middle[cut] -= lost[lost > 0]
    kept = replace(stretches, bound=bound, end_ns=middle)
    extra = Stretches(
        stretches.window[cut],
        middle[cut],
        stretches.end_ns[cut],
        np.full(len(cut), int(Reason.SLOWED)),
        np.full(len(cut), int(Bound.CONTENTION)),
        stretches.span[cut],
    )
    return joined([kept, extra])


def joined(parts: list[Stretches]) -> Stretches:
    """Several as one, by window and time."""
    names = ("window", "start_ns", "end_ns", "reason", "bound", "span")
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    order = np.lexsort((columns[2], columns[1], columns[0]))
    return Stretches(*(column[order] for column in columns))


def _company(rec: Recorded) -> F64:
    """Share of each device span's time in which another stream of its device ran something."""
    device = np.flatnonzero(rec.is_device)
    share = np.zeros(len(rec.start))
    home, _ = factorise(rec.work.streams, ("host", "device"))
    place = home[rec.work.stream[device]]
    for one in np.unique(place):
        rows = device[place == one]
        moments = np.concatenate((rec.start[rows], rec.end[rows]))
        change = np.repeat([1, -1], len(rows))
        order = np.lexsort((change, moments))
        at = moments[order]
        busy = np.cumsum(change[order])[:-1] >= 2
        both = np.concatenate(([0], np.cumsum(np.diff(at) * busy)))
        together = (
            both[np.searchsorted(at, rec.end[rows], side="right") - 1]
            - both[np.searchsorted(at, rec.start[rows], side="right") - 1]
        )
        share[rows] = together / np.maximum(rec.end[rows] - rec.start[rows], 1)
    return share


def _bound(
    name: str, counters: dict[str, Any], operator: str, shapes: dict[str, Any], gpu: Gpu
) -> tuple[Bound, str, str]:
    """(bound, how it is known, evidence)."""
    if (sampled := _sampled(counters)) is not None:
        return sampled
    memory = next((counters[key] for key in _MEMORY_COUNTERS if key in counters), None)
    compute = next((counters[key] for key in _COMPUTE_COUNTERS if key in counters), None)
    if memory is not None and compute is not None:
        bound = Bound.MEMORY if float(memory) >= float(compute) else Bound.COMPUTE
        return bound, "counters", f"DRAM {memory} %, SM {compute} % of the peak"
    if (done := _intensity(operator, shapes)) is not None and _GEMM.search(name):
        bound = Bound.MEMORY if done < gpu.ridge else Bound.COMPUTE
        return (
            bound,
            "shapes",
            (f"{operator}: {done:,.0f} operations a byte; {gpu.name} balances at {gpu.ridge:,.0f}"),
        )
    if _ATTENTION.search(name):
        return Bound.COMPUTE, "family", "attention by its name, shapes not recorded"
    if _STREAMING.search(name):
        return Bound.MEMORY, "family", "few operations an element, by the family of its name"
    if _GEMM.search(name):
        return Bound.COMPUTE, "family", "matrix product by its name, shapes not recorded"
    return Bound.COMPUTE, "assumed", "neither counters nor shapes are recorded"


def _sampled(counters: dict[str, Any]) -> tuple[Bound, str, str] | None:
    """From the agent's samples of the GPU's counters while the kernel, or its stage, ran."""
    memory, tensor = counters.get("gpu.dram_pct"), counters.get("gpu.tensor_pct")
    if not isinstance(memory, (int, float)) or not isinstance(tensor, (int, float)):
        return None
    said = f"DRAM {memory:.0f} %, tensor cores {tensor:.0f} % of the peak"
    said += ", of its stage" if counters.get("gpu.of") == "stage" else ""
    if max(memory, tensor) < NEAR_PEAK_PCT:
        said += ": neither is near it"
    return Bound.MEMORY if memory >= max(tensor, NEAR_PEAK_PCT) else Bound.COMPUTE, "counters", said


def _intensity(operator: str, attributes: dict[str, Any]) -> float | None:
    """Operations a byte of a matrix product, from its recorded shapes and types."""
    dims, types = attributes.get("Input Dims"), attributes.get("Input type")
    if not dims or not types:
        return None
    tensors = [(dim, kind) for dim, kind in zip(dims, types, strict=False) if dim and len(dim) >= 2]
    if len(tensors) < 2:
        return None
    (a, kind), (b, _) = tensors[-2:]
    width = next((size for word, size in _BYTES.items() if word in str(kind)), 4)
    inner = a[-1]
    outer = b[-2] if operator == "aten::linear" else b[-1]
    rows, deep = a[-2] * math.prod(a[:-2]), math.prod(b[:-2])
    moved = width * (math.prod(a) + math.prod(b) + rows * outer)
    return 2 * rows * inner * outer / moved if moved and deep else None


def _is_matrix_op(rec: Recorded) -> npt.NDArray[np.bool_]:
    hit = np.array([bool(_MATRIX_OPS.match(name)) for name in rec.names] or [False])
    return np.asarray((rec.kind == SpanKind.OPERATOR) & hit[rec.name], np.bool_)


def attributes_at(rec: Recorded, positions: I64) -> list[dict[str, Any]]:
    """The attributes of some spans, parsed."""
    texts = rec.recording.table.column("attributes").take(pa.array(rec.work.row[positions]))
    return list(_parsed(texts.to_pylist()))


def _parsed(texts: list[str | None]) -> Iterator[dict[str, Any]]:
    for text in texts:
        found = json.loads(text) if text else {}
        yield found if isinstance(found, dict) else {}


def _gpu_name(rec: Recorded) -> str:
    column = rec.recording.table.column("resource")
    for text in column.cast(pa.string()).unique().to_pylist():
        name = (json.loads(text) if text else {}).get("gpu.name")
        if name:
            return str(name)
    return ""
