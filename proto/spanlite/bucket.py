"""Which bucket a trace belongs to: the Kafka key, the Flink key and the archive folder at once.

Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", OOPSLA 2014) over the two halves of the id; the bucket
is the low bits, so that signed 64-bit integers (Flink SQL, Java) give the same answer.
Test vectors are in tests/proto/test_bucket.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spanlite.errors import UsageError

#: Fixed for all archives and producers: changing it would move every trace.
SEED = 0x5350414E4C495445  # "SPANLITE"
DEFAULT_BUCKETS = 64
MAX_BUCKETS = 4096

U64 = npt.NDArray[np.uint64]


def check_bucket_count(bucket_count: int) -> int:
    """Return it if it is a power of two from 1 to 4096, else raise UsageError."""
    if not 1 <= bucket_count <= MAX_BUCKETS or bucket_count & (bucket_count - 1):
        raise UsageError(
            f"bucket count {bucket_count} is not a power of two between 1 and {MAX_BUCKETS}"
        )
    return bucket_count


def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def trace_hash(low: npt.ArrayLike, high: npt.ArrayLike) -> U64:
    """64-bit hash of trace ids, shape (n,). Also decides head sampling."""
    low = np.atleast_1d(np.asarray(low, dtype=np.uint64))
    high = np.atleast_1d(np.asarray(high, dtype=np.uint64))
    with np.errstate(over="ignore"):
        return _mix(_mix(low + np.uint64(SEED)) ^ high)


def bucket_of(
    low: npt.ArrayLike, high: npt.ArrayLike, bucket_count: int = DEFAULT_BUCKETS
) -> npt.NDArray[np.int32]:
    """Bucket of each trace id, shape (n,), values 0 to bucket_count - 1."""
    mask = np.uint64(check_bucket_count(bucket_count) - 1)
    return (trace_hash(low, high) & mask).astype(np.int32)
