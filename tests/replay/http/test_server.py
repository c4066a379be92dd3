"""The test server: OpenAI's API, and the speed that was asked for."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from spanlite.errors import ServiceError
from spanlite_replay.testserver.engine import Speed
from spanlite_replay.testserver.server import Running, running

FAST = Speed(prefill_per_s=1e6, decode_per_s=2_000, slots=4, stop_after=6)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FAST, "m") as one:
        yield one


def post(server: Running, path: str, body: Any) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(server.url + path, data)
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def events(data: bytes) -> list[Any]:
    lines = [line[6:] for line in data.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_models(server: Running) -> None:
    with urllib.request.urlopen(server.url + "/models") as answer:
        assert [one["id"] for one in json.load(answer)["data"]] == ["m"]


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_max_tokens_is_honoured(server: Running, tokens: int) -> None:
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True}
    status, data = post(server, "/completions", body)
    answer = json.loads(data)
    assert status == 200 and len(answer["choices"][0]["text"].split()) == tokens
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens
    }  # fmt: skip


def test_without_ignore_eos_the_answer_ends_where_the_model_does(server: Running) -> None:
    _, data = post(server, "/completions", {"model": "m", "prompt": "a b", "max_tokens": 40})
    answer = json.loads(data)
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stream_of_chat(server: Running) -> None:
    body = {
        "model": "m", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 4,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    found = events(post(server, "/chat/completions", body)[1])
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert sum("content" in one["choices"][0]["delta"] for one in found[1:-1]) == 4
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert found[-1]["choices"] == [] and found[-1]["usage"]["prompt_tokens"] == 2
    assert {one["object"] for one in found} == {"chat.completion.chunk"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        ([], 400, "not a JSON object"),
        ({"model": "other"}, 404, "does not exist"),
        ({"model": "m", "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "m", "prompt": {}}, 400, "prompt"),
        ({"model": "m", "prompt": "a", "n": 2}, 400, "one answer"),
    ],
)
def test_what_is_wrong_is_said(server: Running, body: Any, status: int, words: str) -> None:
    code, data = post(server, "/completions", body)
    assert code == status and words in json.loads(data)["error"]["message"]


def test_requests_run_so_many_at_a_time_and_in_order() -> None:
    with running(Speed(1e6, 200, slots=2), "m") as server:
        body = {"model": "m", "prompt": "a", "max_tokens": 4}
        asked = [
            threading.Thread(target=post, args=(server, "/completions", body)) for _ in range(6)
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
        served = server.api.engine.served
    assert len(served) == 6
    marks = [(one.first_token_ns, 1) for one in served] + [
        (one.last_token_ns, -1) for one in served
    ]
    now, most = 0, 0
    for _, change in sorted(marks):
        now += change
        most = max(most, now)
    assert most <= 2
    firsts = [one.first_token_ns for one in sorted(served, key=lambda one: one.arrived_ns)]
    assert firsts == sorted(firsts)
    # Three steps of 5 ms between the first and the last token, and three such rounds.
    assert max(one.last_token_ns for one in served) - min(firsts) >= 3 * 3 * 5_000_000 * 0.9


def test_a_full_queue_and_a_taken_port() -> None:
    with running(Speed(1e6, 50, slots=1, queue=0), "m") as server:
        body = {"model": "m", "prompt": "a", "max_tokens": 30}
        holder = threading.Thread(target=post, args=(server, "/completions", body))
        holder.start()
        while not any(one.tokens for one in server.api.engine.served):
            pass
        assert post(server, "/completions", body)[0] == 429
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(ServiceError, match="another --port"), running(FAST, port=port):
            pass
        holder.join()
