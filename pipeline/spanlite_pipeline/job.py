"""The job graph.

source -> keyed by bucket -> BucketFunction -+-> files of spans      -> archive
                                             +-> rows of small tables -> TableFunction -> archive
                                             +-> dead letters         -> spans.dead
"""

from __future__ import annotations

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment

from spanlite_pipeline import sinks, source
from spanlite_pipeline.config import JobConfig, flink_settings
from spanlite_pipeline.frames import TABLE_ROWS
from spanlite_pipeline.keyed import OUTPUT_TYPE, BucketFunction, TableFunction
from spanlite_pipeline.preflight import JARS


def environment(
    config: JobConfig, extra: dict[str, str] | None = None
) -> StreamExecutionEnvironment:
    """A Flink environment with the settings and the jars of the job."""
    settings = Configuration()
    for key, value in (flink_settings(config) | (extra or {})).items():
        settings.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    # Not pipeline.jars: submitting to a cluster would not ship those.
    env.add_jars(*(jar.as_uri() for jar in sorted(JARS.glob("*.jar"))))
    return env


def build(env: StreamExecutionEnvironment, config: JobConfig) -> None:
    """Add the job to the environment."""
    buckets = config.bucket.bucket_count
    raw = source.kafka_source(
        config.bootstrap, config.bucket.topic, config.group, buckets, config.max_parallelism
    )
    keys = source.flink_keys(buckets, config.max_parallelism)
    function = BucketFunction(config.bucket, {key: b for b, key in enumerate(keys)})
    messages = source.messages(env, raw, buckets, config.max_parallelism)
    outputs = messages.process(function, OUTPUT_TYPE)
    outputs.name("buckets").uid("buckets")
    sinks.write_files(outputs, config.archive, "spans")
    sinks.write_dead_letters(outputs, config.bootstrap, config.dead_topic)
    rows = source.keyed(sinks.only(outputs, TABLE_ROWS), outputs)
    tables = rows.process(TableFunction(config.table_interval_ms), OUTPUT_TYPE)
    tables.set_parallelism(1).name("small tables").uid("tables")
    sinks.write_files(tables, config.archive, "tables")
