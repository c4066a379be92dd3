"""Every real trace through the whole pipe: importer, broker, job, archive; nothing differs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from spanlite.archive.layout import Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.cli import main
from spanlite.kinds import KIND_WORDS
from spanlite_collectors.importers import ImportOptions, import_file
from spanlite_collectors.sinks import MemorySink
from spanlite_stack import StackInfo

pytestmark = [pytest.mark.flink, pytest.mark.stack, pytest.mark.timeout(900)]

FOLDERS = ("kineto", "nsys", "otlp", "cupti", "requests")
#: Beside the traces: figures and counters, which the importers refuse.
NO_SPANS = (".csv.gz", ".expected_gpu_timeline.csv", ".expected_kernel_summary.csv")


def trace_files(shared_data: Path) -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((shared_data / folder).iterdir())]
    return [path for path in files if not path.name.endswith(NO_SPANS)]


def recordings() -> list[Path]:
    return sorted((Path(__file__).parents[1] / "recordings").glob("*.json.gz"))


def service_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name.split('.')[0]}"


def expected(path: Path) -> pa.Table:
    """What the importer makes of the file, before any of it travels."""
    sink = MemorySink()
    import_file(path, sink, ImportOptions(service=service_of(path)))
    return pa.Table.from_batches([spans for spans, _ in sink.written])


def run_job(archive: Path, stack: StackInfo, topic: str) -> None:
    command = [
        *(sys.executable, "-m", "spanlite.cli", "pipeline", "run"),
        *("--archive", str(archive), "--bootstrap", stack.bootstrap, "--topic", topic),
        *("--decision-wait", "2s", "--checkpoint-interval", "2s", "--until-idle", "5s"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def files(shared_data: Path) -> list[Path]:
    return trace_files(shared_data) + recordings()


@pytest.fixture(scope="module")
def archive(
    files: list[Path],
    stack: StackInfo,
    local_stack: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    topic = "test.real-data"
    local_stack.create_topic(topic, 8)  # type: ignore[attr-defined]
    root = tmp_path_factory.mktemp("real") / "archive"
    for path in files:
        command = ["import", str(path), "--service", service_of(path), "--no-spool"]
        assert main([*command, "--bootstrap", stack.bootstrap, "--topic", topic]) == 0, path
    run_job(root, stack, topic)
    return root


def rows_of(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def ask(archive: Path, sql: str) -> list[dict[str, Any]]:
    sources = {
        name: ArchiveReader(Archive.open(archive)).duckdb_sources(name)
        for name in ("spans", "kernel_minutes")
    }
    connection = duckdb.connect()
    for name, paths in sources.items():
        connection.execute(
            f"CREATE VIEW {name} AS "
            f"SELECT * FROM read_parquet({paths!r}, hive_partitioning = false)"
        )
    return rows_of(connection.execute(sql))


#: One number for all that a span is, the same whether made here or in the archive.
CONTENT = """
    SELECT count(*) AS spans, sum(duration_ns)::HUGEINT AS duration_ns,
        bit_xor(hash(span_id, parent, start_ns, duration_ns, kind, name, launch, moved)) AS content
    FROM rows
"""


def content_of_file(spans: pa.Table) -> dict[str, int]:
    connection = duckdb.connect()
    connection.register("raw", spans)
    connection.register("kinds", pa.table({"number": range(len(KIND_WORDS)), "word": KIND_WORDS}))
    connection.execute("""
        CREATE VIEW rows AS SELECT span_id, parent_span_id AS parent, start_ns, duration_ns,
            word AS kind, name::VARCHAR AS name, bytes::BIGINT AS moved,
            (grid_x::BIGINT, block_x::BIGINT, registers_per_thread::BIGINT,
             dynamic_shared_bytes::BIGINT) AS launch
        FROM raw JOIN kinds ON raw.kind = kinds.number
    """)
    return rows_of(connection.execute(CONTENT))[0]


def contents_of_archive(archive: Path) -> dict[str, dict[str, int]]:
    # A signed BIGINT holds the bits of an unsigned id.
    unsigned = "((x + 18446744073709551616::HUGEINT) % 18446744073709551616::HUGEINT)::UBIGINT"
    own, parent = (unsigned.replace("x", name, 1) for name in ("span_id", "parent_span_id"))
    rows = f"""
        SELECT service, {own} AS span_id, coalesce({parent}, 0) AS parent, start_ns, duration_ns,
            kind::VARCHAR AS kind, name::VARCHAR AS name, coalesce(bytes, 0)::BIGINT AS moved,
            (coalesce(grid_x, 0)::BIGINT, coalesce(block_x, 0)::BIGINT,
             coalesce(registers_per_thread, 0)::BIGINT,
             coalesce(dynamic_shared_bytes, 0)::BIGINT) AS launch
        FROM spans
    """
    sql = (
        f"WITH rows AS ({rows}) {CONTENT.replace('SELECT', 'SELECT service,', 1)} GROUP BY service"
    )
    return {row.pop("service"): row for row in ask(archive, sql)}


def test_every_span_of_every_file_arrives_as_it_was(archive: Path, files: list[Path]) -> None:
    found = contents_of_archive(archive)
    wanted = {service_of(path): content_of_file(expected(path)) for path in files}
    assert found == wanted


def test_roll_ups_agree_with_the_files(archive: Path) -> None:
    columns = "service, kind::VARCHAR AS kind, name::VARCHAR AS name"
    rolled = f"SELECT {columns}, sum(spans) AS n, sum(duration_ns) AS ns FROM kernel_minutes"
    counted = f"SELECT {columns}, count(*) AS n, sum(duration_ns) AS ns FROM spans"
    group = "GROUP BY ALL"
    odd = ask(archive, f"({rolled} {group}) EXCEPT ({counted} {group})")
    assert odd == []


def test_ledger_closes_and_archive_verifies(archive: Path) -> None:
    assert main(["ledger", "--archive", str(archive)]) == 0
    assert main(["archive", "verify", "--archive", str(archive)]) == 0
