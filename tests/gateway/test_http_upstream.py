"""The server behind the gateway: what its answers, failures and silences become."""

import asyncio
import json
import sys
from contextlib import aclosing

import msgspec
import pytest

from support.small_site import HANG_UP, answering, events, http, read_request, site, words
from waltzrl.agents.breaker import Breaker
from waltzrl.errors import InputError, RequestError
from waltzrl.gateway.draft_stream import DraftStream
from waltzrl.gateway.exchange import ModelCard
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.upstream import LINGER_SECONDS, OPEN_SECONDS, HttpUpstream

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
NOWHERE = "http://127.0.0.1:9/v1"
LIMITS = Limits(max_reply_bytes=10_000)


def upstream_of(url, api_key=None, timeout_seconds=5.0):
    return HttpUpstream(url, LIMITS, api_key=api_key, timeout_seconds=timeout_seconds)


def with_upstream(work, *answers, **more):
    """Let `work(upstream)` ask a server that gives these answers."""

    async def run():
        async with site(answering(*answers)) as server:
            upstream = upstream_of(server.url, **more)
            try:
                return await work(upstream)
            finally:
                upstream.close()

    return asyncio.run(run())


async def complete(upstream):
    return await upstream.complete(ASKED, None)


async def models(upstream):
    return await upstream.models(None)


async def deltas_of(upstream):
    async with aclosing(upstream.stream(ASKED, None)) as deltas:
        return [delta async for delta in deltas]


def problem(work, *answers, **more):
    """Return the error that `work` ends with."""
    with pytest.raises(RequestError) as raised:
        with_upstream(work, *answers, **more)
    return raised.value


@pytest.mark.parametrize(
    ("api_key", "bearer", "sent"),
    [
        (None, None, None),
        (None, "theirs", b"Bearer theirs"),
        ("ours", "theirs", b"Bearer ours"),
        ("ours\n", None, b"Bearer ours"),
    ],
)
def test_the_request_is_sent_with_the_gateways_key_or_else_the_clients(api_key, bearer, sent):
    seen = []

    async def talk(reader, writer):
        seen.append(await read_request(reader))
        writer.write(http(ANSWER))

    async def work():
        async with site(talk) as server:
            await upstream_of(server.url, api_key).complete(ASKED, bearer)

    asyncio.run(work())
    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /base/chat/completions HTTP/1.1"
    assert b"Content-Type: application/json" in lines
    keys = [line.partition(b": ")[2] for line in lines if line.startswith(b"Authorization")]
    assert keys == ([sent] if sent else [])
    assert json.loads(body) == ASKED


@pytest.mark.parametrize("key", ["a\u20acb", "a\r\nX: b", "a\tb"])
def test_a_key_that_no_header_can_carry_is_told_at_the_start(key):
    with pytest.raises(InputError, match="characters that an HTTP header cannot carry"):
        HttpUpstream("http://a/v1", Limits(), api_key=key, timeout_seconds=1)


def test_a_reply_is_read_and_timed():
    answer = with_upstream(complete, [http(ANSWER)])
    assert (answer.reply.text, json.loads(answer.raw)) == ("Hello.", ANSWER)
    assert 0 < answer.reply.milliseconds < 5_000


def test_models_are_named_or_it_is_the_upstreams_fault():
    listed = {"data": [{"id": "a", "created": 17, "owned_by": "x"}, {"id": "b", "created": 0.5}]}
    assert with_upstream(models, [http(listed)]) == [
        ModelCard(id="a", created=17, owned_by="x"),
        ModelCard(id="b", created=0, owned_by="upstream"),
    ]
    for rubbish in (b"<html>", {}, {"data": [{}]}, {"error": "busy"}, b"null"):
        failed = problem(models, [http(rubbish)])
        assert (failed.status, "list of models" in str(failed)) == (502, True)


def test_models_say_how_many_tokens_they_take():
    vllm = {"id": "a", "max_model_len": 4096, "root": "/models/a"}
    other = {"id": "b", "context_length": 8192, "context_window": "8k", "max_output_tokens": None}
    listed = with_upstream(models, [http({"data": [vllm, other]})])
    assert [msgspec.to_builtins(card) for card in listed] == [
        {**CARD, "id": "a", "max_model_len": 4096},
        {**CARD, "id": "b", "context_length": 8192},
    ]


CARD = {"created": 0, "object": "model", "owned_by": "upstream"}


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ({"data": None}, []),
        ([{"id": "a", "created": None, "owned_by": None}], ["a"]),
        ({"data": [{"id": "a", "created": 17.0}]}, ["a"]),
        ({"data": [{"id": "a\ud83d"}]}, ["a\ufffd"]),
        ({"data": [{"id": "a"}, {"name": "b"}, {"id": 7}]}, ["a"]),
    ],
)
def test_models_are_listed_in_whichever_form(listed, names):
    assert [card.id for card in with_upstream(models, [http(listed)])] == names


