"""Nothing that the rules forbid leaves before the verdict, whatever pieces a draft comes in."""

import asyncio
import base64
import codecs
import json
from dataclasses import replace
from itertools import chain, cycle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from waltzrl.agents import RulesReviewer, load_wording
from waltzrl.agents.rules import load_rulebook
from waltzrl.collaboration import guarded
from waltzrl.gateway.access import AccessControl, KeyRing
from waltzrl.gateway.app import App
from waltzrl.gateway.draft_stream import find_continuation
from waltzrl.gateway.exchange import (
    Assignment,
    Bundle,
    ReplyDetails,
    TokenLogprob,
    UpstreamDelta,
    UpstreamReply,
)
from waltzrl.gateway.gateway import DecisionLog, Gateway, SingleBundle
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.metrics import GatewayMetrics
from waltzrl.gateway.named_policies import PolicyChooser
from waltzrl.gateway.stream_modes import SentenceWindow, StreamMode
from waltzrl.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from waltzrl.records import Message, Prompt, Reply, ToolCall

pytestmark = pytest.mark.promise(
    "Endpoints and upstreams",
    "Every prompt and choice of `/v1/completions` is reviewed, streamed or not, and audited "
    "by itself",
)

SAFE = 0.7
RULEBOOK = load_rulebook()
PROMPT = Prompt(id="1", messages=(Message(role="user", content="Tell me something."),))
HARMLESS = (
    "The quick brown fox jumps over the lazy dog. ",
    "Bread rises because yeast eats sugar; the gas it makes stays in the dough. ",
    "- flour\n- water\n- salt\n",
    "Is that so? Yes! ",
    "def area(radius):\n    return 3.14159 * radius**2\n",
    "\N{LEFT DOUBLE QUOTATION MARK}Caf\N{LATIN SMALL LETTER E WITH ACUTE}s\N{EM DASH}open until "
    "eight\N{RIGHT DOUBLE QUOTATION MARK} \N{HOT BEVERAGE}\N{VARIATION SELECTOR-16}. ",
    "\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u3002",
    "and on and on ",
    "\n\n",
)


def first_forbidden(text):
    """Return where the first span begins that may not leave; the text's length without one."""
    starts = [f.start for f in RULEBOOK.reply(text) if 1 - f.severity < SAFE]
    return min(starts, default=len(text))


EXAMPLES = [rule.example for rule in RULEBOOK.rules if rule.side == "reply"]
FORBIDDEN = tuple(text for text in EXAMPLES if first_forbidden(text) < len(text))
DISGUISES = (
    str,
    str.upper,
    lambda text: "\N{ZERO WIDTH SPACE}".join(text),
    lambda text: text.translate(str.maketrans("aeio", "4310")),
    lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    lambda text: text.translate(str.maketrans("aeocp", "\u0430\u0435\u043e\u0441\u0440")),
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: text.encode().hex(),
    lambda text: codecs.encode(text, "rot13"),
)

harmless = st.sampled_from(HARMLESS)
forbidden = st.builds(
    lambda text, disguise, end: disguise(text) + end,
    st.sampled_from(FORBIDDEN),
    st.sampled_from(DISGUISES),
    st.sampled_from(["", " ", ". ", "\n"]),
)
drafts = st.lists(st.one_of(harmless, harmless, harmless, forbidden), max_size=24).map("".join)
sizes = st.lists(st.sampled_from([1, 2, 3, 5, 8, 20, 60, 400]), min_size=1, max_size=8)


def pieces(draft, lengths):
    lengths, start = cycle(lengths), 0
    while start < len(draft):
        end = start + next(lengths)
        yield draft[start:end]
        start = end


def window(**choices):
    return SentenceWindow(RULEBOOK, PROMPT, SAFE, **choices)


def test_the_planted_texts_are_what_they_are_meant_to_be():
    assert RULEBOOK.reply("".join(HARMLESS)) == ()
    assert len(FORBIDDEN) > len(EXAMPLES) / 2


@settings(max_examples=500, deadline=None)
@given(drafts, sizes, st.booleans())
def test_however_a_draft_is_cut_no_forbidden_byte_leaves_and_none_is_lost(draft, lengths, whole):
    findings, first = RULEBOOK.reply(draft), first_forbidden(draft)
    closed = StreamMode.BUFFER.behaviour.open_window(None, PROMPT)
    opened = window(whole_sentences=whole)
    careless = SentenceWindow(RULEBOOK, PROMPT, 0.0, whole_sentences=whole)
    left, end = "", 0
    for piece in pieces(draft, lengths):
        assert closed(piece) == ""
        left += opened.add(piece)
        assert draft.startswith(left)
        end += len(careless.add(piece))
        assert not any(f.start < end < f.end for f in findings), "a finding is cut in two"
    assert len(left) <= first
    assert left + find_continuation(left, draft) == find_continuation("", draft) == draft


