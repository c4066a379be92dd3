"""Functions of every kind, odd texts and odd use: the same with and without an agent."""

import inspect
import os
import subprocess
import sys

import pytest
from applications import AGENT, SPAN, TRACE, TRACEPARENT, by_name, run

MS = 1_000_000
KINDS = """
import asyncio, inspect, time
@instrument.request(name="handler")
async def handler(): await asyncio.sleep(0.03)
@instrument.step()
async def step(): await asyncio.sleep(0.03)
@instrument.stage("rows")
def rows():
    yield 1
    time.sleep(0.03)
    yield 2
@instrument.stage("events")
async def events():
    yield 1
    await asyncio.sleep(0.03)
    yield 2
async def main():
    await asyncio.gather(handler(), step())
    assert [event async for event in events()] == [1, 2]
asyncio.run(main())
assert list(rows()) == [1, 2]
assert inspect.iscoroutinefunction(handler) and inspect.iscoroutinefunction(step)
assert inspect.isgeneratorfunction(rows) and inspect.isasyncgenfunction(events)
"""
ODD = r"""
import email.message
with instrument.stage("a\udc80"): pass
with instrument.stage(3): pass
with instrument.request(name="x", user="\udcff") as one, instrument.step(one): pass
with instrument.step([], prompt="\ud83d"): pass
with instrument.step([], number=1.0): pass
with instrument.step([], number=-1): pass
with instrument.step("no context"): pass
request = instrument.request(); request.begin(); request.begin(); request.end(); request.end()
async def main():
    async with instrument.request(), instrument.step([]), instrument.stage("b"): pass
import asyncio; asyncio.run(main())
for wrong in (int, 3):
    try: instrument.stage("c")(wrong)
    except TypeError: continue
    raise AssertionError(wrong)
print("ran to its end")
"""


def test_what_a_decorated_function_does_lies_in_its_range(spans):
    rows = by_name(spans(KINDS))
    assert set(rows) >= {"handler", "step", "rows", "events"}
    for name in ("handler", "step", "rows", "events"):
        assert rows[name]["duration_ns"] >= 30 * MS, name


@pytest.mark.parametrize("code", [KINDS, ODD])
def test_without_an_agent_it_is_the_same(code):
    run("from spanlite import instrument\n" + code)


def test_odd_texts_and_odd_use_end_no_application(spans):
    rows = spans(ODD)
    names = [row["name"] for row in rows]
    assert {"a?", "3", "x", "b"} <= set(names)
    assert names.count("request") == 2
    numbers = [row["said"]["step"] for row in rows if row["said"].get("step") is not None]
    assert max(numbers) < 100 and 1 in numbers


def test_a_step_that_serves_a_request_twice_is_a_step_of_it(spans):
    rows = by_name(
        spans(
            f"""
with instrument.request({TRACEPARENT!r}, name="chat") as one, instrument.step([one, one]):
    with instrument.stage("mlp"): pass
"""
        )
    )
    assert {row["trace"] for row in rows.values()} == {TRACE}


@pytest.mark.parametrize(
    "headers",
    [
        "__import__('email.message', fromlist=['']).Message()",
        "{}",
        "{'Traceparent': VALUE}",
        "{b'traceparent': VALUE.encode()}",
        "{'traceparent': [VALUE]}",
        "[(b'host', b'x'), (b'traceparent', VALUE.encode())]",
        "VALUE.encode()",
    ],
)
def test_a_context_is_found_in_every_kind_of_headers(spans, headers):
    rows = spans(
        f"""
VALUE = {TRACEPARENT!r}
headers = {headers}
if not headers and hasattr(headers, "__setitem__"): headers["traceparent"] = VALUE
with instrument.request(headers): pass
"""
    )
    assert [(row["trace"], f"{row['parent_span_id']:016x}") for row in rows] == [(TRACE, SPAN)]


def test_a_path_that_is_not_there_is_said_once(tmp_path):
    env = {**os.environ, "NVTX_INJECTION64_PATH": str(tmp_path / "no.so")}
    env["CUDA_INJECTION64_PATH"] = env["NVTX_INJECTION64_PATH"]
    code = "from spanlite import instrument\nwith instrument.stage('a'): pass"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("no.so") == done.stderr.count("NVTX_INJECTION64_PATH") == 1
    assert "Traceback" not in done.stderr