@pytest.mark.parametrize("work", [complete, deltas_of, models])
@pytest.mark.parametrize(
    ("answered", "status", "kind"),
    [
        (400, 400, "invalid_request"),
        (401, 401, "authentication"),
        (403, 403, "permission"),
        (404, 404, "not_found"),
        (408, 408, "upstream_timeout"),
        (409, 409, "invalid_request"),
        (413, 413, "too_large"),
        (422, 422, "invalid_request"),
        (429, 429, "rate_limit"),
        (302, 502, "upstream"),
        (500, 502, "upstream"),
        (503, 503, "upstream"),
        (504, 502, "upstream"),
    ],
)
def test_what_is_the_clients_business_is_passed_on(work, answered, status, kind):
    failed = problem(work, [http({"error": {"message": "because"}}, answered)])
    assert (failed.status, failed.kind) == (status, kind)
    quoted = ": because" if status < 500 else ""
    assert str(failed) == f"the upstream answered {answered}{quoted}"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("-1", None),
        ("\xb2", None),
        ("9" * 400, None),
    ],
)
def test_a_busy_upstream_says_when_to_come_back_or_not_at_all(header, seconds):
    failed = problem(complete, [http({"error": "busy"}, 429, Retry_After=header)])
    assert failed.retry_after_seconds == seconds
    failed = problem(complete, [http({"error": "busy"}, 429, Retry_After_Ms="2500")])
    assert failed.retry_after_seconds == 2.5


def test_a_stream_is_asked_for_with_its_counts_and_heard():
    seen = []

    async def talk(reader, writer):
        seen.append(await read_request(reader))
        writer.write(events(words("Hel"), words("lo."), words("", "stop"), "[DONE]"))

    async def work():
        async with site(talk) as server:
            return await deltas_of(upstream_of(server.url))

    delta, last = asyncio.run(work())  # what came in one piece is one delta
    assert last.details is not None
    assert (delta.text, delta.finish) == ("Hello.", "stop")
    body = json.loads(seen[0].partition(b"\r\n\r\n")[2])
    assert body == {**ASKED, "stream": True, "stream_options": {"include_usage": True}}


def test_an_upstream_that_does_not_stream_is_heard_at_once():
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    (delta,) = with_upstream(deltas_of, [http({**ANSWER, "usage": usage})])
    assert (delta.text, delta.finish) == ("Hello.", "stop")
    assert (delta.usage.input_tokens, delta.usage.output_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([events(words("Hel"))], "the upstream's stream ended early"),
        ([http(b"<html>", kind="text/html")], "the upstream's stream ended early"),
        ([events(words("Hel"), whole=False), HANG_UP], "the connection to the upstream failed"),
        (
            [events('{"error": {"message": "no room"}}')],
            "the upstream failed while generating its reply",
        ),
        ([events("rubbish")], "an event that is not a completion chunk"),
        ([http(b"rubbish")], "not a chat completion"),
    ],
)
def test_a_stream_without_a_proper_end_is_the_upstreams_fault(answer, message):
    failed = problem(deltas_of, answer)
    assert (failed.status, failed.kind) == (502, "upstream")
    assert message in str(failed)