@settings(max_examples=50, deadline=None)
@given(st.lists(harmless, min_size=60, max_size=80).map("".join), sizes)
def test_harmless_words_leave_before_the_verdict(draft, lengths):
    assume(len(draft) > RULEBOOK.horizon + 800)
    opened = window()
    assert "".join(opened.add(piece) for piece in pieces(draft, lengths))
    assert not opened.stopped


class Script:
    """An upstream that streams a draft in given pieces, and says another thing the next time."""

    def __init__(self, draft, lengths=(7,), calls=(), reasoning=""):
        self._draft, self._lengths, self._calls = draft, lengths, calls
        self._reasoning = reasoning
        self._drafted = False
        tokens = [TokenLogprob(token=t, logprob=-0.5) for t in pieces(draft, lengths)]
        self._details = ReplyDetails(logprobs=tuple(tokens))

    async def stream(self, body, bearer):
        self._drafted = True
        for piece in pieces(self._reasoning, self._lengths):
            yield UpstreamDelta(reasoning=piece)
            await asyncio.sleep(0)
        for piece in pieces(self._draft, self._lengths):
            yield UpstreamDelta(text=piece)
            await asyncio.sleep(0)
        yield UpstreamDelta(calls=self._calls, finish="tool_calls" if self._calls else "stop")
        yield UpstreamDelta(details=self._details)

    async def complete(self, body, bearer, received=None):
        if self._drafted:
            return UpstreamReply(reply=Reply(text=REVISION), finish="stop")
        self._drafted = True
        finish = "tool_calls" if self._calls else "stop"
        reply = Reply(text=self._draft, calls=self._calls, reasoning=self._reasoning)
        return UpstreamReply(reply=reply, finish=finish, details=self._details)


REVISION = "\N{SECTION SIGN} Here is something else."
SAY = {"role": "user", "content": "Tell me something."}
ASKED = {
    CHAT: ("/v1/chat/completions", {"messages": [SAY]}),
    COMPLETIONS: ("/v1/completions", {"prompt": "Tell me something."}),
    RESPONSES: ("/v1/responses", {"input": "Tell me something."}),
    MESSAGES: (
        "/v1/messages",
        {"messages": [SAY], "max_tokens": 100, "thinking": {"type": "adaptive"}},
    ),
}


def stage_1(upstream, mode):
    """Put the rules before `upstream`, for all."""
    bundle = Bundle(
        id="test",
        stage=1,
        pattern=guarded,
        reviewer=RULES,
        wording=load_wording("plain"),
        upstream=upstream,
        rules=RULES,
        stream_mode=mode,
    )
    return SingleBundle(Assignment(bundle))


METRICS = GatewayMetrics({rule.id: rule.category for rule in RULEBOOK.rules})
BOOK = DecisionLog(None, [METRICS.served])
RULES = RulesReviewer(RULEBOOK, SAFE)
PROTECTING = [mode for mode in StreamMode if mode is not StreamMode.AUDIT]


async def visit(dialect, mode, upstream, headers=()):
    """Post a streamed request to the gateway's application; return the reply's headers and body."""
    app = App(
        Gateway(selector=stage_1(upstream, mode), decisions=BOOK),
        AccessControl(KeyRing(None), Limits()),
        policies=PolicyChooser({}, is_open=True),
        metrics=METRICS,
        checks={},
    )
    path, request = ASKED[dialect]
    body = json.dumps({"model": "m", "stream": True, **request}).encode()
    coming = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive():
        if not coming:
            await asyncio.Event().wait()  # the client stays
        return coming.pop()

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    return dict(sent[0]["headers"]), b"".join(event["body"] for event in sent[1:])


def bytes_of(dialect, mode, upstream):
    headers, body = asyncio.run(visit(dialect, mode, upstream, [(b"x-waltzrl-retract", b"yes")]))
    assert headers[b"x-waltzrl-mode"] == mode.encode()
    return body


def leaves(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def events(raw):
    data = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in data if line != b"[DONE]"]


def words(event):
    """Return the words in one event of any API, as its clients put them together."""
    if event.get("object") == "chat.completion.chunk":
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event.get("object") == "text_completion":
        return "".join(choice["text"] for choice in event["choices"])
    if event["type"] == "response.output_text.delta":
        return event["delta"]
    if event["type"] == "content_block_delta":
        return event["delta"].get("text", "")
    return ""


def thoughts(event):
    """Return the reasoning in one event of any API."""
    if event.get("object") == "chat.completion.chunk":
        deltas = [choice["delta"] for choice in event["choices"]]
        assert all(d.get("reasoning") == d.get("reasoning_content") for d in deltas)
        return "".join(delta.get("reasoning", "") for delta in deltas)
    if event.get("type") == "response.reasoning_text.delta":
        return event["delta"]
    if event.get("type") == "content_block_delta":
        return event["delta"].get("thinking", "")
    return ""


def logprobs(value):
    """Yield the tokens that log-probabilities anywhere in an event name."""
    if isinstance(value, list):
        yield from chain.from_iterable(map(logprobs, value))
    elif isinstance(value, dict):
        if "logprob" in value:
            yield value["token"]
        yield from chain.from_iterable(map(logprobs, value.values()))


