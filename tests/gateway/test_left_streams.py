"""Replies that end early, by client or upstream: what was read is charged and audited."""

import asyncio
import json

import pytest

from support.small_gateway import BODIES, CHAT, MESSAGES, Model, ask, gateway, listening
from support.small_site import events, http, read_request, words
from support.timing import until
from waltzrl.budget import ledgers_in, read_ledger
from waltzrl.errors import RequestError
from waltzrl.gateway.draft_stream import DraftStream
from waltzrl.gateway.exchange import UpstreamDelta
from waltzrl.gateway.keys import add_key
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.records import Message, Prompt, ToolCall, Usage
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.writer import LocalLog

STORY = "The garden was green. " * 40
"""880 characters: 220 tokens by the estimate of four characters each."""
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 400}}
STARTED = json.dumps({"choices": [{"delta": {"tool_calls": [CALL]}}]})
COUNTED = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 300}})


class Breaking(Model):
    """Sends the beginning of a stream, and then hangs up, or waits until its client has gone."""

    def __init__(self, *data, hangs_up=True):
        super().__init__()
        self._data, self._hangs_up = data or (words(STORY),), hangs_up
        self.sent, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        head = await read_request(reader)
        if b" /base/models " in head:
            writer.write(http({"data": [{"id": "echo"}]}))
            return
        writer.write(events(*self._data, whole=False))
        await writer.drain()
        self.sent.set()
        if not self._hangs_up:
            await read_request(reader)
            self.left.set()


def settings(folder, mode="audit"):
    """Keep a ledger and an audit log, and let a key of 500 tokens a day ask."""
    key = add_key(folder / "keys.toml", {"name": "ada", "tokens_per_day": 500})
    return key, (
        f"stream={mode}",
        f"budget.folder={folder / 'costs'}",
        f"audit.folder={folder / 'audit'}",
        f"audit.key={folder / 'key'}",
        f"keys={folder / 'keys.toml'}",
    )


def charged(folder):
    """Return the tokens of each item that was charged, and whether they were estimated."""
    charges = read_ledger(*ledgers_in(folder / "costs")).charges
    return [
        (item.input_tokens, item.output_tokens, item.estimated)
        for charge in charges
        for item in charge.items
    ]


def decided(folder):
    return [entry.decision for entry in read_entries(folder / "audit") if entry.decision]


def digests(folder, *texts):
    """Digest texts as the audit log of a gateway does."""
    log_settings = LogSettings(on_failure="refuse", commit_seconds=0.005)
    with LocalLog.open(folder / "other", key=folder / "key", settings=log_settings) as log:
        return [log.digest(text.encode()) for text in texts]


async def leave(host, port, key, path, until_seen):
    """Send a request, and close the connection once something has been read."""
    body = json.dumps(BODIES[path] | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
        % (path.encode(), key.encode(), len(body), body)
    )
    seen = b""
    while until_seen not in seen:
        part = await reader.read(65536)
        assert part, seen
        seen += part
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("mode", [mode for mode in StreamMode if mode is not StreamMode.BUFFER])
def test_a_client_that_leaves_a_stream_is_charged_what_was_read_and_its_digest_is_logged(
    tmp_path, path, mode
):
    async def work():
        key, recipe = settings(tmp_path, mode)
        model = Breaking(hangs_up=False)
        async with gateway(*recipe, model=model) as app, listening(app) as (host, port):
            await leave(host, port, key, path, b"The garden was green.")
            await until(model.left.is_set)
            await until(lambda: app.access.admission.active == 0)
            return (await ask(app, "/metrics", method="GET")).text

    metrics = asyncio.run(work())
    assert charged(tmp_path) == [(2, 220, True)]  # "hello" is two quarters
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason) == ("error", "cancelled")
    assert (decision.prompt_tokens, decision.reply_tokens) == (2, 220)
    assert [decision.draft] == digests(tmp_path, STORY)
    assert decision.sent is not None
    assert 'waltzrl_key_tokens_total{direction="output",key="ada"} 220.0' in metrics


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_a_buffered_stream_is_charged_what_was_read(tmp_path, path):
    async def work():
        key, recipe = settings(tmp_path, "buffer")
        model, gone = Breaking(hangs_up=False), asyncio.Event()
        async with gateway(*recipe, model=model) as app:
            body = BODIES[path] | {"stream": True}
            bearer = {"authorization": f"Bearer {key}"}
            asking = asyncio.create_task(ask(app, path, body, gone=gone, **bearer))
            await asyncio.wait_for(model.sent.wait(), 60)
            gone.set()
            response = await asyncio.wait_for(asking, 60)
            await asyncio.wait_for(model.left.wait(), 60)
            return response

    assert asyncio.run(work()) is None  # nothing of it had been sent
    assert charged(tmp_path) == [(2, 220, True)]
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason, decision.mode) == ("error", "cancelled", "buffer")
    assert [decision.draft] == digests(tmp_path, STORY)
    assert decision.sent is None


