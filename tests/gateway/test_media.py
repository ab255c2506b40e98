"""Images, audio, video and files: what the audit log says, and what a key may send."""

import asyncio
import json

import pytest

from support.small_gateway import CHAT, MESSAGES, RESPONSES, Model, ask, gateway, with_gateway
from support.small_site import http, site
from waltzrl.errors import RecipeError, RequestError
from waltzrl.gateway import wire
from waltzrl.gateway.keys import Caller, add_key
from waltzrl.gateway.settings import load_gateway
from waltzrl.store.audit.reading import read_entries

PIXELS = "data:image/png;base64,AAAA"
WORDS = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": PIXELS}}
PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}
NOTE = {"type": "file", "file": {"file_data": "data:text/plain,hello"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILM = {"type": "video_url", "video_url": {"url": "https://example.org/film.mp4"}}
KINDS = {"image": IMAGE, "file": PDF, "audio": SOUND, "video": FILM, "other": {"type": "smell"}}
each_kind = pytest.mark.parametrize(("kind", "part"), KINDS.items(), ids=KINDS)


def said(*parts):
    return {"model": "echo", "messages": [{"role": "user", "content": [WORDS, *parts]}]}


def read(*parts, **caller):
    raw = json.dumps(said(*parts)).encode()
    return wire.CHAT.read(raw, "42", Caller(name="someone", **caller)).prompt


@each_kind
def test_by_default_they_pass_and_the_prompt_says_that_nobody_sees_them(kind, part):
    assert read(part).unseen == (kind,)
    assert read().unseen == read(NOTE).unseen == ()


def test_every_kind_is_named_once():
    assert read(IMAGE, SOUND, IMAGE, PDF).unseen == ("image", "audio", "file")


@each_kind
def test_a_key_that_may_not_send_them_is_told_which_part_it_is(kind, part):
    with pytest.raises(RequestError) as error:
        read(part, media="refuse")
    assert (error.value.status, error.value.param) == (400, kind)
    assert str(error.value).startswith(f"{kind}: no reviewer sees")
    assert read(NOTE, media="refuse").unseen == ()


@each_kind
def test_where_they_are_reviewed_only_images_may_be_sent(kind, part):
    if kind == "image":
        prompt = read(part, media="review")
        assert (prompt.images, prompt.unseen) == ((PIXELS,), ())
    else:
        with pytest.raises(RequestError, match=f"^{kind}: "):
            read(IMAGE, part, media="review")


@pytest.mark.promise(
    "What reviewers see",
    "An image that is reviewed is the image that the model gets: no address may stand for it",
)
def test_where_images_are_reviewed_no_address_may_stand_for_one():
    # The reviewer and the model would load it one after the other, and may get two images.
    for url in ("https://example.org/a.png", "http://example.org/a.png", "file:///a.png"):
        image = {"type": "image_url", "image_url": {"url": url}}
        assert read(image).unseen == ("image",)
        with pytest.raises(RequestError, match=r"^image: .* send the image itself") as error:
            read(IMAGE, image, media="review")
        assert (error.value.status, error.value.param) == (400, "image")


BODIES = {
    CHAT: said(IMAGE),
    RESPONSES: {
        "model": "echo",
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXELS}]}],
    },
    MESSAGES: {
        "model": "echo",
        "max_tokens": 9,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                    }
                ],
            }
        ],
    },
}
each_api = pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=["c", "r", "m"])


@pytest.mark.promise(
    "What reviewers see", "The audit line says which kinds of parts no reviewer saw"
)
@each_api
def test_the_audit_line_says_that_no_reviewer_saw_the_image(tmp_path, path, body):
    async def work(app):
        text = {key: value for key, value in body.items() if key not in ("messages", "input")}
        hello = {"input": "hi"} if path == RESPONSES else said()
        await ask(app, path, text | {k: v for k, v in hello.items() if k != "model"})
        return await ask(app, path, body)

    assert with_gateway(work, f"audit.folder={tmp_path / 'audit'}").status == 200
    entries = [entry.decision for entry in read_entries(tmp_path / "audit") if entry.decision]
    assert [decision.unseen for decision in entries] == [(), ("image",)]


