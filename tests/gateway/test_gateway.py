"""A request becomes answers, and every choice leaves one record."""

import asyncio
import time

import pytest
from msgspec import structs

from support.served_examples import BUNDLE, DOUBTFUL, OVERREFUSE, SAFE, UNREADABLE, UNSAFE, request
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import (
    Assignment,
    Bundle,
    ChatRequest,
    ReplyDetails,
    TokenLogprob,
    UpstreamReply,
)
from waltzrl.gateway.gateway import Gateway, SingleBundle
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.gateway.split import conversation_key
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Reply


class Reviews:
    """A reviewer that gives the next of its feedback."""

    def __init__(self, *feedback):
        self._feedback = iter(feedback)

    async def review(self, prompt, reply):
        return next(self._feedback)


class Broken(PolicyUpstream):
    async def complete(self, body, bearer, received=None):
        raise RequestError(502, "upstream", "it failed")


class Decisions(list):
    def record(self, served):
        self.append(served)


def bundle(reviewer, upstream):
    fields = {name: getattr(BUNDLE, name) for name in BUNDLE.__dataclass_fields__}
    return Bundle(**fields | {"reviewer": reviewer, "upstream": upstream})


def asked(work, *feedback, replies=("one", "two"), arm="", upstream=None):
    """Return what `work(gateway, request)` answers, and the records that it leaves."""
    decisions = Decisions()
    upstream = upstream or PolicyUpstream("llama", ScriptedPolicy(replies), 8)
    served = bundle(Reviews(*feedback), upstream)
    selector = SingleBundle(Assignment(served, arm, "r1" if arm else ""))
    gateway = Gateway(selector=selector, decisions=decisions)
    chat = request().chat
    body = {"model": "llama", "messages": [{"role": "user", "content": "Hi"}]}
    sent = structs.replace(request(), chat=structs.replace(chat, body=body))
    return asyncio.run(work(gateway, sent)), decisions


def choice(number=0):
    return lambda gateway, request: gateway.choice(request, number)


def test_a_record_says_who_asked_for_what_and_what_was_decided():
    answer, (served,) = asked(choice(), UNSAFE, SAFE)
    record = served.exchange
    assert (record.id, record.caller, record.api, record.model) == ("wz1", "ada", "chat", "llama")
    assert (record.bundle, record.stage, record.arm, record.release) == ("b1", 1, "", "")
    assert (record.decision, record.reason, record.mode) == ("revised", "unsafe", "whole")
    assert record.time == pytest.approx(time.time(), abs=5)
    assert record.collaboration == answer.collaboration
    assert [reply.text for reply in record.collaboration.replies] == ["one", "two"]
    assert len(served.review_milliseconds) == 2


@pytest.mark.parametrize(
    ("feedback", "decision", "reason", "finish", "text"),
    [
        ((SAFE,), "draft", "", "stop", "one"),
        ((OVERREFUSE, SAFE), "revised", "over-refusal", "stop", "two"),
        ((DOUBTFUL, DOUBTFUL), "revised", "doubtful", "stop", "two"),
        (
            (UNSAFE, UNSAFE),
            "refused",
            "unsafe",
            "content_filter",
            "Sorry, I can't help with that.",
        ),
        (
            (UNREADABLE,),
            "refused",
            "not reviewed: unreadable",
            "content_filter",
            "Sorry, I can't help with that.",
        ),
    ],
)
def test_an_answer_and_its_record_agree(feedback, decision, reason, finish, text):
    answer, (served,) = asked(choice(), *feedback)
    assert (answer.decision, answer.finish, answer.reply.text) == (decision, finish, text)
    assert (served.exchange.decision, served.exchange.reason) == (decision, reason)


@pytest.mark.parametrize(
    ("number", "arm", "name"),
    [(0, "serving", "wz1"), (1, "candidate", "wz1/2"), (0, "shadow", "wz1/shadow")],
)
def test_choices_and_shadows_have_ids_of_their_own(number, arm, name):
    _, (served,) = asked(choice(number), SAFE, arm=arm)
    assert (served.exchange.id, served.exchange.arm, served.exchange.release) == (name, arm, "r1")
    assert served.number == number


def test_a_failure_is_recorded_by_its_kind():
    decisions = Decisions()
    served = bundle(Reviews(), Broken("llama", ScriptedPolicy([]), 8))
    gateway = Gateway(selector=SingleBundle(Assignment(served)), decisions=decisions)
    with pytest.raises(RequestError, match="it failed"):
        asyncio.run(gateway.choice(request(), 0))
    (record,) = (served.exchange for served in decisions)
    assert (record.decision, record.reason, record.collaboration) == ("error", "upstream", None)


