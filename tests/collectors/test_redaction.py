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


EXTRAS = {
    "otel.events": [
        {"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": "secret", "n": 1}},
        {"name": "gen_ai.user.message", "attributes": {"content": "secret", "user.id": "ann"}},
        {"name": "begun"},
    ],
    "otel.links": [{"span_id": "1", "attributes": {"gen_ai.completion": "secret", "n": 2}}],
    "otel.scope.attributes": {"llm.prompts": "secret", "n": 3},
    "gen_ai": {"prompt": "secret", "usage": [{"prompt": "secret", "n": 4}]},
}


def test_prompts_in_events_links_scopes_and_parts_do_not_leave_either():
    said, _ = send(Redaction(), [json.dumps(EXTRAS)])
    assert said == [
        {
            "otel.events": [
                {"name": "gen_ai.content.prompt", "attributes": {}},
                {"name": "gen_ai.user.message", "attributes": {"user.id": "ann"}},
                {"name": "begun"},
            ],
            "otel.links": [{"span_id": "1", "attributes": {"n": 2}}],
            "otel.scope.attributes": {"n": 3},
            "gen_ai": {"usage": [{"n": 4}]},
        }
    ]


def test_what_is_hashed_is_hashed_wherever_it_stands():
    attributes = {**EXTRAS, "user.id": "ann", "user": {"id": "ann"}, "z": {"user.id": "ann"}}
    said, _ = send(Redaction(hashed=["user.id"], key=KEY), [json.dumps(attributes)])
    assert "ann" not in json.dumps(said)
    hashes = {said[0]["user.id"], said[0]["user"]["id"], said[0]["z"]["user.id"]}
    assert hashes == {said[0]["otel.events"][1]["attributes"]["user.id"]}


def test_an_allow_list_holds_in_events_and_keeps_all_of_a_value():
    said, _ = send(Redaction(allow=["otel.events", "n", "gen_ai"]), [json.dumps(EXTRAS)])
    events = said[0].pop("otel.events")
    assert [event.get("attributes") for event in events] == [{"n": 1}, {}, None]
    assert said == [{"gen_ai": EXTRAS["gen_ai"]}]


@pytest.mark.parametrize(
    "name",
    [
        "llm.input_messages.0.message.content",
        "llm.output_messages.1.message.contents.0.message_content.text",
        "llm.input_messages",
        "traceloop.entity.input",
        "retrieval.documents.0.document.content",
        "gen_ai.event.content",
    ],
)
def test_names_that_other_tools_have_for_texts_of_people(name):
    assert send(Redaction(), [json.dumps({name: "secret"})])[0] == [None]


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
