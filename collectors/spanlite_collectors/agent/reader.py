"""RingReader: one process's ring, its records made into spans, and what is known of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spanlite.kinds import SpanKind

from spanlite_collectors.agent.clocks import ClockHistory
from spanlite_collectors.agent.convert import Converter, Sample
from spanlite_collectors.agent.known import Known
from spanlite_collectors.agent.layout import Level
from spanlite_collectors.agent.measure import Measure
from spanlite_collectors.agent.pm import PmHistory
from spanlite_collectors.agent.process import Patience, ProcessSpans
from spanlite_collectors.agent.resource import describe, host_pid
from spanlite_collectors.agent.ring import Ring
from spanlite_collectors.agent.rows import Rows
from spanlite_collectors.agent.status import Account, ProcessStatus, disabled, status_of
from spanlite_collectors.sinks import SpanSink

DEFAULT_FOLDER = "/dev/shm/spanlite"
_DRAINS_AT_ONCE = 16
#: What ended before is the past: a window opened for it would not show its cause.
_RECENT_NS = 5_000_000_000


@dataclass
class RingOptions:
    """How rings are read."""

    folders: Sequence[Path] = (Path(DEFAULT_FOLDER),)
    #: Set on each process when its ring is found; None: leave it as it is.
    level: Level | None = None
    #: The same of how long a step may take before a window opens; 0: as long as it likes.
    step_slo_ns: int | None = None
    #: Called with what a request took that took longer than `request_slo_ns`; 0: none is too long.
    request_slo_ns: int = 0
    slow_request: Callable[[str], None] = lambda text: None
    #: More resource attributes for all processes, or for one (host pid or None).
    attributes: Mapping[str, Any] = field(default_factory=dict)
    #: The samples of a process's GPU, from its resource attributes; None: there are none.
    history_of: Callable[[Mapping[str, Any]], PmHistory | None] = lambda resource: None
    #: The same of its clock.
    clocks_of: Callable[[Mapping[str, Any]], ClockHistory | None] = lambda resource: None
    describe_gpus: Callable[[int | None], Mapping[str, Any]] = lambda pid: {}
    patience: Patience = field(default_factory=Patience)


class RingReader:
    """A ring with its converter and its waiting rows."""

    def __init__(
        self,
        ring: Ring,
        sink: SpanSink,
        options: RingOptions,
        sampled: Callable[[Mapping[str, Any], Sample], None],
        known: Known,
    ) -> None:
        self.ring, self._sink, self._options, self.known = ring, sink, options, known
        pid, ticks = ring.process_id, int(ring.header["process_start_ticks"][0])
        seen_as = host_pid(pid, ticks) if ring.alive else None
        self.resource = {
            **describe(ring.executable, pid, seen_as),
            "spanlite.agent.version": ring.agent_version,
            "spanlite.clock": "CLOCK_REALTIME",
            **options.describe_gpus(seen_as),
            **options.attributes,
        }
        identity = f"{self.resource['host.name']}/{pid}/{ring.path.name}"
        measure = Measure(options.history_of, self.resource, options.clocks_of)
        self.spans = ProcessSpans(sink, self.resource, identity, options.patience, measure)
        self._converter = Converter(self.spans.texts, lambda sample: sampled(self.resource, sample))
        self.dropped: dict[str, int] = {}
        self._records = 0
        self._emptied = False  # by the last drain
        self._disabled = ""  # as it was told
        #: Records out of the ring that are no rows yet.
        self.in_hand = 0
        if options.level is not None:
            ring.set_control("level", options.level)
        if options.step_slo_ns is not None:
            ring.set_control("step_slo_ns", options.step_slo_ns)
        self._renewals = self._learned = 0
        if ring.was_read_before:
            self._recall()

    def _recall(self) -> None:
        """What a daemon before this one knew. What that had in hand at its end comes anew."""
        strings, graphs = self._converter.strings, self.spans.graphs
        strings.take(self.known.texts())
        strings.renew()
        with suppress(ValueError, TypeError, KeyError, IndexError):
            graphs.restore(self.known.stages())
        self._learned = graphs.learned
        self._put_texts()
        self.ring.ask_strings_anew()

    def _put_texts(self) -> None:
        """Those that still count, in place of all that came: the file must not grow on."""
        strings = self._converter.strings
        self._renewals = strings.renewals
        self.known.put_texts(strings.records())

    def flush(self, now_ns: int, final: bool = False) -> None:
        """Write spans, and what there is to be known."""
        self.spans.flush(now_ns, final)
        graphs = self.spans.graphs
        if self.known.is_behind:
            self.known.put_all(self._converter.strings.records(), graphs.state())
        if self._converter.strings.renewals != self._renewals:
            self._put_texts()
        if graphs.learned != self._learned:
            self._learned = graphs.learned
            self.known.put_stages(graphs.state())

    def drain(self) -> bool:
        """Take in what is there. False: the ring is damaged."""
        # Read before the records: what closed before it was set lies in the ring already.
        state = self.ring.state[0]
        self._emptied = False
        self.spans.windows.continuous = bool(
            state["window_open"] and int(state["level"]) == Level.CONTINUOUS
        )
        for _ in range(_DRAINS_AT_ONCE):
            count, records, strings = self.ring.drain()
            if count < 0:
                return False
            if count == 0:
                self._emptied = True
                break
            self._records += count
            self.in_hand = sum(map(len, records.values()))
            self.known.add_texts(strings)  # first: should we be killed meanwhile
            converted = self._converter.convert(records, strings)
            self._judge_requests(converted.host)
            self.spans.take(converted)
            self.in_hand = 0
        drops = self.ring.new_drops()
        if drops is None:
            return False
        for reason, lost in drops.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + lost
            self._sink.drop(reason, lost)
        return True

    def _judge_requests(self, host: Rows) -> None:
        """Tell the slowest request that broke its SLO just now: what a daemon that comes late finds
        in a ring says nothing about this moment."""
        slo_ns = self._options.request_slo_ns
        if not slo_ns:
            return
        slow = (host["kind"] == SpanKind.REQUEST) & (host["duration"] > slo_ns)
        slow &= host["start"] + host["duration"] > time.time_ns() - _RECENT_NS
        if slow.any():
            took = host["duration"][slow].max() / 1e6
            self._options.slow_request(f"{took:.4g} ms, SLO {slo_ns / 1e6:g} ms")

    def drain_dead(self) -> bool:
        """Everything that a dead process left. False: the ring is damaged."""
        while self.drain():
            if self._emptied and not self.ring.skip_torn():
                return True
        return False

    def newly_disabled(self) -> str:
        """Why the agent records no kernels, where it did not say so at the last call."""
        before, self._disabled = self._disabled, disabled(self.ring)
        return self._disabled if self._disabled != before else ""

    def account(self) -> Account:
        """What became of what was read."""
        spans = self.spans
        return Account(self._records, self._converter.rows, spans.written, spans.waiting)

    def status(self) -> ProcessStatus:
        """What the agent says."""
        return status_of(self.ring, self.dropped)
