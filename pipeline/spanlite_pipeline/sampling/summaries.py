"""What the job knows of each undecided trace when it is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class TraceSummaries:
    """One row a trace, as columns of equal length (n,)."""

    trace_low: npt.NDArray[np.uint64]
    trace_high: npt.NDArray[np.uint64]
    start_ns: npt.NDArray[np.int64]  # of the earliest span, Unix time
    end_ns: npt.NDArray[np.int64]  # of the span that ends last
    spans: npt.NDArray[np.int64]
    errors: npt.NDArray[np.int64]  # spans with status ERROR
    device_ns: npt.NDArray[np.int64]  # summed time on devices
    wire_bytes: npt.NDArray[np.int64]  # its share of the uncompressed batches
    matches: npt.NDArray[np.uint64]  # RuleSet.span_matches, OR-ed over its spans

    def __len__(self) -> int:
        return len(self.trace_low)