def test_what_the_client_had_been_sent_has_a_digest_of_its_own(tmp_path):
    async def work():
        key, recipe = settings(tmp_path, "window")
        model = Breaking(words(STORY), hangs_up=False)
        async with gateway(*recipe, model=model) as app, listening(app) as (host, port):
            await leave(host, port, key, CHAT, b"The garden was green.")
            await until(lambda: app.access.admission.active == 0)

    asyncio.run(work())
    (decision,) = decided(tmp_path)
    beginnings = [STORY[:length] for length in range(22, 880)]  # the window still held the end
    assert decision.sent in digests(tmp_path, *beginnings)


def test_streams_that_are_left_use_up_the_budget_of_a_day(tmp_path):
    async def work():
        key, recipe = settings(tmp_path)
        model = Breaking(hangs_up=False)
        async with gateway(*recipe, model=model) as app, listening(app) as (host, port):
            for _ in range(3):  # 222 tokens each, and 500 a day
                await leave(host, port, key, CHAT, b"The garden was green.")
                await until(lambda: app.access.admission.active == 0)
            bearer = {"authorization": f"Bearer {key}"}
            return await ask(app, CHAT, BODIES[CHAT], **bearer)

    response = asyncio.run(work())
    assert response.status == 429
    assert "500 tokens a day" in response.error


@pytest.mark.parametrize("mode", StreamMode)
@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_the_upstream_breaks_off_is_charged_what_was_read(tmp_path, path, mode):
    async def work():
        key, recipe = settings(tmp_path, mode)
        async with gateway(*recipe, model=Breaking()) as app:
            body = BODIES[path] | {"stream": True}
            return await ask(app, path, body, authorization=f"Bearer {key}")

    asyncio.run(work())
    assert charged(tmp_path) == [(2, 220, True)]
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason) == ("error", "upstream")
    assert [decision.draft] == digests(tmp_path, STORY)
    assert (decision.sent is None) == (mode is StreamMode.BUFFER)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_reviewed_or_not_a_stream_that_breaks_off_is_charged(tmp_path, enabled):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, f"enabled={enabled}", model=Breaking()) as app:
            body = BODIES[MESSAGES] | {"stream": True}
            await ask(app, MESSAGES, body, authorization=f"Bearer {key}")

    asyncio.run(work())
    assert charged(tmp_path) == [(2, 220, True)]


def test_the_arguments_of_a_call_that_was_begun_are_charged(tmp_path):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, model=Breaking(STARTED)) as app:
            body = BODIES[CHAT] | {"stream": True}
            await ask(app, CHAT, body, authorization=f"Bearer {key}")

    asyncio.run(work())
    # `{"call": "f", "arguments": "` and `"}` are 30 characters beside the 400
    assert charged(tmp_path) == [(2, 108, True)]


def test_the_counts_of_the_server_are_charged_where_they_had_come(tmp_path):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, model=Breaking(words(STORY), COUNTED)) as app:
            body = BODIES[CHAT] | {"stream": True}
            await ask(app, CHAT, body, authorization=f"Bearer {key}")

    asyncio.run(work())
    assert charged(tmp_path) == [(7, 300, False)]