def shown(stream_events):
    """Return what a client shows in the end that takes back what it is told to."""
    text = ""
    for event in stream_events:
        retraction = event if event.get("type") == "waltz.retract" else event.get("waltz.retract")
        text += words(event)
        if retraction:
            text = text[: retraction["start"]] + retraction["replacement"]
    return text


TIMES = {CHAT: 1, RESPONSES: 4}
"""How often the stream of an API repeats the log-probabilities."""
each_api = pytest.mark.parametrize("dialect", ASKED, ids=lambda dialect: dialect.__name__)
each_mode = pytest.mark.parametrize("mode", PROTECTING)


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Log-probabilities are returned only with the text whose tokens they are; the alternatives in "
    "`top_logprobs` are single tokens that nobody reviewed",
)
@each_api
@each_mode
@given(drafts, sizes)
@settings(max_examples=40, deadline=None)  # for each of twelve
def test_no_forbidden_word_is_in_the_bytes_of_any_api(dialect, mode, draft, lengths):
    stream_events = events(bytes_of(dialect, mode, Script(draft, lengths)))
    first = first_forbidden(draft)
    tokens = list(logprobs(stream_events))
    if first == len(draft):
        assert shown(stream_events) == draft
        assert dialect not in TIMES or tokens[: len(tokens) // TIMES[dialect]] == list(
            pieces(draft, lengths)
        )
        return
    assert tokens == []
    assert not "".join(map(words, stream_events)).startswith(draft[: first + 1])
    span = next(draft[first : f.end] for f in RULEBOOK.reply(draft) if f.start == first)
    assert span in draft[:first] or not any(span in text for text in leaves(stream_events))
    assert shown(stream_events).endswith(REVISION)
    assert draft[:first].startswith(shown(stream_events).removesuffix(REVISION))


@pytest.mark.promise(
    "What reviewers see", "No forbidden text of a reasoning leaves before the verdict"
)
@each_api
@each_mode
@given(drafts, drafts, sizes)
@settings(max_examples=20, deadline=None)
def test_no_forbidden_word_of_a_reasoning_is_in_the_bytes_of_any_api(
    dialect, mode, reasoning, draft, lengths
):
    stream_events = events(bytes_of(dialect, mode, Script(draft, lengths, reasoning=reasoning)))
    reasoning = "" if dialect is COMPLETIONS else reasoning  # it has no place for it
    whole = f"{reasoning}\n{draft}" if reasoning else draft
    first = first_forbidden(whole)
    thought, text = "".join(map(thoughts, stream_events)), shown(stream_events)
    if first == len(whole):
        assert (thought, text) == (reasoning, draft)
        return
    span = next(whole[first : f.end] for f in RULEBOOK.reply(whole) if f.start == first)
    assert span in whole[:first] or not any(span in leaf for leaf in leaves(stream_events))
    assert list(logprobs(stream_events)) == []
    assert text.endswith(REVISION)
    left = text.removesuffix(REVISION)
    assert reasoning.startswith(thought)
    assert draft.startswith(left)
    assert not left or thought == reasoning
    assert len(thought) + len(left) <= first


@each_api
@each_mode
@pytest.mark.parametrize("example", FORBIDDEN)
def test_forbidden_words_in_the_arguments_of_a_call_leave_in_no_api(dialect, mode, example):
    call = ToolCall(id="c1", name="send", arguments=json.dumps({"body": example}))
    raw = bytes_of(dialect, mode, Script("One moment. ", calls=(call,)))
    assert not any(example in text for text in leaves(events(raw)))
    assert json.dumps(example)[1:-1].encode() not in raw


@pytest.mark.promise("What reviewers see", "The name and the id of a tool call are reviewed")
@each_api
@each_mode
@pytest.mark.parametrize("part", ["name", "id"])
def test_forbidden_words_in_the_name_or_id_of_a_call_leave_in_no_api(dialect, mode, part):
    words = "here_is_how_to_make_a_pipe_bomb"
    call = replace(ToolCall(id="c1", name="send", arguments="{}"), **{part: words})
    assert words.encode() not in bytes_of(dialect, mode, Script("One moment. ", calls=(call,)))


@each_api
@each_mode
def test_a_destructive_call_leaves_in_no_api(dialect, mode):
    call = ToolCall(id="c1", name="bash", arguments=json.dumps({"command": "rm -rf /home"}))
    assert b"rm -rf" not in bytes_of(dialect, mode, Script("One moment. ", calls=(call,)))


@pytest.mark.parametrize(
    "dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.__name__
)
def test_arguments_of_a_harmless_call_leave_whole(dialect):
    call = ToolCall(id="c1", name="send", arguments='{"body":"See you at eight."}')
    raw = bytes_of(dialect, StreamMode.WINDOW, Script("One moment. ", calls=(call,)))
    assert any(text == call.arguments for text in leaves(events(raw)))


def test_a_client_that_cannot_retract_gets_a_window():
    headers, _body = asyncio.run(visit(CHAT, StreamMode.SPECULATIVE, Script("Hello.")))
    assert headers[b"x-waltzrl-mode"] == b"window"
