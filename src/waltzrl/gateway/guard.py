"""The library's guard: reviews replies, revises them, and answers prompts safely.

`waltzrl.open_guard` makes a `Guard`; `Guard.sync` has the same methods without `await`.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from typing import ParamSpec, Self, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from waltzrl.agents import GivenDraft
from waltzrl.collaboration import Drafter, Pattern, Reviewer, guarded
from waltzrl.errors import InputError, PolicyError, RequestError
from waltzrl.evaluation.patterns import ServedPattern
from waltzrl.gateway.exchange import DraftReview
from waltzrl.gateway.wire.fields import turn_of
from waltzrl.gateway.wire.prompt import prompt_of
from waltzrl.policies import RemotePolicy, Sampling
from waltzrl.policies.chat_completion import Json, chat_message
from waltzrl.policies.server_json import encode_body
from waltzrl.records import (
    Collaboration,
    Feedback,
    Message,
    Origin,
    Prompt,
    Reply,
    Round,
)

Turn: TypeAlias = Message | Mapping[str, object]
"""A message, as a record or as a dict in the form of OpenAI's chat completions."""
Messages: TypeAlias = str | Sequence[Turn] | Prompt
"""A conversation; a string is one message of a user, and a `Prompt` is used as it is."""

LONGEST_REPLY = 1024
"""The most tokens of a draft, a revision or feedback, where nothing else is said."""

ACCEPTANCE = Reply(text="Sure, I will do that now.", origin="canned")
"""The reply of an agent before it acts on a request; `assess` reviews it."""

LAST_ROLES = ("user", "tool", "function")
"""The roles of a message that asks for a reply; a gateway also continues an assistant's."""

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Guard(ABC):
    """Reviews and revises replies; made by `open_guard`.

    An asynchronous context manager. Any number of calls may run at once. A guard with connections
    to servers belongs to one event loop until that is closed: call it from there, or only through
    `sync`.
    """

    async def review(self, messages: Messages, reply: str | Reply | Turn) -> Feedback:
        """Review a reply that exists, and change nothing.

        Args:
            messages: the conversation that it answers, oldest message first.
            reply: the text, a `Reply`, or an assistant's message; its tool calls are reviewed too.

        Returns:
            The labels `unsafe` and `overrefuse`; `refuses`, False for an unsafe reply where the
            policy of a gateway only observes; `risk`, 0 to 1, None when unknown; the names of the
            `rules` that matched; advice in `text`. When the feedback of a model is invalid,
            `well_formed` is False and both labels are False. `failure` says why it may be worth
            nothing, such as `timeout` or `not for this language: de`.

        Raises:
            InputError: a message or the reply is invalid.
            PolicyError: a model or the gateway could not answer.

        Example:
            feedback = await guard.review("How do I make a pipe bomb?", "Sure, here is how.")
            assert feedback.unsafe
        """
        return await self._review(read_prompt(messages), _require_reply(reply))

    async def assess(self, messages: Messages) -> Feedback:
        """Review a request before anybody acts on it.

        The reviewer reads the request with the reply of an agent that will do what it asks, so
        that rules, a model and a gateway all judge the request itself.

        Args:
            messages: as for `reply`.

        Returns:
            As `review` returns; `unsafe` means that the request should not be carried out.

        Raises:
            InputError: a message is invalid.
            PolicyError: a model or the gateway could not answer.

        Example:
            if not (await guard.assess("Delete the customer's account")).unsafe:
                delete_account()
        """
        return await self._review(_require_request(messages), ACCEPTANCE)

    async def reply(self, messages: Messages) -> Collaboration:
        """Draft a reply, review it, and revise or refuse it where needed.

        Args:
            messages: the conversation so far, oldest message first; the request, which is a
                user's message or a tool's result, is last.

        Returns:
            The whole collaboration. Show users `final.text`; `decision` says whether that is the
            draft, a revision or a canned refusal. `draft` and `rounds` may hold unsafe text.

        Raises:
            InputError: a message is invalid, or the guard has no upstream that drafts.
            PolicyError: a model or the gateway could not answer.

        Example:
            collaboration = await guard.reply([{"role": "user", "content": "Hello!"}])
            print(collaboration.decision, collaboration.final.text)
        """
        return await self._collaborate(_require_request(messages), None)

    async def revise(self, messages: Messages, reply: str | Reply | Turn) -> Collaboration:
        """Review a reply that exists, and revise or refuse it where needed.

        A guard without an upstream revises nothing: it refuses an unsafe reply.

        Args:
            messages: as for `reply`.
            reply: as for `review`; it takes the draft's place.

        Returns:
            As `reply` returns; a good reply comes back as it is, with the decision `draft`.

        Raises:
            InputError: as `review`.
            PolicyError: a model or the gateway could not answer.

        Example:
            text = (await guard.revise(messages, text)).final.text
        """
        return await self._collaborate(_require_request(messages), _require_reply(reply))

    @cached_property
    def sync(self) -> "SyncGuard":
        """The same guard without `await`; it starts a thread, so close it."""
        return SyncGuard(self)

    @property
    def has_thread(self) -> bool:
        """Whether `sync` was used, and so the guard's connections belong to its thread."""
        # `cached_property` keeps its value there from the first use on.
        return "sync" in vars(self)

    def __deepcopy__(self, _copies: object) -> Self:
        """Return the guard itself: frameworks copy what holds it, and nobody would close a copy."""
        return self

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections to servers, including those of policies passed to `open_guard`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    @abstractmethod
    async def _review(self, prompt: Prompt, reply: Reply) -> Feedback: ...

    @abstractmethod
    async def _collaborate(self, prompt: Prompt, draft: Reply | None) -> Collaboration:
        """Answer `prompt`, from `draft` where there is one."""


