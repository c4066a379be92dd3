"""The peer as one job: `python -m bench.flink_sql.job BOOTSTRAP TOPIC FOLDER`.

One INSERT in a MiniCluster of two slots: SpanRows messages, UNNEST, Parquet with zstd, one
open file a slot. It reads to the end of the topic as it was at the start, commits and ends.
Object reuse is on; without it each row is copied between operators, at many times the cost.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

from bench.flink_sql.rows import SQL_TYPES, columns

JARS = Path(__file__).parent / "jars"
GROUP = "flink-sql"


def settings(checkpoint_ms: int) -> dict[str, str]:
    return {
        "parallelism.default": "2",
        "pipeline.object-reuse": "true",
        "pipeline.jars": ";".join(jar.as_uri() for jar in sorted(JARS.glob("*.jar"))),
        "execution.checkpointing.interval": f"{checkpoint_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "restart-strategy.type": "none",
        "table.exec.source.idle-timeout": "0 ms",
    }


def source_table(bootstrap: str, topic: str) -> str:
    row = ", ".join(f"`{name}` {SQL_TYPES[kind]}" for kind, name, _ in columns())
    return f"""
CREATE TABLE messages (spans ARRAY<ROW<{row}>>) WITH (
  'connector' = 'kafka',
  'topic' = '{topic}',
  'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = '{GROUP}',
  'properties.max.partition.fetch.bytes' = '8388608',
  'properties.fetch.max.bytes' = '33554432',
  'properties.receive.buffer.bytes' = '1048576',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'format' = 'protobuf',
  'protobuf.message-class-name' = 'io.spanlite.bench.SpanRows'
)"""


def sink_table(folder: str) -> str:
    each = ", ".join(f"`{name}` {SQL_TYPES[kind]}" for kind, name, _ in columns())
    return f"""
CREATE TABLE archive ({each}) WITH (
  'connector' = 'filesystem',
  'path' = '{Path(folder).absolute().as_uri()}',
  'format' = 'parquet',
  'parquet.compression' = 'ZSTD',
  'parquet.utc-timezone' = 'true'
)"""


def insert() -> str:
    names = ", ".join(f"s.`{name}`" for _, name, _ in columns())
    each = ", ".join(f"`{name}`" for _, name, _ in columns())
    return (
        f"INSERT INTO archive SELECT {names} FROM messages CROSS JOIN UNNEST(spans) AS s ({each})"
    )


def main(bootstrap: str, topic: str, folder: str, checkpoint_ms: int) -> None:
    config = Configuration()
    for key, value in settings(checkpoint_ms).items():
        config.set_string(key, value)
    mode = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(config)
    table_env = TableEnvironment.create(mode.build())
    table_env.execute_sql(source_table(bootstrap, topic))
    table_env.execute_sql(sink_table(folder))
    table_env.execute_sql(insert()).wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
