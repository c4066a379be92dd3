"""What the keyed function is told. Plain values only: it is pickled to the workers."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.bucket import DEFAULT_BUCKETS
from spanlite.topics import RAW_TOPIC

KEEP_ALL = "policies:\n  - name: keep-all\n    type: always_sample\n"


@dataclass(frozen=True)
class BucketSettings:
    """How each bucket is handled. Times are processing time in ms."""

    rules: str = KEEP_ALL  # YAML text
    bucket_count: int = DEFAULT_BUCKETS
    topic: str = RAW_TOPIC
    job: str = "spanlite"  # the ledger's source
    #: A trace is decided once it has been quiet for so long.
    decision_wait_ms: int = 30_000
    #: A bucket writes its files this often: less often makes fewer, larger files.
    flush_interval_ms: int = 20_000
    #: Spans of a decided trace may come so much later and still follow it.
    decision_ttl_ms: int = 600_000
    #: Decisions remembered per bucket: some 20 bytes each, in Python and in Flink.
    decision_limit: int = 1 << 17
    #: Far above the time for which a producer may send a batch again.
    dedup_ttl_ms: int = 24 * 3_600_000
    #: A trace with more spans than that is decided at once; the rest of it follows.
    max_trace_spans: int = 200_000
    #: Compressed undecided batches per bucket; beyond it the oldest traces are decided early.
    max_pending_bytes: int = 32 << 20
