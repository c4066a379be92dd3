"""What may leave the host."""

import json

import pytest
from spanlite.errors import UsageError
from spanlite_collectors.importers._columns import span_batch
from spanlite_collectors.redaction import RedactingSink, Redaction
from spanlite_collectors.sinks import MemorySink

KEY = b"0123456789abcdef"


def send(redaction, texts, resource=None):
    sink = MemorySink()
    columns = {"name": ["n"] * len(texts), "attributes": texts}
    RedactingSink(sink, redaction).write(span_batch(len(texts), columns), resource or {})
    batch, resource = sink.written[0]
    batch.validate(full=True)
    said = batch.column("attributes").to_pylist()
    return [json.loads(text) if text else None for text in said], resource


def test_prompts_do_not_leave_by_default():
    texts = [
        '{"gen_ai.prompt":"secret","gen_ai.usage.input_tokens":5}',
        '{"gen_ai.input.messages":"secret"}',
        None,
        '{"llm.prompts.0.content":"secret"}',
        '{"stage":"mlp"}',
    ]
    said, resource = send(Redaction(), texts, {"gen_ai.prompt": "secret", "service.name": "s"})
    assert said == [{"gen_ai.usage.input_tokens": 5}, None, None, None, {"stage": "mlp"}]
    assert resource == {"service.name": "s"}


def test_an_allow_list_keeps_only_what_it_names():
    texts = ['{"a.b":1,"c":2,"stage":"x"}', '{"c":3}', '{"a.z":4}']
    said, resource = send(
        Redaction(allow=["a.*"]),
        texts,
        {"host.name": "h", "secret": 1, "spanlite.capture.weight": 2},
    )
    assert said == [{"a.b": 1, "stage": "x"}, None, {"a.z": 4}]
    assert resource == {"host.name": "h", "spanlite.capture.weight": 2}


def test_hashes_join_and_cannot_be_read():
    texts = ['{"user.id":"ann"}', '{"user.id":"bob"}', '{"user.id":"ann","x":1}']
    said, resource = send(Redaction(hashed=["user.*"], key=KEY), texts, {"user.home": 7})
    ann, bob, again = (attributes["user.id"] for attributes in said)
    assert ann == again != bob
    assert len(ann) == 32
    assert resource["user.home"] != 7
    other, _ = send(Redaction(hashed=["user.*"], key=KEY[::-1]), texts)
    assert other[0]["user.id"] != ann


def test_hashing_needs_a_key_and_never_shows_it():
    with pytest.raises(UsageError, match="key"):
        Redaction(hashed=["user.id"])
    assert "0123456789abcdef" not in repr(Redaction(hashed=["a"], key=KEY))


def test_texts_that_become_equal_stay_a_valid_column():
    said, _ = send(Redaction(allow=["a"]), ['{"a":1,"b":1}', '{"a":1,"b":2}', '{"b":1}', None])
    assert said == [{"a": 1}, {"a": 1}, None, None]
