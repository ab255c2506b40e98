"""`privacy.upstream`: what the upstream gets, and what the client gets back, in every API."""

import asyncio
import json
from base64 import b64encode
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.openai_server import serving
from support.small_gateway import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    UNSAFE,
    Model,
    ask,
    gateway,
    with_gateway,
)
from support.small_site import events, http
from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.private_reviewer import PrivateReviewer
from waltzrl.gateway.settings import load_gateway
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Message, Prompt, Reply, ToolCall
from waltzrl.store.privacy.scanner import PersonalDataScanner

ON = "privacy.upstream=pseudonymise"
pytestmark = pytest.mark.promise(
    "Personal data",
    "With `privacy.upstream` nothing that is found leaves for a model, and replies are restored",
)
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----"
PIECES = [
    "ada@example.com",
    "jörg@beispiel.de",
    "+49 30 901820",
    "4539 1488 0343 3654",
    "10.1.2.34",
    KEY,
]
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


class Echo(Model):
    """Answers with the text of the last turn, in parts of any length, or as its `says` does."""

    def __init__(self):
        super().__init__()
        self.cuts, self.says = [], None

    def answer(self, body, path):
        if path != "/chat/completions":
            return super().answer(body, path)
        self.bodies.append(body)
        message = self.says(body) if self.says else {"content": body["messages"][-1]["content"]}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return http({"choices": [choice], "id": "1", "model": "echo"})
        parts = [{"delta": part} for part in self.divide(message)]
        chunks = [{"choices": [part]} for part in [*parts, {"delta": {}, "finish_reason": finish}]]
        return events(*map(json.dumps, chunks), "[DONE]")

    def divide(self, message):
        """Yield the deltas of a message, cut at `cuts`."""
        for key in ("reasoning_content", "content"):
            for part in cut(message.get(key) or "", self.cuts):
                yield {key: part}
        for call in message.get("tool_calls", ()):
            for number, part in enumerate(cut(call["function"]["arguments"], self.cuts)):
                named = {"id": call["id"], "type": "function"} if number == 0 else {}
                function = {"arguments": part, **({"name": "send"} if number == 0 else {})}
                yield {"tool_calls": [{"index": 0, **named, "function": function}]}


def cut(text, places):
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.fixture(scope="module")
def served():
    """A gateway in front of an `Echo`, for many requests of one test."""
    model = Echo()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        # Buffered, and all that is found is sent on: no rule holds a text back.
        opening = gateway(ON, "enabled=false", "pass_through=true", model=model)
        app = runner.run(stack.enter_async_context(opening))
        yield SimpleNamespace(
            model=model, ask=lambda path, body, **more: runner.run(ask(app, path, body, **more))
        )
        runner.run(stack.aclose())


def request(path, text, **more):
    turns = [{"role": "user", "content": text}]
    asked = {
        CHAT: {"messages": turns},
        COMPLETIONS: {"prompt": text},
        RESPONSES: {"input": turns},
        MESSAGES: {"messages": turns, "max_tokens": 9},
    }[path]
    return {"model": "echo", **asked, **more}


def read_events(response):
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def read_stream(path, response):
    """Return the text and the arguments of a streamed reply, as its deltas spell them."""
    found = read_events(response)
    if path in (CHAT, COMPLETIONS):
        choices = [choice for event in found for choice in event["choices"]]
        deltas = [choice.get("delta") or {"content": choice.get("text")} for choice in choices]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        arguments = "".join(call["function"]["arguments"] for call in calls)
        return "".join(delta.get("content") or "" for delta in deltas), arguments
    texts = {"response.output_text.delta", "text_delta"}
    arguments = {"response.function_call_arguments.delta", "input_json_delta"}
    deltas = [
        event["delta"] if isinstance(event["delta"], dict) else {**event, "text": event["delta"]}
        for event in found
        if "delta" in event and "stop_reason" not in event["delta"]
    ]
    return (
        "".join(delta["text"] for delta in deltas if delta["type"] in texts),
        "".join(d.get("partial_json", d.get("text", "")) for d in deltas if d["type"] in arguments),
    )


