"""Everything about one run of the job. No Flink import here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spanlite.topics import DEAD_TOPIC

from spanlite_pipeline.settings import BucketSettings

#: Beside the data, where no reader of the archive looks.
JOB_FOLDER = "_job"


@dataclass(frozen=True)
class JobConfig:
    """Everything about one run of the job."""

    archive: str
    bootstrap: str
    checkpoint_dir: str
    bucket: BucketSettings = field(default_factory=BucketSettings)
    group: str = "spanlite-pipeline"
    dead_topic: str = DEAD_TOPIC
    parallelism: int = 2
    #: More key groups than buckets would leave some without any.
    max_parallelism: int = 128
    checkpoint_interval_ms: int = 10_000
    #: How often the small tables are written.
    table_interval_ms: int = 60_000
    #: 0: a failure ends the job, so that nothing is hidden.
    restart_attempts: int = 3
    #: Further settings in Flink's own words.
    flink: tuple[tuple[str, str], ...] = ()

    @property
    def log_dir(self) -> str:
        """Where Flink's log of an embedded run goes."""
        return f"{self.checkpoint_dir.rstrip('/')}/logs"


def flink_settings(config: JobConfig) -> dict[str, str]:
    """Settings of the job, in Flink's words."""
    settings = {
        "parallelism.default": str(config.parallelism),
        "pipeline.max-parallelism": str(config.max_parallelism),
        "pipeline.object-reuse": "true",
        "execution.checkpointing.interval": f"{config.checkpoint_interval_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "false",
        "execution.checkpointing.timeout": "10 min",
        "execution.checkpointing.min-pause": "500 ms",
        "execution.checkpointing.dir": _uri(config.checkpoint_dir),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": "2",
        "state.backend.type": "hashmap",
        "execution.checkpointing.storage": "filesystem",
        # A message holds thousands of spans, so a bundle is a few messages.
        "python.fn-execution.bundle.size": "64",
        "python.fn-execution.bundle.time": "200",
        "python.fn-execution.arrow.batch.size": "1000",
        "python.metric.enabled": "true",
    }
    if config.restart_attempts:
        settings |= {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(config.restart_attempts),
            "restart-strategy.fixed-delay.delay": "2 s",
        }
    else:
        settings["restart-strategy.type"] = "none"
    return settings | dict(config.flink)


def _uri(path: str) -> str:
    return path if "://" in path else Path(path).absolute().as_uri()
