"""The local stack: a real KRaft broker and the topics, in one data folder.

info = Stack(Path("data/stack")).up()
...                                    # producers and consumers use info.bootstrap
Stack(Path("data/stack")).down()
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from spanlite.errors import ServiceError, UsageError
from spanlite.settings import DEFAULT_STACK_DIR, STACK_FILE
from spanlite.topics import DEFAULT_PARTITIONS

from spanlite_stack import _config, _process
from spanlite_stack._admin import Admin
from spanlite_stack._java import java_command
from spanlite_stack._process import ProcessMark

#: Kafka at rest needs some 200 MB; the rest is for 16 MiB messages in flight.
DEFAULT_HEAP_MB = 512
#: A cold start takes 2 to 3 s; this is for a machine that is busy with other things.
READY_TIMEOUT_S = 120.0
#: A clean stop takes under a second; after this the broker is killed.
STOP_TIMEOUT_S = 30.0

#: Only the JVM's first compiler: nearly halves the CPU time of a start, for tests.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Say = Callable[[str], None]


def _silent(_: str) -> None:
    """Say nothing."""


def _cluster_id() -> str:
    """A random id as Kafka writes them. None begins with "-", which its tools read as an option."""
    while True:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


@dataclass(frozen=True)
class StackInfo:
    """A broker that has been started here; `running` says whether it is there now."""

    data: str
    bootstrap: str
    pid: int
    running: bool
    topics: dict[str, int]  # topic -> partitions; empty while it is down


@dataclass(frozen=True)
class _State:
    """What stack.json remembers."""

    bootstrap: str
    port: int
    controller_port: int
    process: ProcessMark | None


class Stack:
    """One broker and its folder. All methods may be called from any process, at any time."""

    def __init__(
        self,
        data: Path | str = DEFAULT_STACK_DIR,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        heap_mb: int = DEFAULT_HEAP_MB,
        jvm_options: Sequence[str] = (),
        say: Say = _silent,
    ) -> None:
        self.data = Path(data).absolute()
        self._partitions, self._heap_mb, self._say = partitions, heap_mb, say
        self._jvm_options = tuple(jvm_options)

    def up(self) -> StackInfo:
        """Start the broker unless it runs, make the topics, return when both are usable.

        Raises ServiceError where Java or the jars are missing or the broker does not start.
        """
        with self._locked():
            state = self._read()
            if state is None or not _process.is_running(state.process):
                state = self._start(state)
            admin = Admin(state.bootstrap)
            self._wait_ready(state, admin)
            admin.create(_config.topics(self._partitions), _config.TOPIC_CONFIG)
            return self._info(state, admin)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make one more topic, with the same limits as the others, unless it is there."""
        state = self._read()
        if state is None:
            raise ServiceError(f"no Kafka broker in {self.data}; start it with `spanlite stack up`")
        Admin(state.bootstrap).create({name: partitions}, _config.TOPIC_CONFIG)

    def status(self) -> StackInfo | None:
        """The broker of this folder, running or not; None where none was ever started."""
        state = self._read()
        return None if state is None else self._info(state, Admin(state.bootstrap))

    def down(self) -> bool:
        """Stop the broker and wait until it has gone. True where one was running."""
        if not self.data.is_dir():
            return False
        with self._locked():
            return self._stop(signal.SIGTERM, STOP_TIMEOUT_S)

    def kill9(self) -> bool:
        """Kill the broker as a power cut would; `up` starts it again on the same port."""
        with self._locked():
            return self._stop(signal.SIGKILL, STOP_TIMEOUT_S)

    def remove(self) -> None:
        """Stop it and delete its folder with all messages."""
        self.down()
        shutil.rmtree(self.data, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            lock = (self.data / "lock").open("w")
        except OSError as error:
            raise UsageError(
                f"'{self.data}' cannot hold a broker's data: {error.strerror}; "
                "give --data a folder that can be written"
            ) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _info(self, state: _State, admin: Admin) -> StackInfo:
        running = _process.is_running(state.process)
        topics = admin.topics(timeout_s=5.0) if running else None
        pid = state.process.pid if running and state.process else 0
        return StackInfo(str(self.data), state.bootstrap, pid, running, topics or {})

    def _read(self) -> _State | None:
        try:
            found = json.loads((self.data / STACK_FILE).read_text())
            mark = found["process"]
            return _State(
                str(found["bootstrap"]),
                int(found["port"]),
                int(found["controller_port"]),
                ProcessMark(**mark) if mark else None,
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.data / STACK_FILE} is damaged ({error}); remove the file, then run "
                f"`spanlite stack up` again"
            ) from None

    def _write(self, state: _State) -> None:
        temporary = self.data / f".{STACK_FILE}.tmp"
        temporary.write_text(json.dumps(asdict(state), indent=1) + "\n")
        temporary.replace(self.data / STACK_FILE)

    def _start(self, old: _State | None) -> _State:
        port, controller_port = self._ports(old)
        kafka, logs = self.data / "kafka", self.data / "logs"
        logs.mkdir(exist_ok=True)
        (self.data / "server.properties").write_text(
            _config.server_properties(kafka, port, controller_port)
        )
        (self.data / "log4j.properties").write_text(_config.log4j_properties(logs))
        self._format()
        self._say(f"starting Kafka on {_config.HOST}:{port}, data in {self.data}")
        child = self._spawn()
        mark = _process.mark_of(child.pid)
        state = _State(f"{_config.HOST}:{port}", port, controller_port, mark)
        self._write(state)
        return state

    def _ports(self, old: _State | None) -> tuple[int, int]:
        """The ports of last time, so that clients find it again, unless somebody has them."""
        if old and all(map(_config.is_free, (old.port, old.controller_port))):
            return old.port, old.controller_port
        port, controller_port = _config.free_ports(2)
        return port, controller_port

    def _java(self, options: Sequence[str], main: str, *args: str) -> list[str]:
        settings = {"log4j.configuration": (self.data / "log4j.properties").as_uri()}
        return java_command([f"-Xmx{self._heap_mb}m", *options], settings, main, *args)

    def _format(self) -> None:
        """Make the storage folder; a run that was cut short is simply done again."""
        done = self.data / "formatted"
        if done.exists():
            return
        self._say("preparing the storage folder")
        config = str(self.data / "server.properties")
        command = self._java(
            QUICK_START,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            _cluster_id(),
            "-c",
            config,
            "--ignore-formatted",
        )
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            detail = (result.stderr or result.stdout).strip()[-2000:]
            raise ServiceError(f"Kafka could not prepare {self.data / 'kafka'}: {detail}")
        done.touch()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self._java(self._jvm_options, "kafka.Kafka", str(self.data / "server.properties"))
        with (self.data / "logs" / "console.log").open("ab") as console:
            # A session of its own, so that Ctrl-C in the terminal does not reach it.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                cwd=self.data,
            )

    def _wait_ready(self, state: _State, admin: Admin) -> None:
        began = told = time.monotonic()
        while admin.topics(timeout_s=1.0) is None:
            now = time.monotonic()
            if not _process.is_running(state.process):
                raise ServiceError(f"the broker ended while starting:\n{self._last_words()}")
            if now - began > READY_TIMEOUT_S:
                raise ServiceError(
                    f"the broker is not ready after {READY_TIMEOUT_S:.0f} s; see "
                    f"{self.data / 'logs' / 'broker.log'}"
                )
            if now - told >= 5:
                told = now
                self._say(f"waiting for the broker, {now - began:.0f} s so far")

    def _last_words(self) -> str:
        lines: list[str] = []
        for name in ("broker.log", "console.log"):
            path = self.data / "logs" / name
            if path.exists():
                text = path.read_text(errors="replace").splitlines()
                said = [line for line in text if not line.startswith("\tat ")]
                lines += [f"[{path}]", *said[-6:]]
        return "\n".join(lines)

    def _stop(self, number: signal.Signals, timeout_s: float) -> bool:
        state = self._read()
        mark = state.process if state else None
        if mark is None or not _process.is_running(mark):
            return False
        _process.send(mark, number)
        if not _process.wait_gone(mark, timeout_s):
            self._say(f"the broker did not stop in {timeout_s:.0f} s; killing it")
            _process.send(mark, signal.SIGKILL)
            if not _process.wait_gone(mark, timeout_s):
                raise ServiceError(f"process {mark.pid} does not end, not even killed")
        return True
