"""A job that can be killed, and a load that goes on whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from chaos_account import Account
from spanlite_collectors.batching import Batcher
from spanlite_collectors.delivery import KafkaSink, KafkaTransport, Numbering, Outbox
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_pipeline.offsets import TopicOffsets

TOPIC = "spans.raw"
GROUP = "chaos"
#: Far more than any step takes on a busy machine; it only ends a run that hangs.
PATIENCE_S = 1200.0


class Load(threading.Thread):
    """Sends generated spans, some thousand a second, and keeps account of them."""

    def __init__(self, bootstrap: str, seed: int, spans_per_s: int = 2000) -> None:
        super().__init__(name="load", daemon=True)
        self.account = Account()
        self.error: BaseException | None = None
        self._config = DecodeConfig(
            spans=10**9, seed=seed, layers=4, chunk_steps=8, processes=1, output_tokens=24.0
        )
        self._spans_per_s = spans_per_s
        transport = KafkaTransport(bootstrap, TOPIC, queue_bytes=64 << 20)
        batcher = Batcher(batch_spans=4096, batch_age_s=1.0)
        self._sink = KafkaSink(Outbox(transport), Numbering(f"chaos/{seed}"), batcher, block=True)
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Until `finish`."""
        try:
            self._send()
        except BaseException as error:
            self.error = error

    def _send(self) -> None:
        began, sent = time.monotonic(), 0
        for spans, resource in generate(self._config):
            if self._stop_asked.is_set():
                break
            self.account.add(spans, resource)
            self._sink.write(spans, resource)
            sent += spans.num_rows
            time.sleep(max(0.0, began + sent / self._spans_per_s - time.monotonic()))
        self._sink.close(PATIENCE_S)

    def stop(self) -> None:
        """Send no more, also where the test has failed."""
        self._stop_asked.set()

    def finish(self) -> int:
        """Send what is left, wait until the broker has it; returns the number of spans."""
        self.stop()
        self.join(2 * PATIENCE_S)
        if self.error is not None or self.is_alive():
            raise RuntimeError("the load has failed") from self.error
        return sum(map(len, self.account.ids))


class Job:
    """`spanlite pipeline run` in a session of its own, so that all of it can be killed."""

    def __init__(self, bootstrap: str, archive: Path, rules: Path, logs: Path) -> None:
        self._bootstrap, self._archive, self._rules, self._logs = bootstrap, archive, rules, logs
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._offsets = TopicOffsets(bootstrap, GROUP, TOPIC)
        self._before = 0

    def start(self, *flags: str) -> None:
        """Start it; it goes on from its newest checkpoint."""
        self._before = self._committed()
        self._starts += 1
        command = [sys.executable, "-m", "spanlite.cli", "pipeline", "run", *flags]
        command += ["--archive", str(self._archive), "--bootstrap", self._bootstrap]
        command += ["--rules", str(self._rules), "--group", GROUP]
        command += ["--checkpoint-interval", "1s", "--decision-wait", "1s"]
        command += ["--flush-interval", "2s", "--table-interval", "3s", "--restarts", "100"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def _log(self) -> Path:
        return self._logs / f"job-{self._starts}.log"

    def _committed(self) -> int:
        lag = self._offsets.lag()
        return lag.end - lag.uncommitted if lag else 0

    def wait_for_checkpoint(self) -> None:
        """Return when a checkpoint of this start has covered something new."""
        deadline = time.monotonic() + PATIENCE_S
        while self._committed() <= self._before:
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no checkpoint in {PATIENCE_S:.0f} s:\n{self._tail()}")
            time.sleep(0.2)
        self._before = self._committed()

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the job ended with {self._process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def kill9(self) -> None:
        """SIGKILL to the client, the JVM and the Python workers at once."""
        if self._process is None:
            return
        session = self._process.pid
        for pid in _session_members(session) | {session}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        deadline = time.monotonic() + 30
        while left := _session_members(session):
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {left} outlived kill -9")
            time.sleep(0.05)
        self._process = None

    def finish(self) -> None:
        """Run until everything is read and decided; it must end well."""
        self.start("--until-idle", "2s")
        assert self._process is not None
        try:
            code = self._process.wait(2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job does not come to an end:\n{self._tail()}") from None
        if code != 0:
            raise RuntimeError(f"the job ended with {code}:\n{self._tail()}")
        self._process = None

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill9()
        self._offsets.close()


def _session_members(session: int) -> set[int]:
    """Living processes of a session."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.add(int(entry.name))
    return found
