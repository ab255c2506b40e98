"""The records that every package shares, in the order in which a collaboration meets them.

    prompt -> draft -> ( feedback -> revision )* -> verdict

All are frozen; `msgspec.json` turns each into one JSON line and back.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
PromptLabel = Literal["unsafe", "benign", "mixed"]
"""The label of a prompt: a good reply declines all of it, none of it, or a part."""
Origin = Literal["policy", "given", "canned"]
"""The author of a reply: a policy, the caller who had it already, or we, by a fixed text."""
Decision = Literal["draft", "revised", "refused"]
"""The kind of reply returned: the draft as it was, a revision, or a canned refusal in its place."""
Media = Literal["image", "audio", "video", "file", "other"]
"""Parts of a turn that are not text."""
FeedbackAction = Literal["observe", "revise", "refuse"]
"""What a finding leads to: it is only recorded, it asks for a revision, or the reply is refused."""
CallKind = Literal["function", "custom", "function_call"]
"""The way in which a chat spells a call: a function with arguments, a custom tool whose input is
free text, or a function in the older field `function_call`, which has no id."""
Arm = Literal["", "serving", "candidate", "shadow"]
"""The side of a release that answered; empty when none was under way. Nobody sees a shadow's
reply."""

OTHER_LANGUAGE = "not for this language"
"""How `Feedback.failure` begins where a reviewer does not read the language of the request."""
CANNED_REFUSAL = "Sorry, I can't help with that."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that a policy asks its caller to run."""

    id: str
    name: str
    arguments: str
    """JSON as the policy wrote it, which need not be well formed; any text of a custom tool."""
    kind: CallKind = "function"

    @property
    def line(self) -> str:
        """The call as one line of JSON."""
        return json.dumps({"call": self.name, "arguments": self.arguments}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    """Tools that an assistant's turn asks for."""
    call_id: str = ""
    """Id of the call that a tool's turn answers; empty where the API has none."""
    images: tuple[str, ...] = ()
    """URLs of images that a policy with vision sees after the text."""

    @property
    def full_text(self) -> str:
        """All that the turn says: its text, and every call on a line of its own."""
        return _with_calls(self.content, self.calls)

    @property
    def line(self) -> str:
        """The turn as one line of JSON, in which no content can feign another turn."""
        return json.dumps({"role": self.role, "content": self.full_text}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the conversation agent is asked, and what the data set knows about it.

    Example:
        Prompt(id="17", messages=(Message(role="user", content="How do I kill a process?"),),
               label="benign", category="cybersecurity_education", source="generator")
    """

    id: str
    """Unique within its set; names the prompt in every log."""
    messages: tuple[Message, ...]
    """The conversation so far; the turn that must be answered, a user's or a tool's, is last."""
    label: PromptLabel | None = None
    """What a good reply declines; None when the set does not say."""
    category: str = ""
    source: str = ""
    """The prompt's origin: a set's name, or the generator's."""
    cluster: str = ""
    """What it shares with other prompts, such as a goal or a topic: rates count these together."""
    answer: str | None = None
    """What a correct reply contains; only capability prompts have it."""
    context: tuple[Message, ...] = ()
    """What else steers a reply, for the reviewers: tools and formats as the system's turns,
    documents as a tool's, the beginning of a reply as the assistant's."""
    trusted: bool = False
    """The system's turns are an operator's, not a tenant's: the rules do not search them."""
    unseen: tuple[Media, ...] = ()
    """Kinds of parts that the turns have and no reviewer sees."""
    images: tuple[str, ...] = ()
    """URLs, also of the kind `data:`, of images for a reviewer with vision; never stored."""

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role not in ("user", "tool"):
            raise ValueError(f"prompt {self.id!r} must end with a user message or a tool message")

    @property
    def has_harmful_part(self) -> bool:
        """Whether a reply can be unsafe: the prompt counts for the attack success rate."""
        return self.label in {"unsafe", "mixed"}

    @property
    def has_harmless_part(self) -> bool:
        """Whether a refusal is an over-refusal: the prompt counts for their rate."""
        return self.label in {"benign", "mixed"}

    @property
    def request(self) -> str:
        """The last turn's text: what must be answered."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The sampled tokens behind a reply; present only of policies that can be trained."""

    prompt_ids: tuple[int, ...]
    """[P] token ids of the rendered context."""
    ids: tuple[int, ...]
    """[T] token ids of the reply, with its end-of-turn token when there was one."""
    logprobs: tuple[float, ...]
    """[T] log-probability in nats of each id under the policy that sampled it."""
    version: str = ""
    """The server's name for the weights that sampled it; empty where they are in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one reply, or several together, cost in tokens."""

    input_tokens: int
    """Tokens that the policy read."""
    output_tokens: int
    """Tokens that the policy wrote."""
    model: str = ""
    """Id of the model as its server names it; empty when it does not, or for several models."""
    estimated: bool = False
    """The server did not count; the numbers come from `estimate_usage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a policy replied, or what was put in the place of its reply."""

    text: str
    reasoning: str = ""
    """Text that a reasoning model wrote before the reply, where its server returns it."""
    calls: tuple[ToolCall, ...] = ()
    """Tools it asks for, beside or instead of the text."""
    finish: Literal["stop", "length"] = "stop"
    """`length` when the reply was cut at the token limit."""
    origin: Origin = "policy"
    usage: Usage | None = None
    """The tokens read and written; None when unknown, and where no policy wrote the reply."""
    milliseconds: float = 0.0
    """Wall time from the call to the reply, waiting in a batch included."""
    tokens: Tokens | None = None
    label_probabilities: tuple[float, ...] = ()
    """[labels] the probability that each label of a format is true; empty where unknown."""

    @property
    def full_text(self) -> str:
        """The text, and every call on a line of its own."""
        return _with_calls(self.text, self.calls)

    @property
    def reviewed_text(self) -> str:
        """All that a reviewer must read: the reasoning, the text and every call."""
        return f"{self.reasoning}\n{self.full_text}" if self.reasoning else self.full_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The feedback agent's turn: two labels, and advice for the conversation agent."""

    unsafe: bool
    overrefuse: bool
    doubtful: bool = False
    """Whether the reply is in doubt though neither label holds: a draft is worth a revision, and a
    revision is returned."""
    text: str = ""
    """The only part that the conversation agent sees."""
    reasoning: str = ""
    well_formed: bool = True
    """Whether the reply could be read; if not, both labels are False and the loop stops."""
    reply: Reply | None = None
    """The reply that was parsed; None for feedback that no policy wrote (rules, oracle)."""
    risk: float | None = None
    """0 to 1: how unsafe the reviewer holds the reply to be; None when it only gives labels."""
    model_risk: float | None = None
    """0 to 1: the part of `risk` that is a model's, its probability of the label unsafe."""
    rules_risk: float | None = None
    """0 to 1: the part of `risk` that is the rules'."""
    overrefusal_probability: float | None = None
    """0 to 1: a model's probability of the label overrefuse; None when it only gives labels."""
    category: str = ""
    """Subject of an unsafe reply, a category of the rules; empty when none was named."""
    rules: tuple[str, ...] = ()
    """Names of the stage-1 rules that matched."""
    failure: str = ""
    """The reason why no model reviewed the reply, such as `timeout`, or why its review may be worth
    nothing, `not for this language: de`; empty when one did or none was asked."""
    action: FeedbackAction = "revise"
    """What the operator wants done about findings of this category."""

    @property
    def flags(self) -> bool:
        """Whether the reviewer finds anything wrong, whatever is done about it."""
        return self.well_formed and (self.unsafe or self.overrefuse or self.doubtful)

    @property
    def asks_for_revision(self) -> bool:
        return self.flags and self.action == "revise"

    @property
    def labels(self) -> tuple[str, ...]:
        """What it calls the reply, in words; `safe` where nothing is wrong."""
        holds = {
            "unreadable": not self.well_formed,
            "unsafe": self.unsafe,
            "over-refusal": self.overrefuse,
            "doubtful": self.doubtful,
        }
        return tuple(label for label, is_true in holds.items() if is_true) or ("safe",)

    @property
    def scores(self) -> dict[str, float]:
        """What `risk` is made of, and the probability of an over-refusal, as far as known."""
        scores = {
            "model": self.model_risk,
            "rules": self.rules_risk,
            "over-refusal": self.overrefusal_probability,
        }
        return {name: score for name, score in scores.items() if score is not None}

    @property
    def refuses(self) -> bool:
        """Whether the reply may not be returned as it is."""
        return self.unsafe and self.action != "observe"

    def after(self, earlier: Sequence["Round"]) -> "Feedback":
        """The feedback as it counts after earlier rounds of the same collaboration.

        A refusal in the place of a reply that was called unsafe is a success: it is no
        over-refusal, whatever the feedback on it says. A revision that is only in doubt needs no
        further one.
        """
        if self.overrefuse and any(round_.feedback.unsafe for round_ in earlier):
            return replace(self, overrefuse=False)
        return replace(self, doubtful=False) if self.doubtful and earlier else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One feedback and, when it asked for one, the revision."""

    feedback: Feedback
    revision: Reply | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaboration:
    """Everything that was said about one prompt."""

    prompt: Prompt
    draft: Reply
    rounds: tuple[Round, ...] = ()

    @property
    def replies(self) -> tuple[Reply, ...]:
        """The draft and every revision, in order."""
        revisions = [r.revision for r in self.rounds if r.revision is not None]
        return (self.draft, *revisions)

    @property
    def last_revision(self) -> Reply | None:
        """None if the draft was not revised."""
        for round_ in reversed(self.rounds):
            if round_.revision is not None:
                return round_.revision
        return None

    @property
    def final(self) -> Reply:
        """The reply that is returned to the user."""
        return self.last_revision or self.draft

    @property
    def revised(self) -> bool:
        return self.last_revision is not None

    @property
    def decision(self) -> Decision:
        revision = self.last_revision
        if revision is None:
            return "draft"
        return "refused" if revision.origin == "canned" else "revised"

    @property
    def usage(self) -> Usage | None:
        """Tokens of all policies together; None when no reply's usage is known."""
        reviews = [r.feedback.reply for r in self.rounds if r.feedback.reply is not None]
        return total_usage([*self.replies, *reviews])


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """What the model of a judge answered to one request."""

    text: str
    """The answer as the model wrote it."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """0 to 1, by the label of the verdict that it is true; empty where the model tells none."""
    revision: str = ""
    """Revision of the model: what its server calls it, or the hash of local weights."""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judge's labels for one reply; None means unscored, never a guess."""

    judge: str
    """Name of the judge, and the hash of what decides (rules, weights, prompts)."""
    unsafe: bool | None = None
    """The reply gives what a harmful prompt asked for."""
    refuses: bool | None = None
    overrefuses: bool | None = None
    """The reply refuses a prompt in which nothing is wrong."""
    non_answer: bool | None = None
    """The reply to a prompt in which nothing is wrong neither refuses nor answers: it is empty,
    repeats itself or the prompt, is in another language or, by a judge with a model that is asked
    so, off topic. None when the judge does not look."""
    prompt_harmful: bool | None = None
    """The judge's own answer; None also when it was not asked."""
    harm: float | None = None
    """0 to 1: how harmful the reply is, by a judge that grades; `unsafe` is then whether this
    reaches the judge's threshold. None from a judge that only gives labels."""
    answers: tuple[JudgeAnswer, ...] = ()
    """What the labels were read from, in the order of the questions; empty without a model."""

    @property
    def acceptable(self) -> bool | None:
        """Not unsafe, no over-refusal, no non-answer; None when one of the first two is unscored.

        A judge that does not look for non-answers finds none.
        """
        if self.unsafe is None or self.overrefuses is None:
            return None
        return not (self.unsafe or self.overrefuses or self.non_answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCollaboration:
    """A collaboration with one verdict per reply: a rollout in training, a row in evaluation."""

    collaboration: Collaboration
    verdicts: tuple[Verdict, ...] = field(default=())
    """[replies] in the order of `collaboration.replies`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A collaboration whose last turn is an example to imitate.

    The last turn is the last round's revision, or its feedback, or, without rounds, the draft.
    """

    collaboration: Collaboration


class ServedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that a gateway answered, or failed to; all records of it are made from this."""

    id: str
    """Id of the request; of a request's second choice `ID/2`, and of a shadow's `ID/shadow`."""
    client_request_id: str = ""
    """The client's own id of the request, from `x-request-id`; empty without a valid one. It need
    not be unique."""
    trace_id: str = ""
    """Id of the client's W3C trace context; empty without one."""
    time: float
    """Seconds since the epoch, when the request came."""
    # Audit log and memory have it by this name, by which they are searched.
    caller: str = msgspec.field(default="", name="who")
    """Name of the client's API key."""
    subject: str = ""
    """The client's own name for its user; kept only as a digest."""
    may_learn: bool | None = None
    """Whether the agents may learn from it; None when neither client nor key says."""
    api: str = ""
    model: str = ""
    """The model that the client asked for; `other` if that may be something else than a name."""
    mode: str = ""
    """The way in which the reply left: whole, or streamed in one of four modes."""
    bundle: str = ""
    """Id of the rules, agents and thresholds that served."""
    policy: str = ""
    """Name of the policy that served; empty for the gateway's own settings."""
    stage: int = 0
    arm: Arm = ""
    release: str = ""
    """Id of the release under way."""
    decision: Decision | Literal["error"] = "error"
    reason: str = ""
    """The reason for the outcome, in words that hold no content; of an error its kind."""
    milliseconds: float = 0.0
    """Wall time of the choice."""
    usd: float | None = None
    """The cost of all its tokens; None when a price is unknown, or costs are not recorded."""
    probe: bool = False
    """An operator's own check: it is audited and charged, but is no traffic. The memory, and all
    that is counted, judged or learned, leave it out."""
    collaboration: Collaboration | None = None
    """What was said; None when there was no answer."""
    unfinished: Collaboration | None = None
    """What had been said when an error came or the client left; not kept in the memory."""
    sent: str = ""
    """The part of `unfinished` that had been released to the client."""

    @property
    def said(self) -> Collaboration | None:
        return self.collaboration or self.unfinished

    @property
    def own_milliseconds(self) -> float | None:
        """The part of `milliseconds` that the gateway took itself, reviews included: without the
        model's draft and revisions. None when there was no answer.
        """
        if self.collaboration is None:
            return None
        model = [r.milliseconds for r in self.collaboration.replies if r.origin == "policy"]
        return max(0.0, self.milliseconds - sum(model))


def total_usage(replies: Iterable[Reply]) -> Usage | None:
    """Add up the usage of replies; None when none is known, estimated when any was."""
    known = [reply.usage for reply in replies if reply.usage is not None]
    if len(known) < 2:
        return known[0] if known else None
    models = {usage.model for usage in known}
    return Usage(
        input_tokens=sum([usage.input_tokens for usage in known]),
        output_tokens=sum([usage.output_tokens for usage in known]),
        model=models.pop() if len(models) == 1 else "",
        estimated=any(usage.estimated for usage in known),
    )


CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English text that holds for the tokenizers of today's models."""


def estimate_usage(prompt: str, reply: str, model: str) -> Usage:
    """Estimate the tokens of a reply without its tokenizer: a quarter of the characters."""
    return Usage(
        input_tokens=-(-len(prompt) // CHARACTERS_PER_TOKEN),
        output_tokens=-(-len(reply) // CHARACTERS_PER_TOKEN),
        model=model,
        estimated=True,
    )


def estimate_reply(prompt: Prompt, reply: Reply, model: str) -> Usage:
    """Estimate the tokens of a reply that its server did not count, those of its reasoning too."""
    asked = "".join([turn.full_text for turn in prompt.messages])
    return estimate_usage(asked, reply.reviewed_text, model)


def _with_calls(text: str, calls: tuple[ToolCall, ...]) -> str:
    if not calls:
        return text
    return "\n".join([*([text] if text else []), *(call.line for call in calls)])
