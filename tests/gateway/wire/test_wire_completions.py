"""Completions: each prompt becomes a chat of one message, and each text an answer of it."""

import json

import pytest

from support.small_gateway import COMPLETIONS as PATH
from support.small_gateway import REVISED, UNSAFE, Model, ask, with_gateway
from support.wire_server import CALL, answer_of, stream_of
from waltzrl.errors import RequestError
from waltzrl.gateway.gateway import choice_of
from waltzrl.gateway.wire import COMPLETIONS
from waltzrl.store.audit.reading import find


def read(prompt="Once", **options):
    body = {"model": "m", "prompt": prompt, **options}
    return COMPLETIONS.read(json.dumps(body).encode(), "42")


def ask_for(prompt, model="echo", upstream=None, settings=(), **options):
    body = {"model": model, "prompt": prompt, **options}
    return with_gateway(lambda app: ask(app, PATH, body), *settings, model=upstream)


def user(text):
    return [{"role": "user", "content": text}]


def test_a_prompt_becomes_a_chat_with_the_options_that_a_chat_has():
    exchange = read(max_tokens=5, temperature=0.5, stop=["END"], user="u7", top_k=40, echo=False)
    assert exchange.body == {
        "model": "m",
        "messages": user("Once"),
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["END"],
        "user": "u7",
        "top_k": 40,
    }
    assert (exchange.api, exchange.model, exchange.subject) == ("completions", "m", "u7")
    assert [(turn.role, turn.content) for turn in exchange.prompt.messages] == [("user", "Once")]


def test_without_a_length_this_api_generates_sixteen_tokens():
    assert read().body["max_tokens"] == 16
    assert read(max_tokens=None).body["max_tokens"] == 16
    assert "max_tokens" not in read(max_completion_tokens=9).body


def test_keys_of_a_chat_do_not_slip_past_the_prompt():
    exchange = read(messages=user("other"), tools=[{}], tool_choice="auto", functions=[{}])
    assert exchange.body == {"model": "m", "messages": user("Once"), "max_tokens": 16}


def test_several_prompts_have_choices_of_their_own_each_with_its_seed():
    exchange = read(["a", "b"], n=2, seed=5)
    assert exchange.n == 4
    choices = [choice_of(exchange, number) for number in range(4)]
    assert [choice.prompt.request for choice in choices] == ["a", "a", "b", "b"]
    assert [choice.body["seed"] for choice in choices] == [5, 6, 5, 6]
    assert [choice.body["messages"] for choice in choices] == [user(text) for text in "aabb"]
    assert {choice.prompt.id for choice in choices} == {"42"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": None}, "prompt: got nothing; need a text or a list of texts"),
        ({"prompt": []}, "prompt: got an empty list"),
        ({"prompt": [1, 2]}, "prompt: got a list"),
        ({"prompt": [[1, 2]]}, "tokens have no review"),
        ({"prompt": ["a", 1]}, "prompt[1]: got 1; need a string"),
        ({"prompt": ["a"] * 17}, "16 choices or fewer in all"),
        ({"prompt": ["a"] * 6, "n": 3}, "16 choices or fewer in all"),
        ({"n": 17}, "n: got 17"),
        ({"best_of": 3}, "best_of: every choice is returned"),
        ({"echo": True}, "echo: the prompt is not repeated"),
        ({"suffix": "end"}, "suffix: a chat cannot fill a gap"),
        ({"logprobs": 3}, "logprobs: "),
        ({"logprobs": 0}, "logprobs: "),
        ({"model": ""}, "model: "),
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"stream": 1}, "stream: got 1"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(options, message):
    with pytest.raises(RequestError) as raised:
        read(**{"prompt": "Once", **options})
    assert (raised.value.status, message in str(raised.value)) == (400, True), str(raised.value)


def test_texts_and_counts_are_written():
    answers = [answer_of("One."), answer_of("Two", finish="length"), answer_of("", CALL)]
    written = json.loads(COMPLETIONS.write(read(n=3), answers))
    assert (written["id"], written["object"], written["model"]) == (
        "cmpl-42",
        "text_completion",
        "m",
    )
    assert [(c["index"], c["text"], c["finish_reason"]) for c in written["choices"]] == [
        (0, "One.", "stop"),
        (1, "Two", "length"),
        (2, "", "stop"),
    ]
    assert written["usage"]["total_tokens"] == 3 * 18


def test_a_stream_has_chunks_of_text():
    exchange = read(stream=True, stream_options={"include_usage": True})
    raw = b"".join(stream_of(COMPLETIONS.writer(exchange), [answer_of("Tiber.", CALL)]))
    *data, done = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in data]
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [c["text"] for c in choices] == ["Tib", "er.", ""]
    assert [c["finish_reason"] for c in choices] == [None, None, "stop"]
    assert chunks[-1]["usage"]["total_tokens"] == 18


def test_an_unsafe_completion_leaves_revised():
    response = ask_for("hello", "unsafe")
    assert response.headers["x-waltzrl-decision"] == "revised"
    assert response.json["choices"][0]["text"] == REVISED
    assert UNSAFE not in response.text


def test_a_stream_of_an_unsafe_completion_leaves_nothing_of_it():
    response = ask_for(["hello", "again"], "unsafe", stream=True)
    assert UNSAFE not in response.text
    assert response.text.count(REVISED) == 2
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Every prompt and choice of `/v1/completions` is reviewed, streamed or not, and audited by "
    "itself",
)
def test_every_prompt_is_drafted_reviewed_and_audited_by_itself(tmp_path):
    upstream = Model()
    folder = tmp_path / "audit"
    response = ask_for(["one", "two"], n=2, upstream=upstream, settings=[f"audit.folder={folder}"])
    assert [choice["index"] for choice in response.json["choices"]] == [0, 1, 2, 3]
    asked = sorted(body["messages"][0]["content"] for body in upstream.bodies)
    assert asked == ["one", "one", "two", "two"]
    decisions = [entry.decision for entry in find(folder, response.headers["x-request-id"])]
    assert len(decisions) == 4
    assert len({decision.prompt for decision in decisions}) == 2
    assert {decision.api for decision in decisions} == {"completions"}