WHOLE = json.dumps({**ANSWER, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/event-stream", "x/y"])
@pytest.mark.parametrize("beginning", [b"", b" \n"])
def test_a_reply_that_is_no_stream_is_heard_whatever_it_calls_itself(kind, beginning):
    (delta,) = with_upstream(deltas_of, [http(beginning + WHOLE, kind=kind)])
    assert (delta.text, delta.finish, delta.usage.output_tokens) == ("Hello.", "stop", 4)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_stream_is_heard_whatever_it_calls_itself(kind):
    raw = f": ping\n\ndata: {words('Hello.')}\n\ndata: [DONE]\n\n".encode()
    deltas = with_upstream(deltas_of, [http(raw, kind=kind)])
    assert [delta.text for delta in deltas] == ["Hello.", ""]


@pytest.mark.parametrize("last", [words("lo.", "stop"), "[DONE]"])
def test_a_stream_without_its_last_empty_line_is_whole(last):
    text = "Hel" if "lo" in last else "Hello."
    raw = f"data: {words(text)}\n\ndata: {last}".encode()
    deltas = with_upstream(deltas_of, [http(raw, kind="text/event-stream")])
    assert "".join(delta.text for delta in deltas) == "Hello."


def test_a_stream_that_is_cut_within_its_last_event_ended_early():
    raw = f"data: {words('Hel')}\n\ndata: {words('lo.', 'stop')[:-9]}".encode()
    failed = problem(deltas_of, [http(raw, kind="text/event-stream")])
    assert str(failed) == "the upstream's stream ended early"


@pytest.mark.parametrize(
    "raw", [b"", b": ping\n\n", b"data: [DONE]\n\n", f"data: {words('')}\n\n".encode()]
)
def test_a_stream_that_ends_before_it_began_is_tried_again_and_a_fallback_may_take_it(raw):
    failed = problem(deltas_of, [http(raw, kind="text/event-stream")])
    assert (str(failed), failed.is_down) == ("the upstream's stream ended early", True)


@pytest.mark.parametrize("status", [502, 503, 504, 520, 524, 529])
def test_a_server_that_cannot_serve_now_is_tried_again_and_a_fallback_may_take_it(status):
    for work in (complete, deltas_of):
        failed = problem(work, [http({"error": {"message": "overloaded"}}, status)])
        assert (failed.status in (502, 503), failed.is_down) == (True, True)


def test_a_connection_that_breaks_after_the_reply_loses_nothing():
    deltas = with_upstream(
        deltas_of, [events(words("Hello."), words("", "stop"), whole=False), HANG_UP]
    )
    assert "".join(delta.text for delta in deltas) == "Hello."
    assert [delta.finish for delta in deltas if delta.finish] == ["stop"]


@pytest.mark.parametrize("last", [[], [": ping\n\n"] * 50])
def test_a_stream_ends_although_its_connection_does_not(last):
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(events(words("Hello."), words("", "stop"), "[DONE]", whole=False))
        for comment in last:
            writer.write(b"%x\r\n%b\r\n" % (len(comment), comment.encode()))
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)

    async def run():
        async with site(answer) as server:
            upstream = upstream_of(server.url)
            async with asyncio.timeout(2):
                deltas = await deltas_of(upstream)
            upstream.close()
            return deltas

    assert "".join(delta.text for delta in asyncio.run(run())) == "Hello."


@pytest.mark.parametrize("told", [[], [{"choices": [], "usage": {"prompt_tokens": 3}}]])
def test_a_stream_without_a_choice_ended_early_although_its_connection_does_not(told):
    answer = [events(*map(json.dumps, told), "[DONE]", whole=False)]
    failed = problem(deltas_of, answer)
    assert (str(failed), failed.is_down) == ("the upstream's stream ended early", True)


def test_the_end_of_a_connection_is_waited_for_once():
    async def timed(upstream):
        start = asyncio.get_running_loop().time()
        await deltas_of(upstream)
        return asyncio.get_running_loop().time() - start

    answer = [events(words("Hello.", "stop"), "[DONE]", whole=False)]
    assert LINGER_SECONDS <= with_upstream(timed, answer) < 2 * LINGER_SECONDS


def test_a_connection_whose_stream_ends_late_is_used_again():
    async def run():
        late = [events(words("Hello.", "stop"), "[DONE]", whole=False), b"0\r\n\r\n"]
        async with site(answering(late, [events(words("Yes.", "stop"))])) as server:
            upstream = upstream_of(server.url)
            texts = [(await deltas_of(upstream))[0].text for _ in range(2)]
            upstream.close()
            return texts, server.opened

    assert asyncio.run(run()) == (["Hello.", "Yes."], 1)


@pytest.mark.parametrize("kind", ["data: ", "", "error: "])
def test_a_failure_is_heard_although_its_line_names_no_data(kind):
    error = json.dumps({"error": {"message": "busy", "code": 429}})
    if kind == "error: ":  # as older versions of llama.cpp write it
        error = json.dumps({"message": "busy", "code": 429, "type": "rate_limit"})
    raw = f"data: {words('Hel')}\n\n{kind}{error}\n\n".encode()
    failed = problem(deltas_of, [http(raw, kind="text/event-stream")])
    assert (failed.status, str(failed)) == (429, "the upstream answered 429: busy")


def test_events_are_heard_although_no_empty_line_divides_them():
    lines = [words("Hel"), words("lo."), words("", "stop"), "[DONE]"]
    raw = "".join(f"data: {line}\n" for line in lines).encode()
    deltas = with_upstream(deltas_of, [http(raw, kind="text/event-stream")])
    assert "".join(delta.text for delta in deltas) == "Hello."


def test_an_event_of_several_lines_is_one():
    lines = json.dumps(json.loads(words("Hello.", "stop")), indent=1).splitlines()
    raw = "".join(f"data: {line}\n" for line in lines).encode()
    deltas = with_upstream(deltas_of, [http(raw + b"\ndata: [DONE]\n\n")])
    assert "".join(delta.text for delta in deltas) == "Hello."


def test_a_chunk_is_heard_although_its_line_names_no_data():
    raw = f"data: {words('Hel')}\n\n{words('lo.', 'stop')}\ndata: [DONE]\n\n".encode()
    deltas = with_upstream(deltas_of, [http(raw, kind="text/event-stream")])
    assert "".join(delta.text for delta in deltas) == "Hello."


def test_the_fragments_of_a_call_are_joined_at_its_end_and_not_with_each():
    joins = []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_qualname == "CallFragments.arguments":
            joins.append(frame)

    def spell(fragment, finish=None):
        choice = {"delta": {"tool_calls": [{"index": 0, **fragment}]}, "finish_reason": finish}
        return events(json.dumps({"choices": [choice]}), whole=finish is not None)

    first = spell({"id": "1", "function": {"name": "f"}})
    others = [spell({"function": {"arguments": " "}}) for _ in range(60)]
    last = spell({"function": {"arguments": "{}"}}, "tool_calls")

    async def answer(reader, writer):
        await read_request(reader)
        writer.write(first)
        for part in [*others, last]:
            writer.write(part.partition(b"\r\n\r\n")[2])
            await asyncio.sleep(0.001)

    async def run():
        async with site(answer) as server:
            upstream = upstream_of(server.url)
            sys.setprofile(count)
            deltas = await deltas_of(upstream)
            sys.setprofile(None)
            upstream.close()
            return deltas

    deltas = asyncio.run(run())
    assert sum(delta.begun is not None for delta in deltas) > 20
    assert len(joins) < 10
    assert deltas[-2].calls[0].arguments == " " * 60 + "{}"


@pytest.mark.parametrize(
    ("counts", "output_tokens"),
    [([1, None], 25), ([None, 7], 7), ([1, 9], 9)],
)
def test_words_that_arrive_together_with_counts_before_them_are_not_among_these(
    counts, output_tokens
):
    def spell(count, **choice):
        usage = count and {"prompt_tokens": 9, "completion_tokens": count}
        return json.dumps({"choices": [{"index": 0, **choice}], "usage": usage})

    first, last = counts
    answer = [
        events(
            spell(first, delta={"role": "assistant"}),
            spell(None, delta={"content": "x" * 100}),
            spell(last, delta={}, finish_reason="stop"),
            "[DONE]",
        )
    ]

    async def draft(upstream):
        return await DraftStream(str, print).read(upstream.stream(ASKED, None))

    usage = with_upstream(draft, answer).reply.usage
    assert (usage.output_tokens, usage.estimated) == (output_tokens, last is None)


def test_calls_that_arrive_with_the_end_count_after_what_the_server_counted_before():
    def spell(usage, finish=None, **delta):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps({"choices": [choice], "usage": usage})

    arguments = json.dumps({"text": "word " * 100})
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    first = events(spell({"prompt_tokens": 9, "completion_tokens": 1}), whole=False)
    last = events(spell(None, tool_calls=[call]), spell(None, "tool_calls"))

    async def answer(reader, writer):
        await read_request(reader)
        writer.write(first)
        await asyncio.sleep(0.05)
        writer.write(last.partition(b"\r\n\r\n")[2])

    async def run():
        async with site(answer) as server:
            upstream = upstream_of(server.url)
            draft = await DraftStream(str, print).read(upstream.stream(ASKED, None))
            upstream.close()
            return draft

    usage = asyncio.run(run()).reply.usage
    assert (usage.input_tokens, usage.output_tokens > 100, usage.estimated) == (9, True, True)


def test_what_came_with_an_error_is_heard_before_it():
    async def work(upstream):
        async with aclosing(upstream.stream(ASKED, None)) as deltas:
            first = await anext(deltas)
            with pytest.raises(RequestError, match="answered 429: busy"):
                await anext(deltas)
            return first.text

    error = json.dumps({"error": {"message": "busy", "code": 429}})
    assert with_upstream(work, [events(words("Hel"), words("lo."), error)]) == "Hello."


def test_words_are_heard_before_the_stream_breaks():
    async def work(upstream):
        async with aclosing(upstream.stream(ASKED, None)) as deltas:
            first = await anext(deltas)
            with pytest.raises(RequestError):
                await anext(deltas)
            return first.text

    assert with_upstream(work, [events(words("Hel"), whole=False), HANG_UP]) == "Hel"


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("work", [complete, deltas_of, models])
def test_an_answer_that_is_too_large_is_refused(work, status):
    failed = problem(work, [http(b"x" * 10_001, status)])
    assert (failed.status, "more than 10000 bytes" in str(failed)) == (502, True)


def test_a_stream_that_is_too_large_is_refused():
    failed = problem(deltas_of, [events(*[words("x" * 900)] * 12)])
    assert (failed.status, "more than 10000 bytes" in str(failed)) == (502, True)


@pytest.mark.parametrize("work", [complete, deltas_of, models])
@pytest.mark.parametrize("sent", [[], [http(b"x")[:-1]], [events(words("a"), whole=False)]])
def test_silence_is_a_gateway_timeout(work, sent):
    failed = problem(work, sent, timeout_seconds=0.05)
    assert (failed.status, failed.kind) == (504, "upstream_timeout")
    assert str(failed) == "the upstream sent nothing for 0.05 s"


def test_leaving_a_stream_stops_the_server():
    async def work():
        async with site(answering([events(words("Hel"), whole=False)])) as server:
            async with aclosing(upstream_of(server.url).stream(ASKED, None)) as deltas:
                await anext(deltas)
            await asyncio.wait_for(server.left.wait(), 60)

    asyncio.run(work())


async def statuses(upstream, count):
    """Return the statuses of so many requests, one after the other."""
    answered = []
    for _ in range(count):
        try:
            await complete(upstream)
            answered.append(200)
        except RequestError as error:
            answered.append(error.status)
    return answered


def test_an_upstream_that_cannot_be_reached_is_left_alone_for_a_while():
    async def work():
        upstream = upstream_of(NOWHERE)
        answered = await statuses(upstream, 5)
        with pytest.raises(RequestError) as raised:
            await complete(upstream)
        return answered, raised.value

    answered, refused = asyncio.run(work())
    assert answered == [502] * 5
    assert (refused.status, refused.retry_after_seconds) == (503, OPEN_SECONDS)


def test_one_probe_that_is_answered_lets_the_others_in_again():
    now = 0.0

    async def work(upstream):
        nonlocal now
        upstream.breaker = Breaker(open_seconds=10, clock=lambda: now)
        answered = await statuses(upstream, 6)
        now = 11
        answered += await statuses(upstream, 2)  # the probe fails
        now = 22
        return answered + await statuses(upstream, 2)

    answers = [*[[HANG_UP]] * 6, [http(ANSWER)], [http(ANSWER)]]
    answered = with_upstream(work, *answers)
    assert answered == [502] * 5 + [503] + [502, 503] + [200, 200]


def test_the_others_need_not_wait_for_the_end_of_a_probe_that_streams():
    now = 0.0

    async def work(upstream):
        nonlocal now
        upstream.breaker = Breaker(open_seconds=10, clock=lambda: now)
        await statuses(upstream, 5)
        now = 11
        async with aclosing(upstream.stream(ASKED, None)) as deltas:
            await anext(deltas)
            return await statuses(upstream, 1)

    beginning = [events(words("Hel"), whole=False)]
    assert with_upstream(work, *[[HANG_UP]] * 5, beginning, [http(ANSWER)]) == [200]


@pytest.mark.parametrize(
    "answer",
    [[http(b"broken", 500)], [http(b"rubbish")], [http(ANSWER)[:-1], HANG_UP]],
)
def test_an_upstream_that_answers_badly_is_asked_again(answer):
    assert with_upstream(lambda it: statuses(it, 7), *[answer] * 7) == [502] * 7


NO_MAX_TOKENS = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
NO_OPTIONS = '[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs"}]'


def told(work, *answers):
    """Return the bodies that a server got which gives these answers, and what `work` returned."""
    seen, left = [], iter(answers)

    async def talk(reader, writer):
        while request := await read_request(reader):
            seen.append(json.loads(request.partition(b"\r\n\r\n")[2]))
            writer.write(next(left))

    async def run():
        async with site(talk) as server:
            upstream = upstream_of(server.url)
            try:
                return await work(upstream)
            finally:
                upstream.close()

    return seen, asyncio.run(run())


def test_what_a_model_refuses_is_left_out_of_its_later_requests():
    async def work(upstream):
        chat = {**ASKED, "max_tokens": 9}
        for model in ("o3", "o3", "m"):
            await upstream.complete({**chat, "model": model}, None)

    refusal = http({"error": {"message": NO_MAX_TOKENS}}, 400)
    seen, _ = told(work, refusal, http(ANSWER), http(ANSWER), http(ANSWER))
    limits = [(chat.get("max_tokens"), chat.get("max_completion_tokens")) for chat in seen]
    assert limits == [(9, None), (None, 9), (None, 9), (9, None)]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("user", "u7", '[{"type":"extra_forbidden","loc":["body","user"],"msg":"Extra inputs"}]'),
        ("reasoning_effort", "low", "Unrecognized request argument supplied: reasoning_effort"),
        ("metadata", {}, "The 'metadata' parameter is only allowed when 'store' is enabled."),
        ("prompt_cache_key", "k", "property 'prompt_cache_key' is unsupported"),
        ("store", False, "store: Extra inputs are not permitted"),
        ("verbosity", "low", "property 'verbosity' is unsupported"),
        ("parallel_tool_calls", True, "Unsupported parameter: 'parallel_tool_calls'"),
    ],
)
def test_a_hint_that_the_upstream_refuses_is_left_out(field, value, words):
    async def work(upstream):
        await upstream.complete({**ASKED, field: value}, None)

    seen, _ = told(work, http({"error": {"message": words}}, 400), http(ANSWER))
    assert [field in chat for chat in seen] == [True, False]


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported value: 'max' for reasoning in 'user' content",
        "max_tokens is too large: 99. This model supports at most 9",
        "Conversation roles user/assistant must alternate",
    ],
)
def test_a_refusal_of_something_else_is_told_at_once(words):
    async def work(upstream):
        with pytest.raises(RequestError):
            await upstream.complete({**ASKED, "max_tokens": 99, "metadata": {}}, None)

    assert len(told(work, http({"error": {"message": words}}, 400))[0]) == 1


