"""Databases as other releases of Nsight Systems export them, made by hand."""

import json
import sqlite3

import pytest
from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import CopyKind, SpanKind, SpanStatus
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

PID = (1 << 56) | (42 << 24)
UTC = 1_700_000_000_000_000_000

OLD = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'void k<int>(int*)'),
  (3, 'cuLaunchKernel'), (4, 'registered'), (5, 'read'), (6, 'dom');
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({utc});
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
  (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,
   returnValue INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES
  (100, 110, {pid} + 7, 1, 1, 0), (102, 108, {pid} + 7, 1, 3, 0), (300, 310, {pid} + 7, 2, 1, 700),
  (320, 330, {pid} + 7, 3, 1, 600), (340, 350, {pid} + 7, 4, 1, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
  (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
   correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
   registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
   blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
   graphNodeId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (120, 150, 0, 1, 7, 1, {pid}, 2, 2, 40, 1, 2, 3, 4, 5, 6, 16, 1024, 9),
  (90, 95, 0, 1, 7, 2, {pid}, 2, 2, 40, 1, 2, 3, 4, 5, 6, 16, 1024, NULL),
  (400, 410, 0, 1, 7, 1, {pid} + 16777216, 2, 2, 40, 1, 2, 3, 4, 5, 6, 16, 1024, NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
  (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
   globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (200, 210, 0, 7, 3, {pid}, 4096, 1, 0, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE
  (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
   correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (360, 390, 0, 1, 7, 4, {pid}, 5, 6);
CREATE TABLE NVTX_EVENTS
  (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, text TEXT, textId INTEGER,
   globalTid INTEGER, domainId INTEGER, int64Value INTEGER);
INSERT INTO NVTX_EVENTS VALUES
  (0, 1000, 60, 5, 'request 9', NULL, {pid} + 8, 0, NULL),
  (50, 500, 59, NULL, 'step 1', NULL, {pid} + 7, 0, 12),
  (99, 200, 59, NULL, NULL, 4, {pid} + 7, 3, NULL),
  (98, 201, 59, NULL, 'aten::mm, seq = 5, op_id = 6, sizes = [[2, 3]]', NULL, {pid} + 7, 0, NULL),
  (600, NULL, 59, NULL, 'open', NULL, {pid} + 7, 0, NULL),
  (1, NULL, 34, NULL, 'mark', NULL, {pid} + 7, 0, NULL),
  (0, NULL, 75, NULL, NULL, 6, {pid} + 7, 3, NULL);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO OSRT_API VALUES (700, 710, {pid} + 7, 5);
CREATE TABLE GPU_METRICS (timestamp INTEGER, value INTEGER);
INSERT INTO GPU_METRICS VALUES (1, 2), (3, 4);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
INSERT INTO PROCESSES VALUES ({pid}, 42, 'server');
"""


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "with space #1.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(OLD.format(pid=PID, utc=UTC))
    db.close()
    return path


def test_an_older_schema_is_read_by_the_columns_it_has(database):
    sink = MemorySink()
    report = import_file(database, sink)
    rows = [row for spans, _ in sink.written for row in spans.to_pylist()]
    at = {row["start_ns"] - UTC: row for row in rows}
    call, driver, kernel = at[100], at[102], at[120]
    assert call["kind"] == SpanKind.RUNTIME_CALL
    assert driver["kind"] == SpanKind.DRIVER_CALL
    assert driver["parent_span_id"] == call["span_id"]
    # Both calls carry the id; the outer one launched.
    assert kernel["parent_span_id"] == call["span_id"]
    assert (kernel["name"], kernel["duration_ns"]) == ("void k<int>(int*)", 30)
    assert (kernel["grid_z"], kernel["block_x"], kernel["registers_per_thread"]) == (3, 4, 40)
    assert (kernel["static_shared_bytes"], kernel["dynamic_shared_bytes"]) == (16, 1024)
    assert (kernel["graph_node_id"], kernel["stream"], kernel["context"]) == (9, 7, 1)
    assert at[90]["flags"] == SpanFlag.STARTS_BEFORE_LAUNCH
    # The same correlation id in another process is another launch.
    assert at[400]["flags"] == SpanFlag.ORPHAN
    assert (at[200]["copy_kind"], at[200]["bytes"]) == (CopyKind.HTOD, 4096)
    assert (at[360]["kind"], at[360]["graph_id"]) == (SpanKind.GRAPH_LAUNCH, 5)
    assert at[360]["parent_span_id"] == at[340]["span_id"]
    assert at[300]["status"] == SpanStatus.ERROR
    assert json.loads(at[300]["attributes"]) == {"return_value": 700}
    assert at[320]["status"] == SpanStatus.UNSET  # "not ready" is an answer
    assert at[700]["kind"] == SpanKind.HOST
    assert at[700]["name"] == "read"
    assert report.kinds["GPU_METRICS"].refused == 2
    assert {resource["process.pid"] for _, resource in sink.written} == {42, 43}
    assert sink.written[0][1]["service.name"] == "server"


def test_nvtx_ranges_names_domains_payloads_and_requests(database):
    sink = MemorySink()
    report = import_file(database, sink)
    rows = {row["name"]: row for spans, _ in sink.written for row in spans.to_pylist()}
    step, request = rows["step 1"], rows["request 9"]
    assert (step["kind"], request["kind"]) == (SpanKind.STEP, SpanKind.REQUEST)
    assert json.loads(step["attributes"]) == {"nvtx.payload": 12}
    assert [link["span_id"] for link in step["links"]] == [request["span_id"]]
    assert json.loads(rows["aten::mm"]["attributes"]) == {"sizes": "[[2, 3]]"}
    assert rows["registered"]["parent_span_id"] == rows["aten::mm"]["span_id"]
    assert json.loads(rows["registered"]["attributes"]) == {"nvtx.domain": "dom"}
    assert rows["open"]["flags"] == SpanFlag.PARTIAL
    assert report.reasons["mark_has_no_duration"] == 1
    assert report.kinds["NVTX_EVENTS (names)"].used == 1
    assert report.left_out["op_id"] == report.left_out["seq"] == report.left_out["rangeId"] == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"SQLite format 3\0" + b"x" * 5000, "not a readable sqlite file"),
        (b"SQLite format 3\0", "not a readable sqlite file|no table"),
    ],
)
def test_damaged_databases_are_told(tmp_path, content, says):
    path = tmp_path / "bad.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        import_file(path, MemorySink())


def test_a_database_of_something_else_is_told(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    db.close()
    with pytest.raises(InputError, match="nsys export"):
        import_file(path, MemorySink())


def test_a_truncated_database_is_told(database):
    database.write_bytes(database.read_bytes()[:-6000])
    sink = MemorySink()
    with pytest.raises(InputError, match="sqlite"):
        import_file(database, sink)
    assert sink.written == []