@pytest.mark.promise(
    "What reviewers see",
    "A key passes images unseen, refuses them, or has them reviewed by a model with vision; none "
    "is stored",
)
@each_api
def test_a_key_of_the_file_decides_for_its_client(tmp_path, path, body):
    keys = tmp_path / "keys.toml"
    strict = add_key(keys, {"name": "strict", "media": "refuse"})
    lax = add_key(keys, {"name": "lax"})

    async def work(app):
        return [
            (await ask(app, path, body, authorization=f"Bearer {key}")).status
            for key in (strict, lax)
        ]

    assert with_gateway(work, f"keys={keys}") == [400, 200]


class Reviewer:
    """A reviewing model that approves; it keeps what it was shown."""

    def __init__(self):
        self.shown = []

    async def __call__(self, reader, writer):
        model = Model()
        model.answer = self.answer
        await model(reader, writer)

    def answer(self, body, path):
        self.shown.append(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": '{"unsafe": false, "overrefuse": false}'}
        return http({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def reviewed(folder, path, body, *overrides):
    """Ask a gateway whose reviewer is a model; return the answer and what the model was shown."""

    async def work():
        reviewer = Reviewer()
        stage_2 = ("stage=2", "feedback.model=eye", f"audit.folder={folder}", "audit.contents=true")
        async with site(reviewer) as server:
            where = f"feedback.server={server.url}"
            async with gateway(*stage_2, where, *overrides) as app:
                return await ask(app, path, body), reviewer.shown

    return asyncio.run(work())


@pytest.mark.promise(
    "What reviewers see",
    "A key passes images unseen, refuses them, or has them reviewed by a model with vision; none "
    "is stored",
)
@each_api
def test_a_reviewer_with_vision_sees_the_image_and_no_store_keeps_it(tmp_path, path, body):
    eyes = ("feedback.vision=true", "media=review")
    answer, shown = reviewed(tmp_path / "audit", path, body, *eyes)
    assert answer.status == 200
    parts = shown[-1]
    assert [part["type"] for part in parts] == ["text", "image_url"]
    assert parts[1] == IMAGE
    (decision,) = [e.decision for e in read_entries(tmp_path / "audit") if e.decision]
    assert decision.unseen == ()
    kept = [file.read_bytes() for file in (tmp_path / "audit").rglob("*") if file.is_file()]
    assert b"[image]" in b"".join(kept)
    assert not any(b"AAAA" in content for content in kept)


def test_a_reviewer_without_vision_sees_none_and_the_audit_line_says_so(tmp_path):
    answer, shown = reviewed(tmp_path / "audit", CHAT, said(IMAGE))
    assert answer.status == 200
    assert "[image]" in shown[-1]
    (decision,) = [e.decision for e in read_entries(tmp_path / "audit") if e.decision]
    assert decision.unseen == ("image",)


def test_a_key_whose_images_are_reviewed_gets_no_answer_from_a_reviewer_that_sees_none(tmp_path):
    key = add_key(tmp_path / "keys.toml", {"name": "ada", "media": "review"})

    async def work(app):
        return await ask(app, CHAT, said(IMAGE), authorization=f"Bearer {key}")

    answer = with_gateway(work, f"keys={tmp_path / 'keys.toml'}")
    assert answer.status == 400
    assert answer.error.startswith("image: ")


UPSTREAM = {"upstream": {"url": "http://127.0.0.1:9/v1"}}
STAGE_2 = ("stage=2", "feedback.model=eye")
SERVER = "feedback.server=http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("media=review",), "media = review needs a reviewer that sees images"),
        ((*STAGE_2, SERVER, "media=review"), "media = review needs a reviewer that sees images"),
        ((*STAGE_2, "feedback.vision=true"), "vision must be on a server"),
        (("keys=keys.toml", "media=refuse"), "apply to a gateway without keys"),
        (("keys=keys.toml", 'allow_fields=["a"]'), "apply to a gateway without keys"),
        (("keys=keys.toml", "system_turns=operator"), "apply to a gateway without keys"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_gateway(None, UPSTREAM, overrides, {})