def test_a_hint_is_given_up_for_one_request_only():
    """A server may refuse one value, or quote what one client sent."""

    async def work(upstream):
        for effort in ("minimal", "high"):
            await upstream.complete({**ASKED, "reasoning_effort": effort}, None)
        quoted = {**ASKED, "user": "u", "max_tokens": 9}
        await upstream.complete(quoted, None)
        await upstream.complete(quoted, None)

    value = "Unsupported value: 'reasoning_effort' does not support 'minimal'"
    quoting = f"unsupported 'user': {NO_MAX_TOKENS}"
    refusals = [http({"error": {"message": words}}, 400) for words in (value, quoting)]
    answers = [
        refusals[0],
        http(ANSWER),
        http(ANSWER),
        refusals[1],
        refusals[1],
        *[http(ANSWER)] * 2,
    ]
    seen, _ = told(work, *answers)
    assert [chat.get("reasoning_effort") for chat in seen[:3]] == ["minimal", None, "high"]
    assert ("max_tokens" in seen[6], "user" in seen[6]) == (True, True)


def test_of_several_fields_that_are_refused_the_last_is_remembered():
    """The others may be what the server only quoted; the next request shows it."""
    tools = [{"type": "custom", "custom": {"name": "n" * 65}}]

    async def work(upstream):
        for _ in range(3):
            await upstream.complete({**ASKED, "tools": tools}, None)

    custom = http({"detail": "tools.0.function: Field required"}, 422)
    long = http({"error": {"message": "tools[0].function.name: string too long"}}, 400)
    seen, _ = told(work, custom, long, http(ANSWER), custom, http(ANSWER), http(ANSWER))
    kinds = [tool["type"] for chat in seen for tool in chat["tools"]]
    assert kinds == ["custom", "function", "function", "custom", "function", "function"]
    lengths = [len(tool[tool["type"]]["name"]) for chat in seen for tool in chat["tools"]]
    assert lengths == [65, 65, 64, 64, 64, 64]


