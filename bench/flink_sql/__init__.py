"""Flink's own SQL path over the same spans: protobuf format, UNNEST, Parquet files."""
