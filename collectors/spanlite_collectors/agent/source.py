"""RingSource: finds the rings of a host's processes, drains them, and lets them go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spanlite.errors import InputError, SpanLiteError, UsageError

from spanlite_collectors.agent.clocks import ClockHistory
from spanlite_collectors.agent.convert import Converter, Sample
from spanlite_collectors.agent.known import Known, remove_strays
from spanlite_collectors.agent.layout import Level, WindowReason
from spanlite_collectors.agent.measure import Measure
from spanlite_collectors.agent.pm import PmHistory
from spanlite_collectors.agent.process import Patience, ProcessSpans
from spanlite_collectors.agent.resource import describe, host_pid
from spanlite_collectors.agent.ring import Ring, RingAccessError, rings_in
from spanlite_collectors.agent.status import Account, ProcessStatus, status_of
from spanlite_collectors.agent.troubles import Refusals, Troubles, is_curable
from spanlite_collectors.sinks import SpanSink

DEFAULT_FOLDER = "/dev/shm/spanlite"
#: A ring of 64 MiB then holds two million records a second.
DRAIN_EVERY_S = 0.2
#: Spans are made and folders searched this often.
FLUSH_EVERY_S = 1.0
_DRAINS_AT_ONCE = 16


@dataclass
class RingOptions:
    """How rings are read."""

    folders: Sequence[Path] = (Path(DEFAULT_FOLDER),)
    #: Set on each process when its ring is found; None: leave it as it is.
    level: Level | None = None
    #: More resource attributes for all processes, or for one (host pid or None).
    attributes: Mapping[str, Any] = field(default_factory=dict)
    #: The samples of a process's GPU, from its resource attributes; None: there are none.
    history_of: Callable[[Mapping[str, Any]], PmHistory | None] = lambda resource: None
    #: The same of its clock.
    clocks_of: Callable[[Mapping[str, Any]], ClockHistory | None] = lambda resource: None
    describe_gpus: Callable[[int | None], Mapping[str, Any]] = lambda pid: {}
    patience: Patience = field(default_factory=Patience)


class _Process:
    """A ring with its converter and its waiting rows."""

    def __init__(
        self,
        ring: Ring,
        sink: SpanSink,
        options: RingOptions,
        sampled: Callable[[Mapping[str, Any], Sample], None],
        known: Known,
    ) -> None:
        self.ring, self._sink, self.known = ring, sink, known
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
        #: Records out of the ring that are no rows yet.
        self.in_hand = 0
        if options.level is not None:
            ring.set_control("level", options.level)
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
            self.spans.take(self._converter.convert(records, strings))
            self.in_hand = 0
        drops = self.ring.new_drops()
        if drops is None:
            return False
        for reason, lost in drops.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + lost
            self._sink.drop(reason, lost)
        return True

    def drain_dead(self) -> bool:
        """Everything that a dead process left. False: the ring is damaged."""
        while self.drain():
            if self._emptied and not self.ring.skip_torn():
                return True
        return False

    def account(self) -> Account:
        """What became of what was read."""
        spans = self.spans
        return Account(self._records, self._converter.rows, spans.written, spans.waiting)

    def status(self) -> ProcessStatus:
        """What the agent says."""
        return status_of(self.ring, self.dropped)


class RingSource:
    """Reads all rings of some folders into a sink, from a thread of its own."""

    def __init__(
        self,
        sink: SpanSink,
        options: RingOptions,
        *,
        say: Callable[[str], None] = lambda text: None,
        sampled: Callable[[Mapping[str, Any], Sample], None] = lambda resource, sample: None,
    ) -> None:
        self._sink, self._options, self._say, self._sampled = sink, options, say, sampled
        self._processes: dict[Path, _Process] = {}
        self._refusals = Refusals(say)
        self.troubles = Troubles(say)
        self._stop = threading.Event()
        # A value that a drain brings may ask for a capture.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="rings", daemon=True)
        self.damaged_rings = 0
        self._ended = Account()

    @property
    def url(self) -> str:
        """The folders."""
        return ", ".join(f"{folder}/*.ring" for folder in self._options.folders)

    def start(self) -> None:
        """Drain from now on."""
        self._thread.start()

    @property
    def troubles_now(self) -> int:
        """Folders that cannot be searched, rings that cannot be opened, and the like."""
        return len(self.troubles) + len(self._refusals)

    @property
    def healthy(self) -> bool:
        """Whether rings are read, as far as this process can do something about it."""
        curable = self.troubles.curable or self._refusals.curable
        ended = self._thread.ident is not None and not self._thread.is_alive()
        return not curable and (not ended or self._stop.is_set())

    def stop(self) -> None:
        """Drain once more, write everything, and let the rings be: processes go on."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            try:
                self._each(self._end)
            except SpanLiteError as error:
                self._give_up(error)
        told = self._ended
        if told.records:
            self._say(
                f"{told.records} records read from rings, {told.rows} of spans; {told.spans} spans "
                f"made, {told.dropped} dropped"
            )

    def processes(self) -> list[ProcessStatus]:
        """The processes whose rings are open."""
        with self._lock:
            return [process.status() for process in self._processes.values()]

    def account(self) -> Account:
        """What became of what was read from all rings so far."""
        with self._lock:
            return sum((p.account() for p in self._processes.values()), self._ended)

    def capture(self, steps: int, reason: WindowReason = WindowReason.DEMAND) -> int:
        """Ask all processes for a window now; how many were asked."""
        with self._lock:
            for process in self._processes.values():
                process.ring.capture(steps, reason)
            return len(self._processes)

    def _run(self) -> None:
        next_flush = 0.0
        while not self._stop.is_set():
            flush = time.monotonic() >= next_flush
            if flush:
                next_flush = time.monotonic() + FLUSH_EVERY_S
            try:
                self.step(flush)
            except SpanLiteError as error:  # delivery is over; the daemon sees that itself
                self._give_up(error)
                return
            except Exception as error:  # whatever it is, it may pass, and rings fill up meanwhile
                self.troubles.tell("rings", f"rings are not read: {type(error).__name__}: {error}")
            else:
                if flush:  # which does more, and so has more to fail at
                    self.troubles.over("rings")
            self._stop.wait(DRAIN_EVERY_S)

    def step(self, flush: bool = True) -> None:
        """Look for new rings and drain all once; if `flush`, also write spans."""
        with self._lock:
            folders = self._discover(flush)
            self._each(lambda path, process: self._serve(path, process, flush))
            for folder in folders if flush else ():
                remove_strays(folder)

    def _each(self, work: Callable[[Path, _Process], None]) -> None:
        for path, process in list(self._processes.items()):
            try:
                work(path, process)
            except SpanLiteError:
                raise
            except Exception as error:
                self._start_over(path, process, error)

    def _give_up(self, error: SpanLiteError) -> None:
        """Nothing can be delivered: what is still in the rings waits for another daemon."""
        with self._lock:
            lost = 0
            for path, process in list(self._processes.items()):
                account = process.account()
                rest = account.rows - account.spans
                self._close_without(path, process, "undelivered", rest)
                lost += rest
        self.troubles.tell("rings", f"{error}; {lost} records out of rings are dropped")

    def _end(self, path: Path, process: _Process) -> None:
        process.drain()
        process.flush(time.time_ns(), final=True)
        self._close(path, process)

    def _start_over(self, path: Path, process: _Process, error: Exception) -> None:
        """Records that no one foresaw must not end the reading of all other processes."""
        lost = process.spans.waiting + process.in_hand
        self._close_without(path, process, "daemon_error", lost)
        self._say(
            f"process {process.ring.process_id}: {type(error).__name__}: {error}; {lost} records "
            "are dropped and reading goes on. Please report it"
        )

    def _close_without(self, path: Path, process: _Process, reason: str, lost: int) -> None:
        """What of it is not written is dropped."""
        self._sink.drop(reason, lost)
        self._close(path, process, waiting=0, dropped=lost)

    def _serve(self, path: Path, process: _Process, flush: bool) -> None:
        alive = not flush or process.ring.alive
        good = process.drain() if alive else process.drain_dead()
        if good and alive:
            if flush:
                process.flush(time.time_ns())
            return
        process.flush(time.time_ns(), final=True)
        self._close(path, process)
        process.known.remove()
        if good:
            self._remove(path)
        else:
            self._set_aside(path)

    def _close(self, path: Path, process: _Process, **changed: int) -> None:
        self._ended += replace(process.account(), **changed)
        process.ring.close()
        del self._processes[path]

    def _discover(self, flush: bool) -> list[Path]:
        """Open what is new. The folders that could be searched."""
        there: set[Path] = set()
        searched = []
        for folder in self._options.folders:
            try:
                paths = rings_in(folder)
            except OSError as error:
                self.troubles.tell(
                    str(folder),
                    f"{folder} cannot be searched for rings: {error}",
                    curable=is_curable(error.errno),
                )
                there.update(self._refusals.paths_in(folder))
                continue
            self.troubles.over(str(folder))
            searched.append(folder)
            there.update(paths)
            for path in paths:
                if path not in self._processes and self._refusals.worth_a_try(path, flush):
                    self._try_to_open(path)
        self._refusals.keep(there)
        return searched

    def _try_to_open(self, path: Path) -> None:
        """One ring that cannot be read must not keep the others from it."""
        try:
            self._open(path)
        except (RingAccessError, OSError) as error:
            self._refusals.for_now(path, f"{error}; trying again", is_curable(error.errno))
        except InputError as error:
            self._refusals.unless_ready_soon(path, str(error))
        except Exception as error:
            self._refusals.for_good(
                path, f"{path}: {type(error).__name__}: {error}; leaving it alone"
            )

    def _open(self, path: Path) -> None:
        ring = Ring(path)
        try:
            process = self._process_of(ring) if ring.claim() else None
        except BaseException:
            ring.close()  # its claim would keep us from it, too
            raise
        if process is None:
            ring.close()
            self._refusals.for_now(
                path,
                f"{path} is read by another daemon; it is taken over when that ends",
                None,
            )
            return
        self._refusals.forget(path)
        self._processes[path] = process
        self._say(f"process {ring.process_id} ({ring.executable}): {path}")

    def _process_of(self, ring: Ring) -> _Process:
        known = Known(ring.path, self._say)
        return _Process(ring, self._sink, self._options, self._sampled, known)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._refusals.for_good(
                path, f"{path} has been read but cannot be deleted ({error}); delete it"
            )

    def _set_aside(self, path: Path) -> None:
        self.damaged_rings += 1
        aside = path.with_name(path.name + ".damaged")
        try:
            path.rename(aside)
        except OSError:
            aside = path
        self._refusals.for_good(
            path,
            f"{path} is damaged; what came before has been read, the rest is lost. "
            f"It is now {aside}, delete it. The process goes on without an agent: restart it",
        )


def folders_of(given: Sequence[str] | None) -> list[Path]:
    """The folders to read: those given, else the default one, which need not exist yet.

    Each once. Raises UsageError where one is something else.
    """
    try:
        folders = [Path(text).expanduser() for text in given or (DEFAULT_FOLDER,)]
    except RuntimeError as error:
        raise UsageError(f"--agent-dir: {error}") from None
    folders = list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())
    for folder in folders:
        with suppress(OSError):  # one that cannot be looked at is told where it is searched
            if folder.exists() and not folder.is_dir():
                raise UsageError(f"--agent-dir {folder}: not a folder; name one that holds *.ring")
    return folders[::-1]
