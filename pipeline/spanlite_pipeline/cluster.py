"""The job on a Flink cluster: `spanlite pipeline submit`, or by hand

    flink run -d -pyexec PYTHON -pyclientexec PYTHON -py .../spanlite_pipeline/cluster.py ARGS

with the flags of `spanlite pipeline run`. PYTHON has spanlite-pipeline installed on every
task manager; otherwise ship it with -pyfs or -pyarch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spanlite.errors import ServiceError, SpanLiteError

from spanlite_pipeline import preflight
from spanlite_pipeline.config import JobConfig
from spanlite_pipeline.options import add_job_arguments, job_config


def main(argv: Sequence[str] | None = None) -> int:
    """What `flink run` runs: build the graph and hand it over."""
    from spanlite_pipeline.job import build, environment

    parser = argparse.ArgumentParser(prog="cluster.py")
    add_job_arguments(parser)
    try:
        config = job_config(parser.parse_args(argv))
        preflight.make_archive(config.archive, config.bucket.bucket_count)
        env = environment(config)
        build(env, config)
        env.execute("spanlite")
    except SpanLiteError as error:
        print(f"spanlite: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def flink_home() -> Path:
    """$FLINK_HOME, else the Flink inside the apache-flink package."""
    if home := os.environ.get("FLINK_HOME"):
        return Path(home)
    import pyflink

    return Path(pyflink.__file__).parent


def submit(
    config: JobConfig,
    arguments: Sequence[str],
    *,
    jobmanager: str | None = None,
    restore: Path | None = None,
    python: str | None = None,
    files: str | None = None,
) -> int:
    """Run `flink run` for this job, with these flags of `run`; returns its exit code."""
    preflight.check_topics(config.bootstrap, config.bucket.topic, config.dead_topic)
    flink = flink_home() / "bin" / "flink"
    if not flink.exists():
        raise ServiceError(f"'{flink}' is missing; set FLINK_HOME to a Flink 2.3 distribution")
    python = python or sys.executable
    command = [str(flink), "run", "-d", "-pyexec", python, "-pyclientexec", sys.executable]
    command += ["-m", jobmanager] if jobmanager else []
    command += ["-s", restore.absolute().as_uri(), "-rm", "CLAIM"] if restore else []
    command += ["-pyfs", files] if files else []
    command += ["-py", str(Path(__file__).absolute()), *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