def test_calls_without_geminis_signature_are_sent_with_the_documented_one():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "c2ln"}}}
    turns = [{"role": "assistant", "tool_calls": calls} for calls in ([call, call], [signed])]
    chat = {**ASKED, "messages": [*ASKED["messages"], *turns]}

    async def work(upstream):
        await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    words = "Function call is missing a thought_signature in functionCall parts."
    refusal = http([{"error": {"code": 400, "message": words}}], 400)
    seen, _ = told(work, refusal, http(ANSWER), http(ANSWER))
    unsigned = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert seen[1]["messages"][1:] == [
        {"role": "assistant", "tool_calls": [{"extra_content": unsigned, **call}, call]},
        turns[1],
    ]
    assert seen[2] == seen[1]


@pytest.mark.parametrize(
    "words",
    [
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a maximum length of 40.",
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ],
)
def test_calls_of_another_server_are_sent_with_ids_that_the_upstream_takes(words):
    ids = ["call_1", f"call_{'2' * 40}", "abcDEF123"]
    calls = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids
    ]
    results = [{"role": "tool", "tool_call_id": i, "content": "done"} for i in ids]
    turns = [{"role": "assistant", "tool_calls": calls}, *results]
    chat = {**ASKED, "messages": [*ASKED["messages"], *turns]}

    async def work(upstream):
        await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    seen, _ = told(work, http({"message": words}, 400), http(ANSWER), http(ANSWER))
    assert seen[0] == chat
    assert seen[1] == seen[2]
    sent = [call["id"] for call in seen[1]["messages"][1]["tool_calls"]]
    assert sent == [message["tool_call_id"] for message in seen[1]["messages"][2:]]
    assert len(set(sent)) == 3
    assert sent[2] == ids[2]
    assert all(len(i) == 9 and i.isalnum() for i in sent)


