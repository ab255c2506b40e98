"""The official OpenAI client reads what the wire writes."""

import json

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from support.wire_server import CALL, DETAILS, OTHER_CALL, answer_of, stream_of, wire_server
from waltzrl.errors import RequestError
from waltzrl.gateway.wire import CHAT, RESPONSES
from waltzrl.policies.sse import EventDecoder

HELLO = [{"role": "user", "content": "Which river runs through Rome?"}]
TOOL = {"name": "weather", "description": "Now.", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": TOOL}


@pytest.fixture
def served():
    with (
        wire_server() as (address, scene),
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, scene


def test_a_chat_is_answered(served):
    client, scene = served
    scene.answers = [answer_of("The Tiber.")]
    answer = client.chat.completions.create(model="m", messages=HELLO)
    assert (answer.id, answer.model, answer.object) == ("chatcmpl-42", "m", "chat.completion")
    assert answer.choices[0].message.content == "The Tiber."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    assert answer.usage.total_tokens == 18


def test_every_choice_of_a_chat_is_answered(served):
    client, scene = served
    scene.answers = [
        answer_of("One."),
        answer_of("Two", finish="length"),
        answer_of("3", finish="content_filter"),
    ]
    answer = client.chat.completions.create(model="m", messages=HELLO, n=3)
    assert scene.exchanges[0].n == 3
    assert [c.message.content for c in answer.choices] == ["One.", "Two", "3"]
    assert [c.finish_reason for c in answer.choices] == ["stop", "length", "content_filter"]
    assert answer.usage.total_tokens == 3 * 18


def test_a_chat_asks_for_tools(served):
    client, scene = served
    scene.answers = [answer_of("", CALL, OTHER_CALL)]
    answer = client.chat.completions.create(model="m", messages=HELLO, tools=[CHAT_TOOL])
    message = answer.choices[0].message
    assert message.content is None
    assert [c.function.arguments for c in message.tool_calls] == [
        '{"city":"Oslo"}',
        '{"city":"Bergen"}',
    ]
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_chat_is_streamed_with_its_token_counts(served):
    client, scene = served
    scene.answers = [answer_of("The Tiber.")]
    with client.chat.completions.create(
        model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    words = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(words) == "The Tiber."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 18


def test_streamed_choices_and_calls_are_gathered_by_the_client(served):
    client, scene = served
    scene.answers = [answer_of("Let me look.", CALL, OTHER_CALL), answer_of("It rains.")]
    with client.chat.completions.stream(
        model="m", messages=HELLO, n=2, tools=[CHAT_TOOL]
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    first, second = answer.choices
    assert first.message.content == "Let me look."
    assert [c.id for c in first.message.tool_calls] == ["call_1", "call_2"]
    assert first.message.tool_calls[1].function.arguments == '{"city":"Bergen"}'
    assert first.finish_reason == "tool_calls"
    assert (second.message.content, second.finish_reason) == ("It rains.", "stop")


def test_a_retraction_passes_by_a_client_that_does_not_know_it(served):
    client, scene = served
    scene.answers, scene.retraction = [answer_of("The Tiber.")], (4, "Arno.")
    with client.chat.completions.stream(model="m", messages=HELLO) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "The Tiber."
    with client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        found = [chunk.model_extra for chunk in stream if chunk.model_extra]
    assert found == [{"waltz.retract": {"choice": 0, "start": 4, "replacement": "Arno."}}]


def test_a_response_is_answered(served):
    client, scene = served
    scene.answers = [answer_of("The Tiber.")]
    tool = {"type": "function", **TOOL, "strict": True}
    answer = client.responses.create(
        model="m", input="Which river?", instructions="Be brief.", tools=[tool], temperature=0.5
    )
    assert (answer.id, answer.status, answer.output_text) == ("resp_42", "completed", "The Tiber.")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)
    assert (answer.temperature, answer.store) == (0.5, False)
    assert answer.tools[0].name == "weather"
    assert answer.tools[0].strict is True


@pytest.mark.parametrize("calls", [(), (CALL,)])
@pytest.mark.parametrize("finish", [None, "length"])
@pytest.mark.parametrize(
    ("wire", "asked", "kinds"),
    [
        (CHAT, {"messages": HELLO}, (ChatCompletion, ChatCompletionChunk)),
        (RESPONSES, {"input": "Which river?"}, (Response, ResponseStreamEvent)),
    ],
)
def test_a_client_that_validates_what_it_reads_takes_it(wire, asked, kinds, calls, finish):
    chat = wire.read(json.dumps({"model": "m", **asked}).encode(), "42")
    answer = answer_of("Hi.", *calls, finish=finish, details=DETAILS, reasoning="Hm.")
    whole, part = map(TypeAdapter, kinds)
    whole.validate_json(wire.write(chat, [answer]))
    events = EventDecoder().feed(b"".join(stream_of(wire.writer(chat), [answer])))
    for event in [event for event in events if event.data != "[DONE]"]:
        part.validate_json(event.data)


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_response_that_was_cut_says_why(served, finish, reason):
    client, scene = served
    scene.answers = [answer_of("The Ti", finish=finish)]
    answer = client.responses.create(model="m", input="Which river?")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", reason)
    assert answer.output[0].status == "incomplete"
    with client.responses.create(model="m", input="Which river?", stream=True) as stream:
        *_, last = stream
    assert (last.type, last.response.incomplete_details.reason) == ("response.incomplete", reason)


def test_a_response_asks_for_tools(served):
    client, scene = served
    scene.answers = [answer_of("", CALL, OTHER_CALL)]
    answer = client.responses.create(model="m", input="Weather?")
    assert [item.type for item in answer.output] == ["function_call", "function_call"]
    assert [item.call_id for item in answer.output] == ["call_1", "call_2"]
    assert json.loads(answer.output[0].arguments) == {"city": "Oslo"}


def test_a_response_is_streamed(served):
    client, scene = served
    scene.answers = [answer_of("Let me look.", CALL, OTHER_CALL)]
    with client.responses.create(model="m", input="Weather?", stream=True) as stream:
        events = list(stream)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *call,
        *call,
        "completed",
    ]
    added = {e.output_index: e.item.id for e in events if e.type.endswith("output_item.added")}
    done = {e.output_index: e.item.id for e in events if e.type.endswith("output_item.done")}
    final = {place: item.id for place, item in enumerate(events[-1].response.output)}
    assert added == done == final


def test_a_streamed_response_is_gathered_by_the_client(served):
    client, scene = served
    scene.answers, scene.retraction = [answer_of("Let me look.", CALL)], (4, "us look.")
    with client.responses.stream(model="m", input="Weather?") as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert "waltz.retract" in kinds
    assert answer.output_text == "Let me look."
    assert answer.output[1].arguments == '{"city":"Oslo"}'


def test_an_empty_response_is_an_empty_message(served):
    client, scene = served
    scene.answers = [answer_of("")]
    with client.responses.stream(model="m", input="Say nothing.") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == ""
    whole = client.responses.create(model="m", input="Say nothing.")
    assert whole.output[0].type == "message"


PROBLEMS = [
    (RequestError(400, "invalid_request", "why"), openai.BadRequestError),
    (RequestError(401, "authentication", "why"), openai.AuthenticationError),
    (RequestError(403, "permission", "why"), openai.PermissionDeniedError),
    (RequestError(404, "not_found", "why"), openai.NotFoundError),
    (RequestError(429, "rate_limit", "why"), openai.RateLimitError),
    (RequestError(502, "upstream", "why"), openai.InternalServerError),
    (RequestError(503, "overloaded", "why"), openai.InternalServerError),
]


@pytest.mark.parametrize(("problem", "kind"), PROBLEMS)
def test_an_error_becomes_the_clients_own_exception(served, problem, kind):
    client, scene = served
    scene.problem = problem
    with pytest.raises(kind, match="why") as chat:
        client.chat.completions.create(model="m", messages=HELLO)
    with pytest.raises(kind, match="why") as responses:
        client.responses.create(model="m", input="Hello")
    assert chat.value.body == responses.value.body
    assert set(chat.value.body) == {"message", "type", "param", "code"}


def test_a_wrong_field_is_named_to_the_client(served):
    client, _ = served
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="m", messages=[{"role": "robot", "content": "Hi"}])
    assert error.value.param == "messages[0].role"
    assert "got 'robot'; need one of system, developer, user" in error.value.message


def test_a_stream_that_fails_raises_in_the_client(served):
    client, scene = served
    scene.problem = RequestError(502, "upstream", "the upstream went away")
    with (
        client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream,
        pytest.raises(openai.APIError, match="the upstream went away"),
    ):
        list(stream)
    with (
        client.responses.create(model="m", input="Hi", stream=True) as stream,
        pytest.raises(openai.APIError, match="the upstream went away"),
    ):
        list(stream)
    with client.responses.create(model="m", input="Hi", stream=True) as stream:
        failed = next(event for event in stream if event.type == "response.failed")
    assert (failed.response.status, failed.response.error.code) == ("failed", "server_error")


@pytest.mark.parametrize(
    ("status", "kind", "own", "code"),
    [
        (400, "invalid_request", "context_length_exceeded", "context_length_exceeded"),
        (400, "invalid_request", None, "invalid_prompt"),
        (429, "rate_limit", None, "rate_limit_exceeded"),
        (503, "overloaded", None, "server_error"),
    ],
)
def test_a_failed_response_has_the_code_by_which_agents_shorten_or_wait(
    served, status, kind, own, code
):
    client, scene = served
    scene.problem = RequestError(status, kind, "why")
    scene.problem.code = own
    with client.responses.create(model="m", input="Hi", stream=True) as stream:
        failed = next(event for event in stream if event.type == "response.failed")
    assert failed.response.error.code == code


def test_streamed_log_probabilities_are_gathered_by_the_client(served):
    client, scene = served
    scene.answers = [answer_of("Hi.", details=DETAILS)] * 2
    with client.chat.completions.stream(
        model="m", messages=HELLO, n=2, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        answer = stream.get_final_completion()
    assert [
        [(token.token, token.logprob) for token in choice.logprobs.content]
        for choice in answer.choices
    ] == [[("Hi", -0.5), (".", -0.25)]] * 2
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    assert answer.system_fingerprint == "fp_1"


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A draft that passes keeps its log-probabilities, token details, fingerprint, tier and time, "
    "also with `n` > 1, streamed, and in Responses",
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_has_log_probabilities_when_they_are_asked_for(served, streamed):
    client, scene = served
    scene.answers = [answer_of("Hi.", details=DETAILS)]
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    if streamed:
        with client.responses.stream(model="m", input="Hello", **asked) as stream:
            answer = stream.get_final_response()
    else:
        answer = client.responses.create(model="m", input="Hello", **asked)
    tokens = answer.output[0].content[0].logprobs
    assert [(token.token, token.logprob) for token in tokens] == [("Hi", -0.5), (".", -0.25)]
    assert tokens[1].top_logprobs[0].token == "!"
    assert answer.usage.input_tokens_details.cached_tokens == 4
    assert answer.usage.output_tokens_details.reasoning_tokens == 3
    assert answer.service_tier == "default"
    body = scene.exchanges[0].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)


@pytest.mark.promise(
    "What reviewers see",
    "Reasoning is reviewed with the reply and shown with it: chat, Responses, Messages, whole and "
    "streamed",
)
@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_a_chat_shows_reasoning(served, key):
    client, scene = served
    scene.answers = [answer_of("Four.", reasoning="Two and two.")] * 2
    answer = client.chat.completions.create(model="m", messages=HELLO, n=2)
    assert [getattr(choice.message, key) for choice in answer.choices] == ["Two and two."] * 2
    with client.chat.completions.create(model="m", messages=HELLO, n=2, stream=True) as stream:
        deltas = [choice.delta for chunk in stream for choice in chunk.choices if not choice.index]
    assert "".join(getattr(delta, key, "") for delta in deltas) == "Two and two."
    assert "".join(delta.content or "" for delta in deltas) == "Four."


@pytest.mark.promise(
    "What reviewers see",
    "Reasoning is reviewed with the reply and shown with it: chat, Responses, Messages, whole and "
    "streamed",
)
@pytest.mark.parametrize("summary", ["auto", "detailed"])
def test_a_response_shows_reasoning_as_the_summary_that_a_client_asks_for(served, summary):
    client, scene = served
    scene.answers = [answer_of("Four.", reasoning="Two and two.")]
    asked = {"model": "m", "input": "Hello", "reasoning": {"summary": summary}}
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    thoughts = [e for e in events if e.type.startswith("response.reasoning")]
    kinds = dict.fromkeys(e.type.removeprefix("response.reasoning_summary_") for e in thoughts)
    assert [*kinds] == ["part.added", "text.delta", "text.done", "part.done"]
    assert {(e.item_id, e.output_index, e.summary_index) for e in thoughts} == {
        (streamed.output[0].id, 0, 0)
    }
    assert "".join(e.delta for e in thoughts[1:-2]) == thoughts[-2].text == "Two and two."
    done = next(e.item for e in events if e.type == "response.output_item.done")
    whole = client.responses.create(**asked)
    for item in (done, streamed.output[0], whole.output[0]):
        assert [(part.type, part.text) for part in item.summary] == [
            ("summary_text", "Two and two.")
        ]
        assert item.content == []
    assert (whole.reasoning.summary, whole.output_text) == (summary, "Four.")


@pytest.mark.parametrize("calls", [(), (CALL,)])
@pytest.mark.parametrize("text", ["Four.", ""])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_shows_reasoning(served, streamed, text, calls):
    client, scene = served
    scene.answers = [answer_of(text, *calls, reasoning="Two and two.")]
    if streamed:
        with client.responses.stream(model="m", input="Hello") as stream:
            events = list(stream)
            answer = stream.get_final_response()
        thoughts = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        assert "".join(thoughts) == "Two and two."
        done = [e.item for e in events if e.type == "response.output_item.done"]
        assert [item.id for item in done] == [item.id for item in answer.output]
        indices = [e.output_index for e in events if e.type == "response.output_item.done"]
        assert indices == list(range(len(answer.output)))
    else:
        answer = client.responses.create(model="m", input="Hello")
    kinds = [
        "reasoning",
        *(["message"] if text or not calls else []),
        *["function_call"] * len(calls),
    ]
    assert [item.type for item in answer.output] == kinds
    assert answer.output[0].content[0].text == "Two and two."
    assert answer.output_text == text
