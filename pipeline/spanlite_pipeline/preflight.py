"""What must be there before the job starts; each thing missing is said with its cure."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from spanlite.archive.disk import only_one
from spanlite.archive.layout import FORMAT_FILE, INCOMING, SPANS, Archive
from spanlite.bucket import check_bucket_count
from spanlite.errors import ServiceError, UsageError

JARS = Path(__file__).parent / "jars"
OWN_JAR = "spanlite-flink-*.jar"
LOCK_FILE = "_pipeline.lock"


def check_tools() -> None:
    """Java, PyFlink and the job's jars. Raises ServiceError."""
    home = os.environ.get("JAVA_HOME")
    java = (home and shutil.which("java", path=str(Path(home) / "bin"))) or shutil.which("java")
    if not java:
        raise ServiceError(
            "'java' is missing; install it with: apt-get install openjdk-17-jre-headless"
        )
    try:
        import pyflink  # noqa: F401
    except ImportError:
        raise ServiceError(
            "PyFlink is missing; install it with: pip install 'spanlite-pipeline[flink]'"
        ) from None
    if not any(JARS.glob(OWN_JAR)):
        raise ServiceError(f"the job's jars are missing in {JARS}; run `make setup`")


def check_topics(bootstrap: str, *topics: str, timeout_s: float = 10.0) -> None:
    """The broker answers and has these topics. Raises ServiceError."""
    client = AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 5000}
    )
    try:
        found = client.list_topics(timeout=timeout_s).topics
    except KafkaException:
        raise ServiceError(
            f"no Kafka broker answers at {bootstrap}; start one with `spanlite stack up`, "
            "or name yours with --bootstrap"
        ) from None
    missing = [topic for topic in topics if topic not in found]
    if missing:
        raise ServiceError(
            f"the broker at {bootstrap} has no topic {' and '.join(missing)}; "
            "`spanlite stack up` makes them, or create them with your own tools"
        )


def bucket_count_of(root: str, wanted: int | None, default: int) -> int:
    """Bucket count of the archive, or of the one to be made. Raises ArchiveError."""
    count = check_bucket_count(default if wanted is None else wanted)
    if "://" in root or not (Path(root) / FORMAT_FILE).exists():
        return count
    archive = Archive.open(root)
    return archive.bucket_count if wanted is None else make_archive(root, count)


def make_archive(root: str, bucket_count: int) -> int:
    """Make the archive, or open it; returns its bucket count. Raises ArchiveError."""
    return bucket_count if "://" in root else Archive.create(root, bucket_count).bucket_count


def only_job(archive: str) -> AbstractContextManager[None]:
    """Held while a job here writes to a local archive. Raises ArchiveError where one does."""
    if "://" in archive:
        return nullcontext()
    return only_one(
        Path(archive) / LOCK_FILE,
        f"another `spanlite pipeline run` is writing to '{archive}'; stop it first, "
        "or give this one an archive of its own with --archive",
    )


def check_fresh(archive: str) -> None:
    """A job that starts from nothing would write spans again. Raises UsageError."""
    root = Path(archive)
    for folder in (INCOMING, SPANS):
        if next(iter((root / folder).glob("date=*/hour=*")), None) is not None:
            raise UsageError(
                f"'{archive}' holds spans, but there is no checkpoint to go on from: starting "
                "at the beginning of the topic could write spans a second time. Name the "
                "checkpoints with --checkpoint-dir, or pass --from-start if that is right"
            )
