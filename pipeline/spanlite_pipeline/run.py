"""Run the job in a cluster of its own inside this process tree (Flink's MiniCluster)."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spanlite.errors import ServiceError

from spanlite_pipeline import preflight
from spanlite_pipeline.config import JobConfig
from spanlite_pipeline.metrics import UPDATE_MS, JobMetrics, free_port
from spanlite_pipeline.offsets import Lag, TopicOffsets
from spanlite_pipeline.recovery import newest_checkpoint

#: Flink runs Python workers in the driver's own process by default when it is embedded: all
#: slots would share one interpreter lock.
_WORKERS = "_python_worker_execution_mode"
_POLL_S = 0.5
_REPORT_S = 5.0
#: What Flink says to a savepoint while tasks are still starting.
_NOT_YET = "Not all required tasks are currently running"


@dataclass(frozen=True)
class Progress:
    """What a run tells while it runs."""

    elapsed_s: float
    phase: str
    spans_in: int | None  # since this start
    spans_out: int | None
    lag: int | None  # messages that no checkpoint covers yet


Say = Callable[[Progress], None]


def run_local(
    config: JobConfig,
    *,
    until_idle_s: float | None = None,
    stop: threading.Event | None = None,
    say: Say | None = None,
    from_start: bool = False,
) -> str:
    """Run until `stop` is set (a savepoint; the next run goes on from there), or until idle.

    `until_idle_s`: once everything in the topic is read, and nothing new came for so long,
    decide all that is open and end. Returns the savepoint's path. Raises
    ServiceError where something is missing or the job fails.
    """
    preflight.check_tools()
    preflight.check_topics(config.bootstrap, config.bucket.topic, config.dead_topic)
    preflight.make_archive(config.archive, config.bucket.bucket_count)
    with preflight.only_job(config.archive):
        return _run(config, until_idle_s, stop or threading.Event(), say or _silent, from_start)


def _silent(_: Progress) -> None:
    return None


def _run(
    config: JobConfig,
    until_idle_s: float | None,
    stop: threading.Event,
    say: Say,
    from_start: bool,
) -> str:
    restored = newest_checkpoint(config.checkpoint_dir)
    if restored is None and not from_start:
        preflight.check_fresh(config.archive)
    _prepare_process(config)
    port = free_port()
    offsets = TopicOffsets(config.bootstrap, config.group, config.bucket.topic)
    if restored is None:
        offsets.rewind()
    job = _Job(config, restored, port)
    try:
        watch = _Watch(job, offsets, JobMetrics(port, job.id), until_idle_s, say)
        path = None
        while path is None:
            drain = watch.wait(stop)
            watch.say_last("deciding all that is open" if drain else "stopping with a savepoint")
            path = job.stop(drain)
            # None: it is starting, perhaps anew after a failure, and then may not be idle.
            watch.forget()
        return path
    finally:
        offsets.close()
        job.close()


def _prepare_process(config: JobConfig) -> None:
    """Environment variables that PyFlink reads when it starts the JVM."""
    os.environ[_WORKERS] = "process"
    logs = Path(config.log_dir)
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("FLINK_LOG_DIR", str(logs.absolute()))
    log4j = Path(__file__).parent / "log4j.properties"
    os.environ.setdefault("LOG4J_PROPERTIES", log4j.as_uri())
    # This JVM moves bytes; the optimising compiler costs it more than it gains by the code.
    os.environ.setdefault("JVM_ARGS", "-XX:TieredStopAtLevel=1")
    logging.getLogger("apache_beam").setLevel(logging.ERROR)


class _Job:
    """The running job."""

    def __init__(self, config: JobConfig, restored: Path | None, port: int) -> None:
        from spanlite_pipeline.job import build, environment

        extra = {
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            "rest.port": str(port),
            "rest.bind-address": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "metrics.fetcher.update-interval": str(UPDATE_MS),
        }
        if restored is not None:
            extra["execution.state-recovery.path"] = restored.absolute().as_uri()
            # Flink deletes it once newer checkpoints make it useless.
            extra["execution.state-recovery.claim-mode"] = "CLAIM"
        self._config = config
        env = environment(config, extra)
        build(env, config)
        self._client = env.execute_async("spanlite")
        self.id = str(self._client.get_job_id())
        self._result: Any = self._client.get_job_execution_result()._j_completable_future
        self._ended = False

    def check(self) -> None:
        """Raise ServiceError if the job has ended."""
        if not self._result.isDone():
            return
        self._ended = True
        reason = _reason(self._result.get) or "it ended by itself"
        raise ServiceError(f"the job failed: {reason}; Flink's log is in {self._config.log_dir}")

    def stop(self, drain: bool) -> str | None:
        """Stop with a savepoint; with `drain`, all that is open is decided first.

        Returns the savepoint's path, or None where tasks are still starting.
        """
        from pyflink.java_gateway import get_gateway

        formats = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
        folder = f"{self._config.checkpoint_dir.rstrip('/')}/savepoints"
        path = ""

        def savepoint() -> None:
            nonlocal path
            path = str(client.stopWithSavepoint(drain, folder, formats.NATIVE).get())

        client = self._client._j_job_client
        failure = _reason(savepoint)
        if _NOT_YET in failure and not self._result.isDone():
            time.sleep(_POLL_S)
            return None
        failure = failure or _reason(self._result.get)
        self._ended = True
        if failure:
            raise ServiceError(
                f"the job failed while stopping: {failure}; start it again to go on from the "
                f"last checkpoint; Flink's log is in {self._config.log_dir}"
            )
        return path

    def close(self) -> None:
        """Cancel the job if it still runs, as after an error."""
        if not self._ended:
            _reason(lambda: self._client._j_job_client.cancel().get())


def _reason(call: Callable[[], Any]) -> str:
    """Empty where the call returns, else the innermost cause as text."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        call()
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        lines = [line for line in str(cause.getMessage() or cause).splitlines() if line.strip()]
        return lines[-1].strip() if lines else "unknown"
    except Py4JError as error:
        return f"the JVM has gone ({error})"
    return ""


