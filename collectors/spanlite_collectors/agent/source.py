"""RingSource: finds the rings of a host's processes, drains them, and lets them go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spanlite.errors import InputError, SpanLiteError, UsageError

from spanlite_collectors.agent.convert import Sample
from spanlite_collectors.agent.known import Known, remove_strays
from spanlite_collectors.agent.layout import WindowReason
from spanlite_collectors.agent.reader import DEFAULT_FOLDER, RingOptions, RingReader
from spanlite_collectors.agent.ring import Ring, RingAccessError, rings_in
from spanlite_collectors.agent.status import Account, ProcessStatus
from spanlite_collectors.agent.troubles import Refusals, Troubles, is_curable
from spanlite_collectors.sinks import SpanSink

__all__ = ["DEFAULT_FOLDER", "RingOptions", "RingSource", "folders_of", "is_missing"]

#: A ring of 64 MiB then holds two million records a second.
DRAIN_EVERY_S = 0.2
#: Spans are made and folders searched this often.
FLUSH_EVERY_S = 1.0


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
        self._processes: dict[Path, RingReader] = {}
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
        for folder in self._options.folders:
            # The default one needs no word: on a host without agents it is never made.
            if folder != Path(DEFAULT_FOLDER) and is_missing(folder):
                self._say(f"{folder} does not exist yet; the first agent there makes it")
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

    def _each(self, work: Callable[[Path, RingReader], None]) -> None:
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

    def _end(self, path: Path, process: RingReader) -> None:
        process.drain()
        process.flush(time.time_ns(), final=True)
        self._close(path, process)

    def _start_over(self, path: Path, process: RingReader, error: Exception) -> None:
        """Records that no one foresaw must not end the reading of all other processes."""
        lost = process.spans.waiting + process.in_hand
        self._close_without(path, process, "daemon_error", lost)
        self._say(
            f"process {process.ring.process_id}: {type(error).__name__}: {error}; {lost} records "
            "are dropped and reading goes on. Please report it"
        )

    def _close_without(self, path: Path, process: RingReader, reason: str, lost: int) -> None:
        """What of it is not written is dropped."""
        self._sink.drop(reason, lost)
        self._close(path, process, waiting=0, dropped=lost)

    def _serve(self, path: Path, process: RingReader, flush: bool) -> None:
        alive = not flush or process.ring.alive
        good = process.drain() if alive else process.drain_dead()
        if good and alive:
            if flush:
                process.flush(time.time_ns())
                self._tell_disabled(process)
            return
        process.flush(time.time_ns(), final=True)
        self._close(path, process)
        process.known.remove()
        if good:
            self._remove(path)
        else:
            self._set_aside(path)

    def _tell_disabled(self, process: RingReader) -> None:
        """Once: such a process looks as if nothing ran on its GPU."""
        why = process.newly_disabled()
        if why:
            ring = process.ring
            self._say(
                f"process {ring.process_id} ({ring.executable}): its agent records no kernels: "
                f"{why}"
            )

    def _close(self, path: Path, process: RingReader, **changed: int) -> None:
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

    def _process_of(self, ring: Ring) -> RingReader:
        known = Known(ring.path, self._say)
        return RingReader(ring, self._sink, self._options, self._sampled, known)

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


def is_missing(folder: Path) -> bool:
    """Whether it is not there. One that cannot be looked at may be."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