def read_whole(path, response):
    """Return the text and the arguments of a whole reply."""
    body = response.json
    if path == COMPLETIONS:
        return body["choices"][0]["text"], ""
    if path == CHAT:
        message = body["choices"][0]["message"]
        calls = message.get("tool_calls", ())
        return message["content"] or "", "".join(call["function"]["arguments"] for call in calls)
    items = body["output"] if path == RESPONSES else body["content"]
    parts = [part for item in items for part in item.get("content", [item]) or ()]
    text = "".join(part.get("text", "") for part in parts)
    arguments = [part.get("arguments") or part.get("input") for part in parts]
    written = [a if isinstance(a, str) else json.dumps(a) for a in arguments if a]
    return text, "".join(written)


def read(path, response):
    assert response.status == 200, response.text
    streamed = response.headers["content-type"].startswith("text/event-stream")
    return (read_stream if streamed else read_whole)(path, response)


TEXTS = st.lists(
    st.sampled_from([*PIECES, "[EMAIL_1]", "[EMAIL_9]", "[EMA", "hello", "\n"]), min_size=1
).map(" ; ".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.sampled_from(APIS), TEXTS, st.booleans(), st.lists(st.integers(0, 10**6), max_size=9))
def test_an_echo_is_what_was_said_and_the_upstream_never_saw_it(served, path, text, stream, cuts):
    served.model.cuts, served.model.says = cuts, None
    response = served.ask(path, request(path, text, stream=stream))
    assert read(path, response)[0] == text
    sent = json.dumps(served.model.bodies[-1], ensure_ascii=False)
    assert [piece for piece in PIECES if json.dumps(piece, ensure_ascii=False)[1:-1] in sent] == []