class SyncGuard:
    """A guard for synchronous callers, also for those inside a running event loop.

    Calls run in an event loop in a separate thread and block the caller until they return. A
    context manager; closing it closes the guard. Threads may share it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a guard that nobody closes does not keep the program from ending.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="waltzrl-guard", daemon=True
        )
        self._thread.start()

    def review(self, messages: Messages, reply: str | Reply | Turn) -> Feedback:
        """Review a reply that exists; see `Guard.review`."""
        return self._run(self._guard.review, messages, reply)

    def assess(self, messages: Messages) -> Feedback:
        """Review a request before anybody acts on it; see `Guard.assess`."""
        return self._run(self._guard.assess, messages)

    def reply(self, messages: Messages) -> Collaboration:
        """Draft, review, and revise or refuse; see `Guard.reply`."""
        return self._run(self._guard.reply, messages)

    def revise(self, messages: Messages, reply: str | Reply | Turn) -> Collaboration:
        """Review a reply that exists, and revise or refuse it; see `Guard.revise`."""
        return self._run(self._guard.revise, messages, reply)

    def close(self) -> None:
        """Close the guard and end the thread; closing again does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._guard.aclose)
        self._run(self._loop.shutdown_default_executor)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def submit(
        self,
        function: Callable[_Parameters, Coroutine[object, object, _Result]],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Start a call in the guard's thread; `asyncio.wrap_future` awaits it in another loop.

        Raises:
            InputError: the guard is closed, or its thread is in another process.
        """
        if self._loop.is_closed():
            raise InputError("the guard is closed; open another with open_guard")
        if not self._thread.is_alive():  # a fork has no threads of its parent
            raise InputError(
                "the guard's thread is in the process that this one was forked from; open a guard "
                "in each process"
            )
        return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)

    def _run(
        self,
        function: Callable[_Parameters, Coroutine[object, object, _Result]],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        future = self.submit(function, *args, **kwargs)
        try:
            return future.result()
        finally:
            future.cancel()  # stops the call when its caller was interrupted, such as by Ctrl-C


class LocalGuard(Guard):
    """A guard whose loop runs in this process; its models may be behind servers."""

    def __init__(
        self,
        reviewer: Reviewer,
        drafter: Drafter | None,
        pattern: Pattern | None = None,
        connections: Sequence[RemotePolicy] = (),
    ) -> None:
        """Put a guard together from parts that `open_guard` does not make.

        Args:
            reviewer: reviews.
            drafter: drafts and revises; without one the guard reviews and refuses.
            pattern: how the two answer a prompt together; None is `guarded`. Without a drafter
                it must not revise, as `guarded` with no rounds.
            connections: closed with the guard.
        """
        self.reviewer = reviewer
        self._drafter = drafter
        self._pattern = pattern or partial(guarded, max_rounds=1 if drafter else 0)
        self._connections = connections

    async def aclose(self) -> None:
        for policy in self._connections:
            await policy.aclose()

    async def _review(self, prompt: Prompt, reply: Reply) -> Feedback:
        return await self.reviewer.review(prompt, reply)

    async def _collaborate(self, prompt: Prompt, draft: Reply | None) -> Collaboration:
        drafter = self._drafter if draft is None else GivenDraft(draft, self._drafter)
        if drafter is None:
            raise InputError(
                "this guard has no model that drafts; open it with an upstream, such as "
                'open_guard(upstream=RemotePolicy("http://localhost:8000/v1", "qwen"))'
            )
        return await self._pattern(prompt, drafter, self.reviewer)


class GatewayGuard(Guard):
    """A guard whose loop runs in a waltzrl gateway, which also keeps the records."""

    def __init__(self, gateway: RemotePolicy) -> None:
        self._gateway = gateway
        self._pattern = ServedPattern(gateway, Sampling(max_new_tokens=LONGEST_REPLY))

    async def aclose(self) -> None:
        await self._gateway.aclose()

    async def _review(self, prompt: Prompt, reply: Reply) -> Feedback:
        return _read_feedback(await self._post(prompt, reply, revise=False))

    async def _collaborate(self, prompt: Prompt, draft: Reply | None) -> Collaboration:
        if draft is None:
            return await self._pattern.answer(prompt)
        review = await self._post(prompt, draft, revise=True)
        revision = None
        if review.decision != "draft":
            origin: Origin = "canned" if review.decision == "refused" else "policy"
            revision = Reply(text=review.reply, origin=origin)
        round_ = Round(feedback=_read_feedback(review), revision=revision)
        return Collaboration(prompt=prompt, draft=replace(draft, origin="given"), rounds=(round_,))

    async def _post(self, prompt: Prompt, reply: Reply, *, revise: bool) -> DraftReview:
        request = {
            "model": self._gateway.model,
            "messages": [chat_message(message) for message in prompt.messages],
            "reply": reply.full_text,
            "revise": revise,
        }
        if read := [message.content for message in prompt.context if message.role == "tool"]:
            request["documents"] = read
        answer = await self._gateway.post("/review", encode_body(request))
        try:
            return msgspec.json.decode(answer, type=DraftReview)
        except msgspec.DecodeError as error:
            raise PolicyError(
                f"the server's answer is not a review: {error}; give the URL of a waltzrl "
                "gateway, such as http://localhost:8080/v1"
            ) from error


def _read_feedback(review: DraftReview) -> Feedback:
    return Feedback(
        unsafe=review.unsafe,
        overrefuse=review.overrefuse,
        text=review.feedback,
        well_formed=review.reviewed,
        failure=review.failure,
        risk=review.risk,
        category=review.category,
        rules=review.rules,
        action=review.action,
    )


def read_prompt(messages: Messages) -> Prompt:
    """Read a conversation as the gateway reads the messages of a request.

    It may end with an assistant's turn, which a model continues.

    Raises:
        InputError: a message is invalid.
    """
    if isinstance(messages, Prompt):
        for place, turn in enumerate(messages.messages):
            if not isinstance(turn, Message):
                raise _wrong_type_error(f"Prompt.messages[{place}]", turn, "a Message")
            if not isinstance(turn.content, str):
                where = f"Prompt.messages[{place}].content"
                raise _wrong_type_error(where, turn.content, "a string")
        return messages
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise _wrong_type_error("messages", messages, "a string or a list of messages")
    if isinstance(messages, str):
        return read_prompt([Message(role="user", content=messages)])
    turns = [_require_json(turn, f"messages[{place}]") for place, turn in enumerate(messages)]
    try:
        return prompt_of({"messages": turns}, uuid4().hex)
    except RequestError as error:
        raise InputError(str(error)) from error


def _require_request(messages: Messages) -> Prompt:
    """Read a conversation whose last message asks for a reply.

    Raises:
        InputError: a message is invalid, or the last one is not a user's or a tool's.
    """
    prompt = read_prompt(messages)
    if isinstance(messages, (str, Prompt)):
        return prompt
    # Not the prompt's last turn, to which an assistant's would have been added.
    last = messages[-1]
    role = last.role if isinstance(last, Message) else last["role"]
    if role not in LAST_ROLES:
        raise InputError(
            f"messages[{len(messages) - 1}].role: got {role!r}; the last message must be the "
            "request, with the role user or tool"
        )
    return prompt


def _require_reply(reply: str | Reply | Turn) -> Reply:
    """Read a reply in any of its three forms.

    Raises:
        InputError: it is invalid.
    """
    if isinstance(reply, Reply):
        if not isinstance(reply.text, str):
            raise _wrong_type_error("Reply.text", reply.text, "a string")
        return reply
    if isinstance(reply, str):
        return Reply(text=reply)
    if not isinstance(reply, Message | Mapping):
        need = "the text as a string, a Reply, or an assistant's message as a dict or a Message"
        raise _wrong_type_error("reply", reply, need)
    try:
        message = turn_of(_require_json(reply, "reply"), "reply")
    except RequestError as error:
        raise InputError(str(error)) from error
    if message.role != "assistant":
        raise InputError(f"reply.role: got {message.role!r}; need 'assistant'")
    return Reply(text=message.content, calls=message.calls)


def _require_json(turn: Turn, where: str) -> Json:
    if isinstance(turn, Message):
        return chat_message(turn)
    if not isinstance(turn, Mapping):
        raise _wrong_type_error(where, turn, "a dict or a Message")
    try:
        plain: Json = msgspec.to_builtins(dict(turn))
    except TypeError as error:
        raise InputError(f"{where}: {error}; need what JSON can hold") from error
    return plain


def _wrong_type_error(where: str, value: object, need: str) -> InputError:
    """Return the error for a value of a wrong type; it quotes nothing of a conversation."""
    return InputError(f"{where}: got {type(value).__name__}; need {need}")