class RevisingFails(Model):
    """Drafts something unsafe, counts it, and fails to revise it."""

    def answer(self, body, path):
        if "A reviewer read your last reply" in json.dumps(body):
            return http({"error": {"message": "no"}}, 500)
        message = {"role": "assistant", "content": self.draft({**body, "model": "unsafe"})}
        usage = {"prompt_tokens": 11, "completion_tokens": 40}
        return http({"choices": [{"message": message}], "usage": usage})


def test_a_draft_whose_revision_failed_is_charged_and_logged(tmp_path):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, model=RevisingFails()) as app:
            return await ask(app, CHAT, BODIES[CHAT], authorization=f"Bearer {key}")

    assert asyncio.run(work()).status == 502
    assert charged(tmp_path) == [(11, 40, False)]
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reply_tokens, decision.sent) == ("error", 40, None)
    assert decision.draft is not None
    assert [turn.unsafe for turn in decision.rounds] == [True]


async def leave_whole(model, recipe, key, path):
    """Send a request without `stream`, and go away once the model has sent what it sends."""
    gone = asyncio.Event()
    async with gateway(*recipe, model=model) as app:
        bearer = {"authorization": f"Bearer {key}"}
        asking = asyncio.create_task(ask(app, path, BODIES[path], gone=gone, **bearer))
        await asyncio.wait_for(model.sent.wait(), 60)
        gone.set()
        assert await asyncio.wait_for(asking, 60) is None
        await asyncio.wait_for(model.left.wait(), 60)


class Halting(Model):
    """Sends the beginning of a whole reply, and waits until its client has gone, or hangs up."""

    def __init__(self, beginning, *, hangs_up=False):
        super().__init__()
        self._beginning, self._hangs_up = beginning.encode(), hangs_up
        self.sent, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        if b" /base/models " in await read_request(reader):
            writer.write(http({"data": [{"id": "echo"}]}))
            return
        if self._beginning:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + self._beginning)
            await writer.drain()
        self.sent.set()
        if not self._hangs_up:
            await read_request(reader)
            self.left.set()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_whose_reply_a_stopping_gateway_does_not_finish_is_told(tmp_path, path, stream):
    async def work():
        key, recipe = settings(tmp_path, "window")
        model = Breaking(words(STORY * 4), hangs_up=False)
        async with gateway(*recipe, model=model) as app:
            body = BODIES[path] | {"stream": stream}
            request = asyncio.create_task(ask(app, path, body, authorization=f"Bearer {key}"))
            await model.sent.wait()
            await asyncio.sleep(0.1)
            assert await app.access.admission.drain(0) == 1
            request.cancel()
            return await request

    response = asyncio.run(work())
    assert "the gateway is shutting down" in response.text
    assert response.whole
    assert ("The garden" in response.text, response.status) == ((stream, 200 if stream else 503))
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason) == ("error", "cancelled")


HALF = json.dumps({"choices": [{"message": {"role": "assistant", "content": STORY}}]})[:-4]


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_while_a_whole_reply_arrives_is_charged_what_was_read(tmp_path, path):
    key, recipe = settings(tmp_path)
    asyncio.run(leave_whole(Halting(HALF), recipe, key, path))
    assert charged(tmp_path) == [(2, 220, True)]
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason) == ("error", "cancelled")
    assert (decision.prompt_tokens, decision.reply_tokens) == (2, 220)
    assert [decision.draft] == digests(tmp_path, STORY)
    assert decision.sent is None


def test_of_a_whole_reply_that_has_not_begun_nothing_is_charged_and_the_leaving_is_logged(tmp_path):
    key, recipe = settings(tmp_path)
    asyncio.run(leave_whole(Halting(""), recipe, key, CHAT))
    assert charged(tmp_path) == []
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason) == ("error", "cancelled")
    assert (decision.draft, decision.prompt_tokens, decision.reply_tokens) == (None, None, None)


@pytest.mark.parametrize("beginning", ['{"error": {"message": "The garden', " ", '{"choices": ['])
def test_what_came_of_no_reply_is_not_charged(tmp_path, beginning):
    key, recipe = settings(tmp_path)
    asyncio.run(leave_whole(Halting(beginning), recipe, key, CHAT))
    assert charged(tmp_path) == []