ARGUMENTS = {"to": ["ada@example.com"], "key": KEY, "inner": json.dumps({"key": KEY})}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.sampled_from((CHAT, RESPONSES, MESSAGES)), st.booleans(), st.lists(st.integers(0, 10**6)))
def test_arguments_of_calls_come_back_as_json(served, path, stream, cuts):
    hidden = json.dumps(
        {"to": ["[EMAIL_1]"], "key": "[SECRET_1]", "inner": '{"key": "[SECRET_1]"}'}
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": hidden}}
    served.model.cuts = cuts
    served.model.says = lambda _body: {"content": None, "tool_calls": [call]}
    response = served.ask(path, request(path, f"ada@example.com {KEY}", stream=stream))
    assert json.loads(read(path, response)[1]) == ARGUMENTS


HISTORY = [
    {"role": "system", "content": "The owner is ada@example.com. Her password: Hunter2"},
    {"role": "user", "name": "bob@example.org", "content": [{"type": "text", "text": "I am Bob"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "He may call +49 30 901820.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "find", "arguments": '{"ssn": 536904399, "n": 12}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"mail": "ada\\u0040example.com"}'},
    {"role": "user", "content": "Is Hunter2 good?"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds people. Ask carol@example.net for help.",
        "parameters": {
            "type": "object",
            "properties": {"ssn": {"enum": [536904399], "default": "dave@example.net"}},
            "required": ["ssn"],
        },
    },
}
IMAGE = f"data:image/png;base64,{b64encode(b'ada@example.com 4539148803433654' * 9).decode()}"
FILE = f"data:text/plain;base64,{b64encode(b'From: ada@example.com').decode()}"


def test_all_that_is_text_is_searched_and_nothing_else(served):
    media = [
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "file", "file": {"filename": "letter.txt", "file_data": FILE}},
    ]
    served.model.says = lambda _body: {"content": "Mail [EMAIL_1], [SECRET_1] or [SSN_1]."}
    response = served.ask(
        CHAT,
        {
            "model": "echo",
            "messages": [*HISTORY, {"role": "user", "content": media}],
            "tools": [TOOL],
            "stop": ["ada@example.com"],
            "user": "ada@example.com",
        },
    )
    sent = served.model.bodies[-1]
    assert sent["tools"][0]["function"] == {
        "name": "find",
        "description": "Finds people. Ask [EMAIL_1] for help.",
        "parameters": {
            "type": "object",
            "properties": {"ssn": {"enum": [536904399], "default": "[EMAIL_2]"}},
            "required": ["ssn"],
        },
    }
    assert (sent["stop"], sent["user"], sent["model"]) == (["[EMAIL_3]"], "[EMAIL_3]", "echo")
    system, user, assistant, tool, last, with_media = sent["messages"]
    assert system["content"] == "The owner is [EMAIL_3]. Her password: [SECRET_1]"
    assert user["name"] == "[EMAIL_4]"
    assert assistant["reasoning_content"] == "He may call [PHONE_1]."
    call = assistant["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("find", {"ssn": "[SSN_1]", "n": 12})
    assert (tool["tool_call_id"], json.loads(tool["content"])) == ("call_1", {"mail": "[EMAIL_3]"})
    assert last["content"] == "Is [SECRET_1] good?"
    image, file = with_media["content"]
    assert image["image_url"]["url"] == IMAGE
    hidden = b64encode(b"From: [EMAIL_3]").decode()
    assert file["file"]["file_data"] == f"data:text/plain;base64,{hidden}"
    text = read(CHAT, response)[0]
    assert text == "Mail carol@example.net, Hunter2 or 536904399."


def test_an_earlier_part_of_a_conversation_is_sent_in_the_same_words(served):
    served.model.says = None
    for turns in (HISTORY[:2], HISTORY):
        served.ask(CHAT, {"model": "echo", "messages": turns, "tools": [TOOL]})
    shorter, longer = served.model.bodies[-2:]
    assert longer["messages"][:2] == shorter["messages"]


def test_a_format_that_wants_an_address_gets_one(served):
    schema = {"type": "object", "properties": {"to": {"type": "string", "format": "email"}}}
    served.model.says = lambda _body: {"content": '{"to": "email-1@stand-in.invalid"}'}
    response = served.ask(
        CHAT,
        request(
            CHAT,
            "ada@example.com",
            response_format={"type": "json_schema", "json_schema": {"name": "o", "schema": schema}},
        ),
    )
    assert served.model.bodies[-1]["messages"][0]["content"] == "email-1@stand-in.invalid"
    assert read(CHAT, response)[0] == '{"to": "ada@example.com"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_in_json_reasoning_and_refusals_come_back(served, stream):
    served.model.cuts = range(0, 60, 3)
    served.model.says = lambda _body: {
        "reasoning_content": "They wrote [EMAIL_1].",
        "content": '{"key": "[SECRET_1]"}',
    }
    asked = request(CHAT, f"ada@example.com {KEY}", stream=stream)
    response = served.ask(CHAT, {**asked, "response_format": {"type": "json_object"}})
    assert json.loads(read(CHAT, response)[0]) == {"key": KEY}
    assert "[EMAIL_1]" not in response.text
    served.model.says = lambda _body: {"content": None, "refusal": 'Not "[SECRET_1]".'}
    refused = served.ask(
        CHAT, {**asked, "stream": False, "response_format": {"type": "json_object"}}
    )
    message = refused.json["choices"][0]["message"]
    assert (message["refusal"] or message["content"]) == f'Not "{KEY}".'


class Spelling(Echo):
    """Sends log-probabilities, and the stop sequence that ended the reply."""

    def answer(self, body, path):
        if path != "/chat/completions":
            return super().answer(body, path)
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        token = {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "stop_reason": body["stop"][0],
            "logprobs": {"content": [token], "refusal": None},
        }
        self.sent = json.dumps({"id": "1", "model": "echo", "choices": [choice]}).encode()
        return http(self.sent)


def test_bytes_and_log_probabilities_pass_only_if_nothing_was_replaced():
    async def work(app):
        clean = request(CHAT, "hello", stop=["bye"], logprobs=True)
        plain = await ask(app, CHAT, clean)
        assert plain.text.encode() == model.sent
        restored = await ask(app, CHAT, request(CHAT, "ada@example.com", stop=["bye"]))
        assert restored.json["choices"][0]["message"]["content"] == "ada@example.com"
        assert restored.json["choices"][0]["logprobs"] is None
        assert "[EMAIL_1]" not in restored.text
        stopped = request(MESSAGES, "hi", stop_sequences=["ada@example.com"])
        ended = await ask(app, MESSAGES, stopped)
        assert model.bodies[-1]["stop"] == ["[EMAIL_1]"]
        assert ended.json["stop_sequence"] == "ada@example.com"

    model = Spelling()
    with_gateway(work, ON, model=model)


def test_a_mask_leaves_and_is_not_put_back():
    async def work(app):
        response = await ask(app, CHAT, request(CHAT, "ada@example.com or bob@example.org"))
        assert read(CHAT, response)[0] == "[EMAIL] or [EMAIL]"

    model = Echo()
    with_gateway(work, "privacy.upstream=mask", model=model)
    assert model.bodies[-1]["messages"][0]["content"] == "[EMAIL] or [EMAIL]"


def test_a_revision_is_asked_for_and_returned_in_the_same_way(tmp_path):
    class Revising(Echo):
        def says_to(self, body):
            revises = "A reviewer read your last reply" in body["messages"][-1]["content"]
            return {"content": "I wrote to [EMAIL_1]." if revises else f"[EMAIL_1]: {UNSAFE}"}

    async def work(app):
        response = await ask(app, CHAT, request(CHAT, "I am ada@example.com"))
        assert response.headers["x-waltzrl-decision"] == "revised"
        assert read(CHAT, response)[0] == "I wrote to ada@example.com."

    model = Revising()
    model.says = model.says_to
    with_gateway(work, ON, model=model)
    assert len(model.bodies) == 2
    assert "ada@example.com" not in json.dumps(model.bodies)


def test_what_is_no_chat_is_searched_too_and_refused_if_it_cannot_be(served):
    assert (
        served.ask("/v1/embeddings", {"model": "echo", "input": ["ada@example.com", "hi"]}).status
        == 200
    )
    assert served.model.bodies[-1]["input"] == ["[EMAIL_1]", "hi"]
    counted = {"model": "echo", "messages": [{"role": "user", "content": "ada@example.com"}]}
    served.ask("/v1/messages/count_tokens", counted)
    assert served.model.bodies[-1]["messages"][0]["content"] == "[EMAIL_1]"
    asked = len(served.model.bodies)
    form = b"--x\r\nada@example.com\r\n--x--"
    refused = served.ask("/v1/files", form, content_type="multipart/form-data; boundary=x")
    assert (refused.status, "privacy.upstream" in refused.error) == (403, True)
    path = served.ask("/v1/files/ada%40example.com", b"", method="GET")
    assert path.status == 403
    assert len(served.model.bodies) == asked


PROMPT = Prompt(
    id="1",
    messages=(
        Message(role="user", content="I am ada@example.com"),
        Message(
            role="assistant",
            content="",
            calls=(ToolCall(id="c", name="send", arguments='{"to": "ada@example.com"}'),),
        ),
        Message(role="tool", content="+49 30 901820", call_id="c"),
    ),
    context=(Message(role="system", content="tools:\nAsk bob@example.org"),),
)


def test_a_reviewing_model_gets_stand_ins_and_its_advice_is_restored():
    seen = []

    def says(messages):
        seen.append("".join(message.full_text for message in messages))
        return (
            '{"unsafe": true, "overrefuse": false, "feedback": "Leave out [EMAIL_1], [EMAIL_7]."}'
        )

    agent = FeedbackAgent(ScriptedPolicy(says), load_wording("labels_first"), Sampling())
    reviewer = PrivateReviewer(agent, PersonalDataScanner(), numbered=True)
    reply = Reply(text="Write to carol@example.net or ada@example.com")
    feedback = asyncio.run(reviewer.review(PROMPT, reply))
    assert "@example" not in seen[0]
    assert "901820" not in seen[0]
    assert feedback.text == "Leave out ada@example.com, [EMAIL_7]."


def test_a_feedback_server_gets_no_personal_data():
    seen = []

    def says(messages):
        seen.append("".join(message.full_text for message in messages))
        return '{"unsafe": false, "overrefuse": false, "category": "none", "feedback": ""}'

    with serving({"judge": ScriptedPolicy(says)}) as server:
        reviews = ("stage=2", "feedback.model=judge", f"feedback.server={server.base_url}")
        quiet = ("feedback.self_test=false",)

        async def work(app):
            response = await ask(app, CHAT, request(CHAT, "I am ada@example.com"))
            assert response.json["choices"][0]["message"]["content"] == "I am ada@example.com"

        with_gateway(work, ON, *reviews, *quiet, model=Echo())
    assert len(seen) == 1
    assert "I am [EMAIL_1]" in seen[0]
    assert "ada@example.com" not in seen[0]


def test_the_treatment_is_part_of_what_a_bundle_is():
    def id_of(*overrides):
        return bundle_id(load_gateway(None, {"upstream": {"url": "http://h:1/v1"}}, overrides, {}))

    off = id_of()
    assert off == id_of('privacy.regions=["FR"]') == id_of("privacy.upstream=off")
    assert len({off, id_of(ON), id_of("privacy.upstream=mask")}) == 3
    assert id_of(ON) != id_of(ON, 'privacy.regions=["FR"]')
    assert id_of("enabled=false") != id_of("enabled=false", ON)


def test_a_policy_can_have_its_own_treatment():
    stored = 'privacy.actions={"email" = "keep"}'
    policy = 'policies.strict.privacy.upstream="mask"'
    asked = request(CHAT, "I am ada@example.com")

    async def work(app):
        await ask(app, CHAT, asked)
        await ask(app, CHAT, asked, x_waltzrl_policy="strict")

    model = Echo()
    with_gateway(work, stored, policy, model=model)
    sent = [body["messages"][0]["content"] for body in model.bodies]
    assert sent == ["I am ada@example.com", "I am [EMAIL]"]


def sent_file(served, data):
    served.model.says = None
    part = {"type": "file", "file": {"filename": "a.txt", "file_data": data}}
    turn = {"role": "user", "content": [part, {"type": "text", "text": "hi"}]}
    assert served.ask(CHAT, {"model": "echo", "messages": [turn]}).status == 200
    return served.model.bodies[-1]["messages"][0]["content"][0]["file"]["file_data"]


@pytest.mark.parametrize(
    ("kind", "charset", "sent"),
    [
        ("DATA:Text/Plain", "utf-8", "DATA:Text/Plain"),
        ("data:text/plain;charset=UTF-16", "utf-16", "data:text/plain;charset=utf-8"),
        ("data:text/plain;charset=nonsense", "utf-8", "data:text/plain;charset=utf-8"),
        ("data:application/csv", "utf-8", "data:application/csv"),
        ("data:message/rfc822", "utf-8", "data:message/rfc822"),
    ],
)
def test_a_text_file_is_searched_whatever_its_type_is_called(served, kind, charset, sent):
    encoded = b64encode("From: ada@example.com".encode(charset)).decode()
    hidden = b64encode(b"From: [EMAIL_1]").decode()
    assert sent_file(served, f"{kind};base64,{encoded}") == f"{sent};base64,{hidden}"


def test_a_file_that_is_sent_as_its_text_is_searched(served):
    assert sent_file(served, "From ada@example.com") == "From [EMAIL_1]"
    image = b64encode(bytes(range(256))).decode()
    assert sent_file(served, image) == image


def test_text_that_looks_like_encoded_data_is_searched(served):
    served.model.says = None
    text = f"data:ada@example.com;{'x' * 64}"
    for content in (text, [{"type": "text", "text": text}]):
        served.ask(CHAT, {"model": "echo", "messages": [{"role": "user", "content": content}]})
        assert "ada@" not in json.dumps(served.model.bodies[-1])


def test_the_text_of_a_document_that_is_counted_is_searched(served):
    source = {"type": "text", "media_type": "text/plain", "data": "I am ada@example.com"}
    turn = {"role": "user", "content": [{"type": "document", "source": source}]}
    served.ask("/v1/messages/count_tokens", {"model": "echo", "messages": [turn]})
    (block,) = served.model.bodies[-1]["messages"][0]["content"]
    assert block["source"]["data"] == "I am [EMAIL_1]"


def test_values_in_schemas_are_searched_under_every_key(served):
    values = {"default": {"model": "ada@example.com"}, "examples": [{"type": "ada@example.com"}]}
    parameters = {"type": "object", "properties": {"to": values}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    served.model.says = None
    served.ask(CHAT, {**request(CHAT, "hi"), "tools": [tool]})
    properties = served.model.bodies[-1]["tools"][0]["function"]["parameters"]["properties"]
    assert properties["to"] == {
        "default": {"model": "[EMAIL_1]"},
        "examples": [{"type": "[EMAIL_1]"}],
    }


def test_only_what_was_searched_of_a_request_that_is_no_chat_is_sent(served):
    twice = b'{"model": "echo", "input": "ada@example.com", "input": "hi"}'
    assert served.ask("/v1/embeddings", twice).status == 200
    assert served.model.raw[-1] == b'{"model":"echo","input":"hi"}'