def test_a_given_draft_is_reviewed_and_only_its_revision_is_asked_of_the_upstream():
    draft = Reply(text="given", origin="given")
    answer, (served,) = asked(lambda g, r: g.review(r, draft), UNSAFE, SAFE, replies=["revised"])
    assert [reply.text for reply in answer.collaboration.replies] == ["given", "revised"]
    assert served.exchange.collaboration.draft.origin == "given"
    kept, _ = asked(lambda g, r: g.review(r, draft), SAFE, replies=[])
    assert (kept.decision, kept.reply, kept.finish, kept.raw) == ("draft", draft, "stop", None)


def test_a_revision_extends_the_clients_own_messages():
    bodies = []

    class Recording(PolicyUpstream):
        async def complete(self, body, bearer, received=None):
            bodies.append((body, bearer))
            return UpstreamReply(reply=Reply(text=f"reply {len(bodies)}"), finish="stop")

    upstream = Recording("llama", ScriptedPolicy([]), 8)
    answer, _ = asked(choice(), UNSAFE, SAFE, upstream=upstream)
    (first, bearer), (second, _) = bodies
    assert first == {"model": "llama", "messages": [{"role": "user", "content": "Hi"}]}
    assert bearer == "xyzzy"
    assert second["messages"][:2] == [
        *first["messages"],
        {"role": "assistant", "content": "reply 1"},
    ]
    assert second["messages"][2]["role"] == "user"
    assert "xyzzy advice" in second["messages"][2]["content"]
    assert answer.reply.text == "reply 2"


def test_a_conversation_without_a_user_has_a_key_too():
    prompt = request().chat.prompt
    tool = type(prompt)(id="wz2", messages=(Message(role="tool", content="sun"),))
    chat = ChatRequest(api="chat", prompt=tool, body={}, model="llama")
    assert conversation_key(structs.replace(request(), chat=chat)) == "ada sun"


def details(text, cached):
    token = TokenLogprob(token=text, logprob=-0.5)
    usage = {"prompt_tokens_details": {"cached_tokens": cached}}
    return ReplyDetails(created=cached, logprobs=(token,), usage=usage)


class Detailed(PolicyUpstream):
    async def complete(self, body, bearer, received=None):
        draft = len(body["messages"]) == 1
        text, cached = ("one", 3) if draft else ("two", 4)
        reply = Reply(text=text)
        return UpstreamReply(reply=reply, finish="stop", details=details(text, cached))


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Log-probabilities are returned only with the text whose tokens they are; the alternatives in "
    "`top_logprobs` are single tokens that nobody reviewed",
)
@pytest.mark.parametrize(
    ("feedback", "text", "created", "cached"),
    [((SAFE,), "one", 3, 3), ((UNSAFE, SAFE), "two", 4, 7), ((UNSAFE, UNSAFE), None, 4, 7)],
)
def test_an_answer_has_the_details_of_its_own_text(feedback, text, created, cached):
    upstream = Detailed("llama", ScriptedPolicy([]), 8)
    answer, _ = asked(choice(), *feedback, upstream=upstream)
    tokens = answer.details.logprobs
    assert (tokens[0].token if tokens else None) == text
    assert answer.details.created == created
    assert answer.details.usage == {"prompt_tokens_details": {"cached_tokens": cached}}


def test_a_reply_that_the_client_began_is_one_turn_with_the_draft_that_is_revised():
    bodies = []

    class Noting(PolicyUpstream):
        async def complete(self, body, bearer, received=None):
            bodies.append(body["messages"])
            return await super().complete(body, bearer, received)

    def work(gateway, sent):
        began = {"role": "assistant", "content": "Sure, ", "prefix": True}
        body = {**sent.chat.body, "messages": [*sent.chat.body["messages"], began]}
        chat = structs.replace(sent.chat, body=body)
        return gateway.choice(structs.replace(sent, chat=chat), 0)

    upstream = Noting("llama", ScriptedPolicy(["one", "two"]), 8)
    answer, _ = asked(work, UNSAFE, SAFE, upstream=upstream)
    assert answer.reply.text == "two"
    assert [turn["role"] for turn in bodies[0]] == ["user", "assistant"]
    assert [turn["role"] for turn in bodies[1]] == ["user", "assistant", "user"]
    assert bodies[1][1] == {"role": "assistant", "content": "Sure, one"}