def test_signatures_stay():
    code = """
from spanlite import instrument
import inspect
@instrument.stage("s")
def f(a, b=2): "docs"
print(inspect.signature(f), f.__doc__)
"""
    assert run(code) == f"{inspect.signature(lambda a, b=2: 0)} docs\n"


def test_every_range_of_a_drain_gets_its_values(spans):
    rows = spans(
        """
from spanlite.instrument import metrics
gauge = metrics.gauge("q")
for i in range(20_000):
    with instrument.stage("s"): gauge.set(i)
"""
    )
    assert [row["said"].get("q") for row in rows] == list(range(20_000))


def test_odd_values_of_metrics_end_no_application(spans):
    seen = []
    spans(
        r"""
from spanlite.instrument import metrics
hits, q = metrics.counter("hits", labels=["u"]), metrics.gauge("q")
hits.add(1, u="\ud83d"); hits.add(1); hits.add(1, u=[]); hits.add(float("nan"), u="a")
q.set(None); q.set("x"); q.set(3)
""",
        lambda resource, sample: seen.append((sample.metric.key, sample.value)),
    )
    assert seen[0] == ("hits{u=?}", 1.0) and seen[-1] == ("q", 3.0)
    assert ("hits{u=a}", 1.0) not in seen


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("n" * 9000, ""),
        ("chat", f"traceparent='00-{'1' * 32}-{'2' * 16}-01'"),
        ("chat", "own='me'"),
    ],
)
def test_nothing_about_a_request_stands_in_for_its_context(spans, name, more):
    """Neither a name that fills the agent's text nor an attribute of a context's name."""
    (row,) = spans(f"with instrument.request({TRACEPARENT!r}, name={name!r}, {more}): pass")
    assert (row["trace"], f"{row['parent_span_id']:016x}") == (TRACE, SPAN)
    assert row["name"] == name[:1000]
    assert row["said"].get("own") == ("me" if "own" in more else None)


TALK = """
import asyncio
@instrument.stage("talk")
async def talk():
    heard = []
    try:
        while True:
            try: heard.append((yield len(heard)))
            except KeyError as error: heard.append(error.args[0])
    finally:
        print(heard)
async def main():
    it = talk()
    assert await it.__anext__() == 0
    assert await it.asend("one") == 1
    assert await it.athrow(KeyError("two")) == 2
    try: await it.athrow(ValueError("three"))
    except ValueError as error: assert error.args == ("three",)
    else: raise AssertionError("lost")
    early = talk()
    await early.__anext__()
    await early.aclose()
asyncio.run(main())
"""


def test_an_async_generator_hears_what_it_is_sent_and_thrown(spans):
    assert run("from spanlite import instrument\n" + TALK) == "['one', 'two']\n[]\n"
    assert [row["name"] for row in spans(TALK)] == ["talk", "talk"]


def test_more_open_requests_than_the_agent_holds_are_said_once(tmp_path):
    if not AGENT.exists():
        pytest.skip("the agent is not built: make agent")
    code = """
from spanlite import instrument
from spanlite.instrument import _nvtx
for _ in range(_nvtx.MAX_STARTED + 5): instrument.request().begin()
"""
    env = os.environ | {"NVTX_INJECTION64_PATH": str(AGENT), "SPANLITE_AGENT_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("have begun and not ended") == 1


def test_a_range_takes_so_many_values_and_no_more(spans):
    """The rest is counted, and on the page of metrics all the same."""
    kinds = []
    (row,) = spans(
        """
depth = instrument.metrics.gauge("depth", per="sequence")
with instrument.request(name="long"):
    for number in [*range(1005), 3]: depth.set(number, sequence=number)
""",
        lambda resource, sample: kinds.append((sample.metric.kind, sample.value)),
    )
    assert len([name for name in row["said"] if name.startswith("depth{")]) == 1000
    assert [value for kind, value in kinds if kind == "unplaced"] == [5.0]
    assert len(kinds) == 1007
