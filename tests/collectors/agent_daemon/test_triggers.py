"""Windows that a growing queue opens."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from ring_writer import RingWriter
from spanlite.errors import UsageError
from spanlite_collectors.agent.layout import RecordType, WindowReason
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.agent.triggers import (
    SERVER_METRICS,
    CaptureTrigger,
    QueuePage,
    QueueWatch,
)
from spanlite_collectors.sinks import MemorySink


def told(lengths: list[float]) -> list[int]:
    """At which of the values, one a second, the queue is told to grow."""
    now, out = [0.0], []
    watch = QueueWatch(lambda text: out.append(round(now[0])), clock=lambda: now[0])
    for number, length in enumerate(lengths):
        now[0] = float(number)
        watch.see("q", "queue.length", length)
    return out


@pytest.mark.parametrize(
    "lengths",
    [[0] * 5 + [7], [100] * 5 + [150] * 50, list(range(40, 0, -1)), [5, float("nan"), 6], [500]],
    ids=["short", "not twice", "shrinks", "no number", "long from the start"],
)
def test_what_is_no_growth(lengths):
    assert told(lengths) == []


def test_a_jump_is_told_until_it_is_usual():
    first, *rest = told([4] * 20 + [40] * 60)
    assert first == 20
    assert 5 < len(rest) < 40


def test_a_slow_rise_is_told_too():
    assert told([min(n, 60) for n in range(100)])


def test_a_gauge_in_the_spans_opens_a_window(tmp_path):
    writer, said = RingWriter(tmp_path), []
    watch = QueueWatch(lambda text: trigger(text))
    rings = RingSource(MemorySink(), RingOptions([tmp_path]), sampled=watch.take)
    trigger = CaptureTrigger(rings, said.append, "a queue grows", WindowReason.QUEUE)
    for number, length in enumerate((2.0, 2.0, 50.0)):
        writer.write(
            RecordType.RANGE,
            start_ns=number + 1, end_ns=number + 1, id=number + 1, thread_id=1,
            name=writer.text("metric:gauge:queue.length"), domain=writer.text("spanlite"),
            payload_type=3, payload=int(np.float64(length).view(np.uint64)),
        )  # fmt: skip
    rings.step()
    assert (writer.control_word(1), writer.control_word(2)) == (1, 20)
    assert said == ["a queue grows (queue.length is 50, usually 2): asked 1 processes for 20 steps"]
    rings.stop()


@pytest.mark.parametrize(
    ("took_ms", "ended_s_ago", "asked"), [(2500, 0, 1), (1500, 0, 0), (2500, 60, 0)]
)
def test_a_request_over_its_slo_opens_a_window(tmp_path, took_ms, ended_s_ago, asked):
    """Of the one that ended just now, not of what a ring has kept for long."""
    writer, said = RingWriter(tmp_path), []
    options = RingOptions([tmp_path], request_slo_ns=2_000_000_000)
    rings = RingSource(MemorySink(), options)
    options.slow_request = CaptureTrigger(rings, said.append, "a slow request", WindowReason.SLO)
    end = time.time_ns() - ended_s_ago * 10**9
    for number, name in enumerate(("request:chat", "step:"), 1):
        writer.write(
            RecordType.RANGE,
            start_ns=end - took_ms * 10**6, end_ns=end, id=number, thread_id=1,
            name=writer.text(name), domain=writer.text("spanlite"),
        )  # fmt: skip
    rings.step()
    assert writer.control_word(1) == asked
    told = "a slow request (2500 ms, SLO 2000 ms): asked 1 processes for 20 steps"
    assert said == [told] * asked
    rings.stop()


class Page(BaseHTTPRequestHandler):
    """A server's metrics, as vLLM writes them."""

    waiting = 0.0

    def do_GET(self):
        text = f'vllm:num_requests_waiting{{model_name="m"}} {Page.waiting}\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def test_a_server_s_own_page_is_read():
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    grown, said = [], []
    page = QueuePage(
        f"http://127.0.0.1:{server.server_port}/metrics",
        QueueWatch(grown.append),
        SERVER_METRICS,
        said.append,
    )
    try:
        for Page.waiting in (1.0, 1.0, 30.0):
            assert page.read() == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [text.split(",")[0] for text in grown] == ["vllm:num_requests_waiting is 30"]
    assert (page.read(), page.read()) == (0, 0)
    assert len(said) == 1 and "cannot be read" in said[0]


def test_a_page_is_an_address():
    with pytest.raises(UsageError, match="http"):
        QueuePage("file:///etc/passwd", QueueWatch(print), (), print)
