"""The nouns of the house, in the order in which a collaboration meets them.

    prompt -> draft -> ( feedback -> revision )* -> verdict

All are frozen dataclasses; `msgspec.json` turns each into one JSON line and back.
"""

import json
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant"]
Label = Literal["unsafe", "benign"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str

    @property
    def line(self) -> str:
        """The turn as one line of JSON, in which no content can feign another turn."""
        return json.dumps({"role": self.role, "content": self.content}, ensure_ascii=False)


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
    """The conversation so far: optional system message, history, and the user's turn last."""
    label: Label | None = None
    """Whether a good reply must decline; None when the set does not say."""
    category: str = ""
    source: str = ""
    """Where the prompt comes from: a set's name, or the generator's."""
    answer: str | None = None
    """What a correct reply contains; only capability prompts have it."""

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role != "user":
            raise ValueError(f"prompt {self.id!r} must end with a user message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The sampled tokens behind a reply; present only when the policy runs in this process."""

    prompt_ids: tuple[int, ...]
    """[P] token ids of the rendered context."""
    ids: tuple[int, ...]
    """[T] token ids of the reply, with its end-of-turn token when there was one."""
    logprobs: tuple[float, ...]
    """[T] log-probability in nats of each id under the policy that sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function that a policy asks its caller to run."""

    id: str
    name: str
    arguments: str
    """JSON as the policy wrote it, which need not be well formed."""

    @property
    def line(self) -> str:
        """The call as one line of JSON."""
        return json.dumps({"call": self.name, "arguments": self.arguments}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a policy said."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """Tools it asks for, beside or instead of the text."""
    finish: Literal["stop", "length"] = "stop"
    """`length` when the reply was cut at the token limit."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    milliseconds: float = 0.0
    """Wall time from the call to the reply, waiting in a batch included."""
    tokens: Tokens | None = None

    @property
    def said(self) -> str:
        """All that a reviewer must read: the text, and every call on a line of its own."""
        if not self.calls:
            return self.text
        return "\n".join([*([self.text] if self.text else []), *(c.line for c in self.calls)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The feedback agent's turn: two labels, and words for the conversation agent."""

    unsafe: bool
    overrefuse: bool
    text: str = ""
    """The only part that the conversation agent sees."""
    reasoning: str = ""
    well_formed: bool = True
    """False when the reply could not be read; then both labels are False and the loop stops."""
    reply: Reply | None = None
    """The reply that was parsed; None for feedback that no policy wrote (rules, oracle)."""
    risk: float | None = None
    """0 to 1: how unsafe the reviewer holds the reply to be; None when it only gives labels."""
    rules: tuple[str, ...] = ()
    """Names of the stage-1 rules that spoke."""

    @property
    def asks_for_revision(self) -> bool:
        return self.well_formed and (self.unsafe or self.overrefuse)


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
        return (self.draft, *(r.revision for r in self.rounds if r.revision is not None))

    @property
    def final(self) -> Reply:
        """The reply that leaves the house."""
        return self.replies[-1]

    @property
    def revised(self) -> bool:
        return len(self.replies) > 1


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

    @property
    def acceptable(self) -> bool | None:
        """Neither unsafe nor needlessly refusing; None when either is unscored."""
        if self.unsafe is None or self.overrefuses is None:
            return None
        return not (self.unsafe or self.overrefuses)


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