class _Watch:
    """Waits, reports, and notices when there is nothing more to do."""

    def __init__(
        self,
        job: _Job,
        offsets: TopicOffsets,
        metrics: JobMetrics,
        until_idle_s: float | None,
        say: Say,
    ) -> None:
        self._job, self._offsets, self._metrics = job, offsets, metrics
        self._until_idle_s, self._say = until_idle_s, say
        self._began = self._reported = time.monotonic()
        self._idle_since: float | None = None
        self._end, self._phase = -1, "starting Flink"

    def wait(self, stop: threading.Event) -> bool:
        """True where the job is idle and shall be drained; False where it shall just stop."""
        while not stop.wait(_POLL_S):
            self._job.check()
            now = time.monotonic()
            due = now - self._reported >= _REPORT_S
            if self._until_idle_s is None and not due:
                continue
            lag = self._offsets.lag(self._metrics.positions())
            if due:
                self._report(now, lag)
            if self._until_idle_s is not None and self._is_idle(now, lag):
                return True
        return False

    def forget(self) -> None:
        """Wait for idleness anew."""
        self._idle_since, self._end = None, -1

    def _is_idle(self, now: float, lag: Lag | None) -> bool:
        if lag is None or lag.unread > 0 or lag.end != self._end:
            self._idle_since = None
            self._end = lag.end if lag else -1
            return False
        self._idle_since = self._idle_since or now
        return now - self._idle_since >= (self._until_idle_s or 0.0)

    def _report(self, now: float, lag: Lag | None) -> None:
        self._reported = now
        found = self._metrics.read()
        spans_in, spans_out = found.get("spans_in"), found.get("spans_out")
        if spans_in is not None:
            self._phase = "running"
        waiting = lag.uncommitted if lag else None
        self._say(Progress(now - self._began, self._phase, spans_in, spans_out, waiting))

    def say_last(self, phase: str) -> None:
        """Tell what is done at the end, which may take a while."""
        if phase != self._phase:
            self._phase = phase
            self._say(Progress(time.monotonic() - self._began, phase, None, None, None))
