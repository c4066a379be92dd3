"""The job's counters, as the embedded cluster's REST endpoint gives them."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

_TIMEOUT_S = 2.0
#: How old a figure may be; Flink's own 10 s are too long for a short run.
UPDATE_MS = 1000
#: How long the list of what is measured is good for; the source may come by partitions.
_LIST_S = 5.0
_OFFSET = re.compile(r"\.KafkaSourceReader\.topic\..*\.partition\.(\d+)\.currentOffset$")


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class JobMetrics:
    """What the source and the keyed function tell, over all subtasks."""

    def __init__(self, port: int, job_id: str) -> None:
        self._base = f"http://127.0.0.1:{port}/jobs/{job_id}"
        self._vertex = ""
        self._names: dict[str, str] = {}
        self._source = ""
        self._partitions: dict[str, int] = {}  # by the metric that tells its offset
        self._listed = 0.0

    def _get(self, path: str) -> Any:
        with urlopen(self._base + path, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)

    def _find(self) -> None:
        for vertex in self._get("")["vertices"]:
            base = f"/vertices/{vertex['id']}/subtasks/metrics"
            if vertex["name"].startswith("Source"):
                self._source = base
            for item in self._get(base):
                for name in ("spans_in", "spans_out"):
                    if item["id"].endswith(f".{name}"):
                        self._vertex, self._names[name] = base, item["id"]

    def read(self) -> dict[str, int]:
        """spans_in and spans_out since the job started; empty where they are not known."""
        try:
            if len(self._names) < 2:
                self._find()
            if not self._names:
                return {}
            rows = self._get(f"{self._vertex}?get={','.join(self._names.values())}&agg=sum")
        except (URLError, OSError, ValueError, KeyError):
            return {}
        sums = {row["id"]: int(row["sum"]) for row in rows}
        return {name: sums.get(metric, 0) for name, metric in self._names.items()}

    def positions(self) -> dict[int, int]:
        """The offset after the last message taken from each partition since the job started.

        Partitions of which none was taken are not in it; empty where nothing is known.
        """
        try:
            if not self._source:
                self._find()
            partitions = self._list_partitions()
            if not partitions:
                return {}
            rows = self._get(f"{self._source}?get={','.join(partitions)}&agg=max")
        except (URLError, OSError, ValueError, KeyError):
            return {}
        last = {partitions[row["id"]]: int(row["max"]) for row in rows}
        return {partition: offset + 1 for partition, offset in last.items() if offset >= 0}

    def _list_partitions(self) -> dict[str, int]:
        """Partition by metric. A source has hundreds of metrics: not listed at each poll."""
        now = time.monotonic()
        if not self._partitions or now - self._listed >= _LIST_S:
            found = (_OFFSET.search(item["id"]) for item in self._get(self._source))
            self._partitions = {match.string: int(match[1]) for match in found if match}
            self._listed = now
        return self._partitions
