"""Other paths of the upstream: passed on only if the operator says so, and never a reply."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_gateway import BODIES, CHAT, HELLO, UNSAFE, Model, ask, with_gateway
from support.small_site import events, http, words
from waltzrl.errors import RequestError
from waltzrl.gateway.keys import add_key
from waltzrl.gateway.pass_through import make_passed_on_request

ALLOWED = "pass_through=true"
REPLY = {"role": "assistant", "content": UNSAFE}


class Server(Model):
    """A server that answers every path, and replies in every shape."""

    def __init__(self):
        super().__init__()
        self.requests = []

    def answer(self, body, path):
        if path == "/models":
            return super().answer(body, path)
        self.requests.append((self.heads[-1].split()[0], path, body))
        if path == "/hang-up":
            raise ConnectionError
        return ANSWERS.get(path.partition("?")[0], http({"object": "list", "data": [path]}))


ANSWERS = {
    "/rerank": http({"results": [{"index": 0, "relevance_score": 0.5}]}),
    "/audio/speech": http(b"\xff\xfbsound", kind="audio/mpeg"),
    "/files": http({"id": "file-1"}, 201),
    "/away": http({"error": {"message": "no such job", "code": "job"}}, 404),
    "/broken": http({"error": {"message": UNSAFE}}, 500),
    "/alias": http({"object": "chat.completion", "choices": [{"message": REPLY}]}),
    "/old": http({"object": "text_completion", "choices": [{"text": UNSAFE}]}),
    "/new": http({"object": "response", "output": []}),
    "/claude": http({"type": "message", "content": [{"type": "text", "text": UNSAFE}]}),
    "/claude-2": http({"type": "completion", "completion": UNSAFE}),
    "/edits": http({"object": "edit", "choices": [{"text": UNSAFE}]}),
    "/unnamed": http({"choices": [{"message": REPLY}]}),
    "/odd": http({"object": "chat.completion", "type": 5}),
    "/stream": events(words(UNSAFE), "[DONE]"),
}


def send(path, body=None, *overrides, method="POST", server=None, **headers):
    overrides = overrides or (ALLOWED,)
    return with_gateway(
        lambda app: ask(app, path, body or {"model": "echo"}, method=method, **headers),
        *overrides,
        model=server or Server(),
    )


def test_by_default_no_other_path_reaches_the_upstream():
    server = Server()
    response = send("/v1/rerank", {}, "stage=1", server=server)
    assert (response.status, "does not exist" in response.error) == (404, True)
    assert server.requests == []


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/files", "with pass_through = true in the gateway's recipe the upstream answers it"),
        ("/v1/batches", "pass_through = true does not open it either, because its replies would"),
        ("/v1/batches/batch_1", "send each request to /v1/chat/completions"),
        ("/v1/realtime", "without a review"),
    ],
)
def test_a_path_that_is_not_served_names_the_setting_and_what_is_then_not_reviewed(
    path, said, method
):
    response = send(path, {}, "stage=1", method=method)
    assert response.status == 404
    assert response.error.startswith(f"{path} does not exist; ")
    assert said in response.error


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_other_paths_are_passed_on_by_any_method_with_body_and_type(method):
    server = Server()
    response = send("/v1/fine_tuning/jobs/ft-1", {"a": 1}, method=method, server=server)
    assert (response.status, response.json["data"]) == (200, ["/fine_tuning/jobs/ft-1"])
    assert server.requests == [(method, "/fine_tuning/jobs/ft-1", {"a": 1})]


def test_bytes_status_and_type_come_back_as_they_are():
    speech = with_gateway(
        lambda app: ask(app, "/v1/files", b'{"raw": 1}', content_type="application/x-own"),
        ALLOWED,
        model=(server := Server()),
    )
    assert (speech.status, speech.json) == (201, {"id": "file-1"})
    assert "Content-Type: application/x-own" in server.heads[-1]
    assert send("/v1/rerank").json["results"][0]["relevance_score"] == 0.5


def test_errors_are_those_of_the_upstream_and_of_its_failures_only_the_status_is_told():
    missing = send("/v1/away")
    assert (missing.status, missing.json["error"]["code"]) == (404, "job")
    broken = send("/v1/broken")
    assert (broken.status, broken.error) == (502, "the upstream answered 500")


@pytest.mark.parametrize(
    "path",
    ["/alias", "/old", "/new", "/claude", "/claude-2", "/edits", "/unnamed", "/odd", "/stream"],
)
def test_what_turns_out_to_be_a_reply_is_not_passed_on(path):
    response = send(f"/v1{path}")
    assert response.status == 403
    assert UNSAFE not in response.text


DISGUISED = (
    "/v1/chat/completions/",
    "/v1//chat/completions",
    "/v1/Chat/Completions",
    "/v1/CHAT/COMPLETIONS",
    "/v1/chat/completions/chatcmpl-1",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/chat%2Fcompletions",
    "/v1/%63hat/completions",
    "/v1/chat\\completions",
    "/v1/chat/completions;x=1",
    "/v1/chat/completions\u200b",
    "/v1/\uff43hat/completions",
    "/v1/chat/completions#x",
    "/v1/chat/completions?x",
    "/v1/chat completions",
    "/v1/openai/chat/completions",
    "/v1/engines/m/completions",
    "/v1/completions/",
    "/v1/complete",
    "/v1/responses/resp_1",
    "/v1/messages/batches",
    "/v1/batches",
    "/v1/threads/runs",
    "/v1/models:generateContent",
    "/v1/generate",
    "/v1/realtime",
    "/v1/",
)


@pytest.mark.promise(
    "Endpoints and upstreams",
    "No other path reaches the upstream unless `pass_through` says so, and then none, in any "
    "spelling, that answers with replies",
)
@pytest.mark.parametrize("path", DISGUISED)
def test_no_spelling_of_a_path_with_replies_is_passed_on(path):
    server = Server()
    response = send(path, {"model": "unsafe", "messages": HELLO}, server=server)
    assert (response.status, response.json["error"]["code"]) == (403, "permission_denied"), path
    assert server.requests == []


@pytest.mark.parametrize("path", ["/V1/chat/completions", "/v1", "//v1/chat/completions", "/other"])
def test_paths_outside_of_v1_are_not_there(path):
    assert send(path).status == 404


@pytest.mark.parametrize("path", BODIES)
def test_the_gateways_own_routes_stay_its_own(path):
    server = Server()
    assert send(path, method="DELETE", server=server).status == 405
    assert server.requests == []


def scope_of(path, **more):
    return {"path": path, "method": "POST", "headers": [], **more}


@given(st.text(st.sampled_from("/.%;\\? cChHaAtToOmMpPlLeEsS-_:\u200b\uff0f"), max_size=30))
def test_whatever_is_passed_on_is_plain_and_never_the_path_of_chats(spelling):
    path = f"/v1/{spelling}"
    try:
        request = make_passed_on_request(scope_of(path), b"", None)
    except RequestError as error:
        assert error.status == 403  # noqa: PT017 - both outcomes are right
        return
    assert request.path == unquote(request.path) == path.removeprefix("/v1")
    assert not {"", ".", ".."} & set(request.path.split("/")[1:])
    assert CHAT.removeprefix("/v1") not in request.path.lower()


@pytest.mark.parametrize(
    ("query", "path"),
    [(b"", "/files"), (b"after=x&limit=2", "/files?after=x&limit=2"), (b"a=%2F", "/files?a=%2F")],
)
def test_the_query_is_passed_on(query, path):
    assert make_passed_on_request(scope_of("/v1/files", query_string=query), b"", None).path == path


@pytest.mark.parametrize("query", [b"a b", b"a\r\nX: y", b"a\xff", b"a#b"])
def test_a_query_that_could_change_the_request_is_refused(query):
    with pytest.raises(RequestError):
        make_passed_on_request(scope_of("/v1/files", query_string=query), b"", None)


def test_a_method_that_is_unusual_is_refused():
    with pytest.raises(RequestError) as raised:
        make_passed_on_request(scope_of("/v1/files", method="TRACE"), b"", None)
    assert raised.value.status == 405


@pytest.mark.parametrize(
    ("body", "model"), [(b'{"model": "m"}', "m"), (b"{}", ""), (b"rubbish", ""), (b"\xff", "")]
)
def test_the_model_chooses_among_upstreams_and_only_a_get_is_repeated(body, model):
    posted = make_passed_on_request(scope_of("/v1/files"), body, "theirs")
    assert (posted.model, posted.repeatable, posted.bearer) == (model, False, "theirs")
    assert make_passed_on_request(scope_of("/v1/files", method="GET"), body, None).repeatable


def test_what_must_not_be_repeated_reaches_the_server_once_also_if_it_hangs_up():
    server = Server()

    async def work(app):
        await ask(app, "/v1/rerank", {})  # leaves a connection
        return await ask(app, "/v1/hang-up", {})

    assert with_gateway(work, ALLOWED, model=server).status == 502
    assert [path for _, path, _ in server.requests] == ["/rerank", "/hang-up"]


def test_a_key_limits_and_metrics_apply_to_what_is_passed_on(tmp_path):
    path = tmp_path / "keys.toml"
    key = add_key(path, {"name": "ada", "requests_per_minute": 6, "burst": 1})

    async def work(app):
        headers = {"authorization": f"Bearer {key}"}
        answers = [
            await ask(app, "/v1/rerank", {}),
            await ask(app, "/v1/rerank", {}, **headers),
            await ask(app, "/v1/rerank", {}, **headers),
        ]
        return answers, (await ask(app, "/metrics", method="GET")).text

    server = Server()
    answers, metrics = with_gateway(work, ALLOWED, f"keys={path}", model=server)
    assert [answer.status for answer in answers] == [401, 200, 429]
    assert 'waltzrl_forwarded_total{api="pass_through"} 1.0' in metrics
    assert 'waltzrl_errors_total{api="pass_through",kind="rate_limit"} 1.0' in metrics
    assert not any(key in head for head in server.heads)
    assert (
        send("/v1/rerank", None, ALLOWED, "limits.max_request_bytes=5", content_length=6).status
        == 413
    )
