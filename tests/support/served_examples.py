"""What was served, built by hand."""

from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.collaboration import guarded
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round
from waltzrl.serving.gateway import Assignment, Bundle, ChoiceRequest, GatewayRequest, ServedChoice
from waltzrl.serving.keys import Caller
from waltzrl.serving.messages_in_transit import ApiRequest
from waltzrl.serving.upstream import PolicyUpstream

SECRET = "xyzzy"
"""Stands in every text that somebody wrote."""

PROMPT = Prompt(id="wz1", messages=(Message(role="user", content=f"{SECRET} question"),))
WORDING = load_wording("plain")
BUNDLE = Bundle(
    id="b1",
    stage=1,
    pattern=guarded,
    reviewer=FeedbackAgent(ScriptedPolicy([]), WORDING, Sampling()),
    wording=WORDING,
    upstream=PolicyUpstream("llama", ScriptedPolicy([]), 8),
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
UNREADABLE = Feedback(unsafe=False, overrefuse=False, well_formed=False)


def reply(milliseconds, text="words"):
    return Reply(
        text=f"{SECRET} {text}", milliseconds=milliseconds, prompt_tokens=7, reply_tokens=9
    )


REFUSAL = Reply(text="I cannot help with that.")


def served(*rounds, decision="draft", mode="whole", **fields):
    """Serve a draft of 40 ms, with these (feedback, revision or None)."""
    said = Collaboration(
        prompt=PROMPT,
        draft=reply(40.0),
        rounds=tuple(Round(feedback=feedback, revision=new) for feedback, new in rounds),
    )
    return ServedChoice(
        choice=choice(mode),
        decision=decision,
        collaboration=said,
        review_milliseconds=tuple(2.0 for _ in rounds),
        **{"milliseconds": 100.0, **fields},
    )


def failed(kind):
    return ServedChoice(choice=choice("whole"), decision="error", error=kind, milliseconds=30.0)


def choice(mode):
    return ChoiceRequest(request=request(mode), assigned=Assignment(BUNDLE))


def request(mode):
    exchange = ApiRequest(api="chat", prompt=PROMPT, body={"user": SECRET}, model="llama")
    return GatewayRequest(exchange=exchange, caller=Caller(name="ada"), mode=mode, bearer=SECRET)
