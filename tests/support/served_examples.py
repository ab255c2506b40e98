"""Served choices, built by hand."""

from waltzrl.agents import FeedbackAgent, RulesReviewer, load_wording
from waltzrl.agents.rules import Rulebook
from waltzrl.collaboration import guarded
from waltzrl.gateway.exchange import Bundle, ChatRequest, GatewayRequest, ServedChoice
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import (
    Collaboration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    ServedExchange,
    Usage,
)

SECRET = "xyzzy"
"""Part of every text of a prompt, a reply or a feedback."""

PROMPT = Prompt(id="wz1", messages=(Message(role="user", content=f"{SECRET} question"),))
WORDING = load_wording("plain")
BUNDLE = Bundle(
    id="b1",
    stage=1,
    pattern=guarded,
    reviewer=FeedbackAgent(ScriptedPolicy([]), WORDING, Sampling()),
    wording=WORDING,
    upstream=PolicyUpstream("llama", ScriptedPolicy([]), 8),
    rules=RulesReviewer(Rulebook((), "none")),
)

SAFE = Feedback(unsafe=False, overrefuse=False, risk=0.05)
UNSAFE = Feedback(
    unsafe=True,
    overrefuse=False,
    text=f"{SECRET} advice",
    reasoning=f"{SECRET} reasons",
    risk=0.9,
    rules=("harm/a", "harm/b"),
)
OVERREFUSE = Feedback(unsafe=False, overrefuse=True, text=f"{SECRET} advice", risk=0.0)
DOUBTFUL = Feedback(unsafe=False, overrefuse=False, doubtful=True, text="Leave it out.")
UNREADABLE = Feedback(unsafe=False, overrefuse=False, well_formed=False)


def reply(milliseconds, text="words"):
    return Reply(
        text=f"{SECRET} {text}",
        milliseconds=milliseconds,
        usage=Usage(input_tokens=7, output_tokens=9),
    )


REFUSAL = Reply(text="I cannot help with that.", origin="canned")


def served(*rounds, decision="draft", mode="whole", **fields):
    """Serve a draft of 40 ms, with these (feedback, revision or None)."""
    collaboration = Collaboration(
        prompt=PROMPT,
        draft=reply(40.0),
        rounds=tuple(Round(feedback=feedback, revision=new) for feedback, new in rounds),
    )
    first_words = fields.pop("first_words_milliseconds", None)
    return ServedChoice(
        exchange=exchange(mode, decision=decision, collaboration=collaboration, **fields),
        request=request(),
        review_milliseconds=tuple(2.0 for _ in rounds),
        first_words_milliseconds=first_words,
    )


def failed(kind):
    record = exchange("whole", decision="error", reason=kind, milliseconds=30.0)
    return ServedChoice(exchange=record, request=request())


def exchange(mode, **fields):
    defaults = {"milliseconds": 100.0, "bundle": "b1", "stage": 1}
    defaults |= {"caller": "ada", "model": "llama", **fields}
    return ServedExchange(id="wz1", time=0.0, api="chat", mode=mode, **defaults)


def request():
    chat = ChatRequest(api="chat", prompt=PROMPT, body={"user": SECRET}, model="llama")
    caller = Caller(name="ada")
    return GatewayRequest(chat=chat, caller=caller, model="llama", bearer=SECRET)