@pytest.mark.parametrize(
    "words",
    [
        "Failed to deserialize: messages[0]: invalid type: sequence, expected a string at line 1",
        "Input should be a valid string",
        "messages.0.content must be a string",
        "content as an array is not supported by this model",
    ],
)
def test_texts_in_parts_are_joined_for_a_server_that_refuses_parts(words):
    texts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    turns = [{"role": "user", "content": content} for content in (texts, image, "go")]

    async def work(upstream):
        await upstream.complete({"model": "m", "messages": turns}, None)
        await upstream.complete({"model": "m", "messages": turns}, None)

    seen, _ = told(work, http({"error": {"message": words}}, 422), http(ANSWER), http(ANSWER))
    contents = [[message["content"] for message in chat["messages"]] for chat in seen]
    assert contents == [[texts, image, "go"], *[["hi\nthere", image, "go"]] * 2]


@pytest.mark.parametrize(
    "words",
    [
        "invalid message content type: <nil>",
        "Invalid value for 'content': expected a string, got null.",
        "Invalid 'content': 'content' field must be a string or an array of objects.",
    ],
)
def test_a_call_without_words_has_an_empty_text_for_a_server_that_refuses_null(words):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}

    async def work(upstream):
        await upstream.complete({"model": "m", "messages": [called]}, None)

    seen, _ = told(work, http({"error": {"message": words}}, 400), http(ANSWER))
    assert [chat["messages"] for chat in seen] == [[called], [{**called, "content": ""}]]


