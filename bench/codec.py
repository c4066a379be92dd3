"""Spans a second through the codec on one core, against OTLP protobuf in the same run.

python -m bench.codec [--quick]

CPU seconds of this process are counted, for each message the best of several rounds in
which codec and peer take turns: so other load on the machine matters less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from spanlite.codec import (
    Batch,
    BatchView,
    decode_batch,
    decode_lite,
    encode_batch,
    encode_lite,
)
from spanlite_collectors.generator import DecodeConfig, generate

from bench._peers import otlp
from bench._report import emit
from bench.wire_size import batches

#: What a roll-up by minute, kernel and trace reads.
ROLL_UP = ("start_ns", "duration_ns", "kind", "name", "status", "device", "bytes")
#: Rows made in Python are slow: the peer and SpanLite get this many spans.
PEER_SPANS = 10_000
OTLP = "OTLP protobuf (upb)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans and rounds")
    args = parser.parse_args()
    config = DecodeConfig(spans=250_000 if args.quick else 2_000_000, processes=1)
    # Few buckets, so that batches hold about 16,000 spans each, as on a busy host.
    sent = list(batches(generate(config), buckets=8 if args.quick else 64))
    few = _first(sent, PEER_SPANS)
    messages = [encode_batch(batch) for batch in sent]
    requests = [otlp(batch.spans, dict(batch.resource)) for batch in few]
    spans, peers = _count(sent), _count(few)
    lists = [encode_lite(batch) for batch in few]
    rates = best_rates(
        {
            "encode": (spans, [partial(encode_batch, batch) for batch in sent]),
            "decode": (spans, [partial(decode_batch, message) for message in messages]),
            "roll_up": (spans, [partial(roll_up, message) for message in messages]),
            "lite_encode": (peers, [partial(encode_lite, batch) for batch in few]),
            "lite_decode": (peers, [partial(decode_lite, lite) for lite in lists]),
            "otlp_encode": (peers, [partial(otlp, b.spans, dict(b.resource)) for b in few]),
            "otlp_decode": (peers, [partial(read_otlp, request) for request in requests]),
        },
        rounds=5 if args.quick else 15,
    )
    encode, decode = rates["encode"], rates["decode"]
    size = round(spans / len(sent))
    unit = "spans/s"
    emit(
        "codec.encode_spans_per_s", round(encode), unit, goal=3e6, peer=OTLP,
        ratio=encode / rates["otlp_encode"], batch_spans=size,
    )  # fmt: skip
    emit(
        "codec.decode_spans_per_s", round(decode), unit, goal=5e6, peer=OTLP,
        ratio=decode / rates["otlp_decode"], batch_spans=size,
    )  # fmt: skip
    emit("codec.decode_roll_up_spans_per_s", round(rates["roll_up"]), unit, goal=10e6)
    emit("codec.lite_encode_spans_per_s", round(rates["lite_encode"]), unit)
    emit("codec.lite_decode_spans_per_s", round(rates["lite_decode"]), unit)


def best_rates(
    work: dict[str, tuple[int, list[Callable[[], object]]]], rounds: int
) -> dict[str, float]:
    """Spans a CPU second; for each piece of work the best of so many rounds."""
    best = {name: [float("inf")] * len(pieces) for name, (_, pieces) in work.items()}
    for _ in range(rounds):
        for name, (_, pieces) in work.items():
            for i, run in enumerate(pieces):
                began = time.process_time()
                run()
                best[name][i] = min(best[name][i], time.process_time() - began)
    return {name: spans / sum(best[name]) for name, (spans, _) in work.items()}


def roll_up(message: bytes) -> None:
    """Decode the columns that a roll-up needs."""
    view = BatchView(message)
    for name in ROLL_UP:
        view.column(name)
    _ = view.trace_index


def read_otlp(request: bytes) -> list[np.ndarray]:
    """OTLP bytes to a few numpy columns: far less than our decoder restores."""
    groups = ExportTraceServiceRequest.FromString(request).resource_spans
    spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
    start = np.array([span.start_time_unix_nano for span in spans], np.int64)
    end = np.array([span.end_time_unix_nano for span in spans], np.int64)
    names = np.array([span.name for span in spans], object)
    return [start, end - start, names]


def _count(sent: list[Batch]) -> int:
    return sum(batch.spans.num_rows for batch in sent)


def _first(sent: list[Batch], spans: int) -> list[Batch]:
    """The first batches, about so many spans."""
    out: list[Batch] = []
    for batch in sent:
        if _count(out) >= spans:
            break
        out.append(batch)
    return out


if __name__ == "__main__":
    main()