def test_a_whole_reply_that_the_upstream_breaks_off_is_charged_what_was_read(tmp_path):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, model=Halting(HALF, hangs_up=True)) as app:
            return await ask(app, CHAT, BODIES[CHAT], authorization=f"Bearer {key}")

    assert asyncio.run(work()).status == 502
    assert charged(tmp_path) == [(2, 220, True)]


class RevisingHangs(RevisingFails):
    """Drafts something unsafe, counts it, and takes its time with the revision."""

    def __init__(self):
        super().__init__()
        self.sent, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        while raw := await read_request(reader):
            if b"A reviewer read your last reply" in raw:
                self.sent.set()
                await read_request(reader)
                self.left.set()
                return
            body = raw.partition(b"\r\n\r\n")[2]
            path = "/chat/completions" if body else "/models"
            writer.write(self.answer(json.loads(body or b"{}"), path))


def test_a_client_that_leaves_while_a_whole_draft_is_revised_is_charged_the_draft(tmp_path):
    key, recipe = settings(tmp_path)
    asyncio.run(leave_whole(RevisingHangs(), recipe, key, CHAT))
    assert charged(tmp_path) == [(11, 40, False)]
    (decision,) = decided(tmp_path)
    assert (decision.decision, decision.reason, decision.reply_tokens) == ("error", "cancelled", 40)
    assert [turn.unsafe for turn in decision.rounds] == [True]


class Refusing(Model):
    def answer(self, body, path):
        return http({"error": {"message": "slow down"}}, 429)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_charged_where_nothing_was_read(tmp_path, stream):
    async def work():
        key, recipe = settings(tmp_path)
        async with gateway(*recipe, model=Refusing()) as app:
            body = BODIES[CHAT] | {"stream": stream}
            return await ask(app, CHAT, body, authorization=f"Bearer {key}")

    assert asyncio.run(work()).status == 429
    (decision,) = decided(tmp_path)
    assert (decision.draft, decision.prompt_tokens, decision.sent) == (None, None, None)


def unfinished(*deltas, **options):
    """Return what was read of a draft that broke off after these deltas."""
    window = StreamMode.BUFFER.behaviour.open_window(None, None)
    draft = DraftStream(window, lambda _piece: None, **options)

    async def stream():
        for delta in deltas:
            yield delta
        raise RequestError(502, "upstream", "gone")

    async def read():
        with pytest.raises(RequestError):
            await draft.read(stream())

    asyncio.run(read())
    prompt = Prompt(id="1", messages=(Message(role="user", content="12345678"),))
    return draft.unfinished(prompt, "m")


def test_of_a_draft_without_a_word_nothing_is_known():
    assert unfinished() is None


def test_reasoning_that_is_dropped_is_counted_and_is_no_part_of_the_draft():
    reply = unfinished(UpstreamDelta(reasoning="x" * 40, text="1234"), shows_reasoning=False)
    assert reply.reviewed_text == "1234"
    assert reply.usage == Usage(input_tokens=2, output_tokens=11, model="m", estimated=True)


def test_counts_of_the_beginning_do_not_hide_what_came_after_them():
    counts = Usage(input_tokens=9, output_tokens=1, model="served")
    reply = unfinished(UpstreamDelta(usage=counts), UpstreamDelta(text="x" * 40))
    assert reply.usage == Usage(input_tokens=9, output_tokens=10, model="served", estimated=True)
    late = Usage(input_tokens=9, output_tokens=30, model="served")
    reply = unfinished(UpstreamDelta(text="x" * 40), UpstreamDelta(usage=late))
    assert reply.usage == late


def test_calls_that_were_begun_are_part_of_the_draft():
    call = ToolCall(id="c", name="f", arguments="{")
    reply = unfinished(UpstreamDelta(begun=lambda: (call,)), UpstreamDelta(text="Hm."))
    assert (reply.text, reply.calls) == ("Hm.", (call,))