def test_schemas_are_simpler_for_a_server_that_does_not_know_all_their_keywords():
    schema = {"type": "object", "properties": {}}
    function = {"name": "f", "parameters": {**schema, "additionalProperties": False}}
    chat = {**ASKED, "tools": [{"type": "function", "function": function}]}

    async def work(upstream):
        await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    place = "tools[0].function_declarations[0].parameters"
    words = f"Unknown name \"additionalProperties\" at '{place}': Cannot find field."
    refusal = http([{"error": {"code": 400, "message": words}}], 400)
    seen, _ = told(work, refusal, http(ANSWER), http(ANSWER))
    sent = [chat["tools"][0]["function"]["parameters"] for chat in seen]
    assert sent == [function["parameters"], schema, schema]


@pytest.mark.parametrize(
    "words",
    [
        "messages: text content blocks must be non-empty",
        "message content can not be empty",
        "user message must have content",
        "invalid_request_error: text content is empty",
    ],
)
def test_messages_without_a_word_have_some_for_a_server_that_refuses_them(words):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": ""}
    said = {"role": "assistant", "content": ""}
    texts = [{"type": "text", "text": text} for text in ("", "Go.")]
    chat = {"model": "m", "messages": [called, result, said, {"role": "user", "content": texts}]}
    seen, _ = told(lambda upstream: upstream.complete(chat, None), refused(words), http(ANSWER))
    assert seen[1]["messages"] == [
        {**called, "content": None},
        {**result, "content": "[empty]"},
        {**said, "content": "[empty]"},
        {"role": "user", "content": texts[1:]},
    ]


def test_a_server_that_refuses_null_and_empty_texts_is_asked_three_times_at_most():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}

    async def work(upstream):
        with pytest.raises(RequestError, match="nil"):
            await upstream.complete({"model": "m", "messages": [called]}, None)

    null, empty = (refused(words) for words in ("content type: <nil>", "content must be non-empty"))
    seen, _ = told(work, null, empty, null)
    assert len(seen) == 3


