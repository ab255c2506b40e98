"""The official Anthropic client reads what the wire writes."""

from importlib import import_module

import pytest

from support.wire_server import CALL, OTHER_CALL, answer_of, wire_server
from waltzrl.errors import RequestError

pytestmark = pytest.mark.xdist_group("gateway")  # with all that imports anthropic, slowly

HELLO = [{"role": "user", "content": "Which river runs through Rome?"}]
ASKED = {"model": "m", "max_tokens": 100, "messages": HELLO}


@pytest.fixture
def anthropic():
    return import_module("anthropic")


@pytest.fixture
def served(anthropic):
    with (
        wire_server() as (address, scene),
        anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as client,
    ):
        yield client, scene


def test_a_message_is_answered(served):
    client, scene = served
    scene.answers = [answer_of("The Tiber.")]
    answer = client.messages.create(**ASKED)
    assert (answer.id, answer.type, answer.role, answer.model) == (
        "msg_42",
        "message",
        "assistant",
        "m",
    )
    assert answer.content[0].text == "The Tiber."
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_tokens"), ("content_filter", "refusal")]
)
def test_a_message_that_was_cut_says_why(served, finish, reason):
    client, scene = served
    scene.answers = [answer_of("The Ti", finish=finish)]
    assert client.messages.create(**ASKED).stop_reason == reason


def test_a_message_uses_tools(served):
    client, scene = served
    scene.answers = [answer_of("Let me look.", CALL, OTHER_CALL)]
    answer = client.messages.create(**ASKED)
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.content[2].input == {"city": "Bergen"}
    assert answer.stop_reason == "tool_use"


def test_a_message_is_streamed(served):
    client, scene = served
    scene.answers = [answer_of("The Tiber.")]
    with client.messages.create(**ASKED, stream=True) as stream:
        events = list(stream)
    assert [e.type for e in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[-2].delta.stop_reason == "end_turn"
    # Estimated first, a quarter of the characters, because a chat counts at its end.
    asked = len(ASKED["messages"][0]["content"])
    assert (events[0].message.usage.input_tokens, events[-2].usage.input_tokens) == (
        -(-asked // 4),
        11,
    )


def test_a_streamed_message_is_gathered_by_the_client(served):
    client, scene = served
    scene.answers, scene.retraction = [answer_of("Let me look.", CALL, OTHER_CALL)], (4, "us look.")
    with client.messages.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert "waltz.retract" in kinds
    assert answer.content[0].text == "Let me look."
    assert [block.input for block in answer.content[1:]] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == (
        "tool_use",
        11,
        7,
    )


def test_a_stream_of_nothing_is_a_message_without_blocks(served):
    client, scene = served
    scene.answers = [answer_of("")]
    with client.messages.stream(**ASKED) as stream:
        assert stream.get_final_message().content == []


PROBLEMS = [
    (RequestError(400, "invalid_request", "why"), "BadRequestError"),
    (RequestError(401, "authentication", "why"), "AuthenticationError"),
    (RequestError(403, "permission", "why"), "PermissionDeniedError"),
    (RequestError(404, "not_found", "why"), "NotFoundError"),
    (RequestError(413, "too_large", "why"), "APIStatusError"),
    (RequestError(429, "rate_limit", "why"), "RateLimitError"),
    (RequestError(503, "overloaded", "why"), "InternalServerError"),
    (RequestError(502, "upstream", "why"), "InternalServerError"),
]


@pytest.mark.parametrize(("problem", "kind"), PROBLEMS)
def test_an_error_becomes_the_clients_own_exception(anthropic, served, problem, kind):
    client, scene = served
    scene.problem = problem
    with pytest.raises(getattr(anthropic, kind), match="why") as error:
        client.messages.create(**ASKED)
    assert error.value.body["type"] == "error"
    assert error.value.body["request_id"] == "req_42"
    assert error.value.body["error"]["message"] == "why"


def test_a_stream_that_fails_raises_in_the_client(anthropic, served):
    client, scene = served
    scene.problem = RequestError(503, "overloaded", "too many requests are waiting")
    with (
        client.messages.create(**ASKED, stream=True) as stream,
        pytest.raises(anthropic.APIStatusError, match="too many requests are waiting"),
    ):
        list(stream)


@pytest.mark.promise(
    "What reviewers see",
    "Reasoning is reviewed with the reply and shown with it: chat, Responses, Messages, whole and "
    "streamed",
)
@pytest.mark.parametrize("calls", [(), (CALL,)])
@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_is_a_block_of_thinking(served, streamed, calls):
    client, scene = served
    scene.answers = [answer_of("Four.", *calls, reasoning="Two and two.")]
    asked = {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096}
    if streamed:
        with client.messages.stream(model="m", messages=HELLO, **asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(model="m", messages=HELLO, **asked)
    kinds = ["thinking", "text", *["tool_use"] * len(calls)]
    assert [block.type for block in answer.content] == kinds
    assert (answer.content[0].thinking, answer.content[1].text) == ("Two and two.", "Four.")
    again = [*HELLO, {"role": "assistant", "content": answer.content[:2]}, *HELLO]
    client.messages.create(model="m", messages=again, **asked)
    assert answer.content[0].signature == "unsigned"
    assert scene.exchanges[-1].body["messages"][1] == {
        "role": "assistant",
        "content": "Four.",
        "reasoning_content": "Two and two.",
    }