@pytest.mark.parametrize(
    "words", ["Invalid request: tool call id f:0 is duplicated", "duplicate tool_call ids found"]
)
def test_calls_with_one_id_have_ids_of_their_own_for_a_server_that_refuses_that(words):
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "f:0", "content": "done"}
    chat = {"model": "m", "messages": [called, result, called, result]}
    seen, _ = told(lambda upstream: upstream.complete(chat, None), refused(words), http(ANSWER))
    assert [message.get("tool_call_id") for message in seen[1]["messages"][1::2]] == [
        "f:0",
        "f:0_2",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "Images are supported in user messages only: images in 'tool' messages return a 400 error.",
        "data did not match any variant of untagged enum ChatCompletionRequestToolMessageContent",
        "Invalid 'messages' in payload. Please check the structure of your 'messages'",
    ],
)
def test_what_a_tool_shows_is_the_users_for_a_server_that_refuses_it(words):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    result = {"role": "tool", "tool_call_id": "1", "content": [image]}
    chat = {"model": "m", "messages": [result]}
    seen, _ = told(lambda upstream: upstream.complete(chat, None), refused(words), http(ANSWER))
    assert seen[1]["messages"] == [
        {**result, "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "[tool_result]"}, image]},
    ]


@pytest.mark.parametrize(
    "words",
    [
        "This model does not support assistant message prefill.",
        "The conversation must end with a user message.",
        "Expected last role User or Tool (or Assistant with prefix True), but got assistant",
    ],
)
def test_a_begun_reply_is_asked_to_go_on_where_a_user_must_speak_last(words):
    begun = [*ASKED["messages"], {"role": "assistant", "content": "{"}]
    chat = {**ASKED, "messages": begun}
    seen, _ = told(lambda upstream: upstream.complete(chat, None), refused(words), http(ANSWER))
    *earlier, last = seen[1]["messages"]
    assert (earlier, last["role"], "Go on" in last["content"]) == (begun, "user", True)


@pytest.mark.parametrize(
    "words",
    [
        "developer is not one of ['system', 'assistant', 'user', 'tool', 'function']",
        "Input tag 'developer' found using 'role' does not match any of the expected tags",
        "[1214] Incorrect role information",
        "invalid params, role param error",
    ],
)
def test_a_developer_is_the_system_for_a_server_that_does_not_know_him(words):
    turns = [{"role": "developer", "content": "Be brief."}, *ASKED["messages"]]
    chat = {**ASKED, "messages": turns}

    async def work(upstream):
        await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    seen, _ = told(work, refused(words), http(ANSWER), http(ANSWER))
    roles = [chat["messages"][0]["role"] for chat in seen]
    assert roles == ["developer", "system", "system"]


def refused(words):
    return http({"error": {"message": words}}, 400)


def test_a_refusal_of_a_result_without_its_call_is_told_at_once():
    turns = [{"role": "tool", "tool_call_id": "call_1", "content": "done"}]
    refusal = "tool_call_id call_1 has no preceding message with 'tool_calls'"

    async def work(upstream):
        with pytest.raises(RequestError, match="no preceding message"):
            await upstream.complete({**ASKED, "messages": turns}, None)

    seen, _ = told(work, http({"error": {"message": refusal}}, 400))
    assert len(seen) == 1


@pytest.mark.parametrize("status", [400, 500])
def test_a_model_whose_template_takes_one_system_message_gets_one(status):
    later = {"role": "system", "content": "It is noon."}
    chat = {**ASKED, "messages": [*ASKED["messages"], later]}

    async def work(upstream):
        await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    refusal = http({"error": {"message": "System message must be at the beginning."}}, status)
    seen, _ = told(work, refusal, http(ANSWER), http(ANSWER))
    joined = [{"role": "user", "content": "hi\n\nIt is noon."}]
    assert [chat["messages"] for chat in seen[1:]] == [joined, joined]


def test_an_upstream_that_is_busy_is_not_asked_again_in_other_words():
    async def work(upstream):
        with pytest.raises(RequestError, match="429"):
            await upstream.complete({**ASKED, "messages": ASKED["messages"] * 2}, None)

    busy = http({"error": {"message": "Tier 'developer' has used up its quota."}}, 429)
    assert len(told(work, busy, http(ANSWER))[0]) == 1


def test_a_client_that_sends_both_limits_is_told_so():
    async def work(upstream):
        with pytest.raises(RequestError):
            await upstream.complete({**ASKED, "max_tokens": 9, "max_completion_tokens": 9}, None)

    words = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    assert len(told(work, http({"error": {"message": words}}, 400))[0]) == 1


def test_reasoning_is_left_out_under_both_of_its_names():
    async def work(upstream):
        turn = {"role": "assistant", "content": "Hi.", "reasoning": "A", "reasoning_content": "A"}
        await upstream.complete({**ASKED, "messages": [*ASKED["messages"], turn]}, None)

    words = "'messages.1' : property 'reasoning' is unsupported"
    seen, _ = told(work, http({"error": {"message": words}}, 400), http(ANSWER))
    assert seen[1]["messages"][1] == {"role": "assistant", "content": "Hi."}


def test_a_compressed_answer_is_named_and_never_passed_on():
    packed = b"\x1f\x8bpacked"
    failed = problem(complete, [http(packed, Content_Encoding="gzip")])
    assert failed.status == 502
    assert "compressed its answer" in str(failed)
    assert "got gzip" in str(failed)
    busy = problem(complete, [http(packed, 429, Content_Encoding="GZIP", Retry_After="7")])
    assert (busy.status, busy.retry_after_seconds, "packed" in str(busy)) == (429, 7.0, False)
    plain = with_upstream(complete, [http(ANSWER, Content_Encoding="identity")])
    assert plain.reply.text == "Hello."


def test_a_refusal_that_stays_is_told_and_nothing_is_remembered():
    async def work(upstream):
        chat = {**ASKED, "max_tokens": 9}
        with pytest.raises(RequestError, match="max_completion_tokens"):
            await upstream.complete(chat, None)
        await upstream.complete(chat, None)

    refusal = http({"error": {"message": NO_MAX_TOKENS}}, 400)
    seen, _ = told(work, refusal, refusal, http(ANSWER))
    assert [chat.get("max_tokens") for chat in seen] == [9, None, 9]


def test_a_server_that_refuses_stream_options_streams_without_them():
    async def work(upstream):
        return await deltas_of(upstream), await deltas_of(upstream)

    streamed = events(words("Hello."), words("", "stop"), "[DONE]")
    seen, (first, again) = told(work, http({"detail": NO_OPTIONS}, 422), streamed, streamed)
    assert ["stream_options" in chat for chat in seen] == [True, False, False]
    assert "".join(delta.text for delta in first) == "Hello."
    assert "".join(delta.text for delta in again) == "Hello."


def test_a_stream_that_nobody_asked_for_is_read_as_a_reply():
    call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}
    called = json.dumps(
        {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    )
    answer = with_upstream(complete, [events(words("Good"), words(" day."), called, "[DONE]")])
    assert answer.reply.text == "Good day."
    assert [call.name for call in answer.reply.calls] == ["f"]
    assert (answer.finish, answer.raw) == ("tool_calls", None)


def test_ends_that_arrive_together_are_the_last_one():
    parts = [
        {"index": index, "id": str(index), "function": {"name": "f", "arguments": "{}"}}
        for index in (0, 1)
    ]
    called = [
        json.dumps({"choices": [{"delta": {"tool_calls": [part]}, "finish_reason": finish}]})
        for part, finish in zip(parts, ("stop", "tool_calls"), strict=True)
    ]
    answer = with_upstream(complete, [events(*called, "[DONE]")])
    assert [call.id for call in answer.reply.calls] == ["0", "1"]
    assert answer.finish == "tool_calls"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([words("Good")], "ended early"),
        ([words("Good"), "{"], "not a completion chunk"),
        ([words("Good"), '{"error": {"message": "no memory"}}'], "failed while generating"),
    ],
)
def test_a_stream_that_nobody_asked_for_and_that_fails_is_no_reply(sent, message):
    assert message in str(problem(complete, [events(*sent)]))
