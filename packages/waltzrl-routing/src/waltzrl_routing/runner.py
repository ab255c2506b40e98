"""Runs one task: its request is reviewed before its agent acts, and its result after.

The loop is `waltzrl.guarded`, through a `Guard`. Before, the draft that is reviewed is the words
of an agent that agrees to do the task; after, it is what the agent returned.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

import msgspec

from waltzrl.agents.coaching import Coach, with_examples
from waltzrl.errors import InputError, WaltzError
from waltzrl.gateway.guard import ACCEPTANCE, Guard
from waltzrl.records import Collaboration, Message, Prompt, Reply
from waltzrl.store.memory.plans import Fault, TaskResult
from waltzrl.store.memory.schemas import ROUTE
from waltzrl_routing.tasks import Task

LONGEST_REASON = 300
"""The number of characters of an agent's error that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task as its agent gets it."""

    task: Task
    agent: str
    results: Mapping[str, str]
    """The results of the tasks that it depends on, by their ids."""


Execute = Callable[[Work], Awaitable[str | Reply]]
"""Does a task, with all its side effects, and returns the result as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """What became of a task, and what was said about it."""

    result: TaskResult
    collaboration: Collaboration | None = None
    """The words of its reviews and revisions; None for a task that was not reviewed."""


class TaskRunner:
    """Runs tasks one by one."""

    def __init__(
        self,
        execute: Execute | None,
        guard: Guard | None,
        coach: Coach | None,
        timeout_seconds: float,
    ) -> None:
        """Combine what runs a task.

        Args:
            execute: calls the agents; None has the guard's conversation agent do every task.
            guard: reviews, coaches and declines; None for no checks.
            coach: finds examples of similar coaching; None for none.
            timeout_seconds: most time that an agent may take.
        """
        self._execute = execute
        self._guard = guard
        self._coach = coach
        self._timeout_seconds = timeout_seconds

    async def run(
        self, work: Work, prompt: Prompt, start: Callable[[], Awaitable[None]], *, checked: bool
    ) -> EndedTask:
        """Run a task.

        Args:
            work: the task.
            prompt: `prompt_of` it.
            start: is awaited before the agent is called; what it raises passes through.
            checked: review the request before, and the result after.

        Returns:
            What became of it; whatever the agent does wrong is a result too.
        """
        # Without `execute`, the guard's own agent does the task.
        guard = self._guard if checked or self._execute is None else None
        result = TaskResult(
            id=work.task.id,
            task_type=work.task.type,
            agent_id=work.agent,
            state="pending",
            checked=guard is not None,
        )
        shown = prompt
        if guard is not None and self._coach is not None:
            shown = with_examples(prompt, await self._coach.examples(prompt, work.task.type))
        try:
            if guard is not None:
                asked = _join_request(shown, work)
                result, before = await _review_draft(guard, asked, ACCEPTANCE, result)
                if before.rounds[0].feedback.refuses:
                    declined = _decline_task(result, before, "request")
                    return EndedTask(result=declined, collaboration=replace(before, prompt=prompt))
            await start()
            result = msgspec.structs.replace(result, ran=True)
            reply = None
            if self._execute is not None:
                began = time.perf_counter()
                reply = await self._call_agent(self._execute, work)
                result = _add_times(result, generation=_measure_milliseconds(began))
            if guard is None:
                assert reply is not None
                done = msgspec.structs.replace(result, state="done", reply=reply.full_text)
                return EndedTask(result=done)
            result, after = await _review_draft(guard, shown, reply, result)
        except _NotDoneError as error:
            failed = msgspec.structs.replace(
                result, state="failed", fault=error.fault, reason=str(error)
            )
            return EndedTask(result=failed)
        # What is remembered is the task alone, without the examples that its agents were shown.
        ended = _end_task(result, after)
        return EndedTask(result=ended, collaboration=replace(after, prompt=prompt))

    async def _call_agent(self, execute: Execute, work: Work) -> Reply:
        """Call the agent.

        Raises:
            _NotDoneError: it raised, took too long, or returned no text.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds) as deadline:
                reply = await call_coroutine(execute, work)
        # The boundary: agents fail in any way. A program in one may call `sys.exit`.
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            current = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and current and current.cancelling():
                raise  # the run itself was cancelled
            if not deadline.expired():
                words = f"its agent raised {_describe_error(error)}"
                raise _NotDoneError("agent", words) from error
        if deadline.expired():  # also where it went on although it was cancelled
            seconds = self._timeout_seconds
            raise _NotDoneError("agent", f"its agent took more than {seconds:g} s")
        return _require_reply(reply)


async def call_coroutine(execute: Callable[[Any], object], given: object) -> object:
    """Return what a coroutine function returns.

    Raises:
        InputError: it is none; it may have acted.
    """
    call = execute(given)
    if not isawaitable(call):
        raise InputError(f"execute returned {type(call).__name__}; need `async def execute`")
    return await call


def _require_reply(reply: object) -> Reply:
    """Return the reply of an agent.

    Raises:
        _NotDoneError: it is no text, or an empty one.
    """
    if isinstance(reply, str):
        reply = Reply(text=reply)
    if not isinstance(reply, Reply):
        raise _NotDoneError(
            "agent", f"its agent returned {type(reply).__name__}; need a str or a Reply"
        )
    if not reply.full_text.strip():
        raise _NotDoneError("agent", "its agent returned an empty reply")
    try:
        reply.full_text.encode()
    except UnicodeEncodeError as error:
        raise _NotDoneError(
            "agent", "its agent returned a text with half a surrogate pair; need Unicode"
        ) from error
    return reply


def _describe_error(error: BaseException) -> str:
    """Return the kind of an agent's error and what it says, in one line."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the agent's own code
        message = "(it cannot be shown)"
    words = " ".join(f"{type(error).__name__}: {message}".split())[:LONGEST_REASON]
    # Half a surrogate pair in it could be neither stored nor sent.
    return words.encode(errors="replace").decode()


def prompt_of(work: Work, id_: str = "") -> Prompt:
    """Return a task as the reviewers see it: all that steers its agent.

    The request is the description, followed by the metadata as JSON. Results of earlier tasks are
    what the agent reads, so they are the prompt's context.
    """
    task, request = work.task, work.task.description
    if task.metadata:
        request += f"\n{msgspec.json.encode(task.metadata, order='sorted').decode()}"
    results = [{"task": name, "result": text} for name, text in work.results.items()]
    return Prompt(
        id=id_ or task.id,
        messages=(Message(role="user", content=request),),
        context=tuple(
            Message(role="tool", content=msgspec.json.encode(result).decode()) for result in results
        ),
        source=ROUTE,
    )


def _join_request(prompt: Prompt, work: Work) -> Prompt:
    """Return the prompt with all that its agent is given as one request.

    So what an earlier task returned counts as much as what the task itself says: an order in it is
    an order to the agent.
    """
    *before, request = prompt.messages
    texts = [request.content, join_names(work.task), work.agent, *work.results.values()]
    asked = replace(request, content="\n".join(texts))
    return replace(prompt, messages=(*before, asked), context=())


def join_names(task: Task) -> str:
    """Return the id of a task, its type and its skills, which are given to its agent too."""
    return "\n".join([task.id, task.type, *task.skills])


class _NotDoneError(Exception):
    """A task that cannot be done; the message says why."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


async def _review_draft(
    guard: Guard, prompt: Prompt, draft: Reply | None, result: TaskResult
) -> tuple[TaskResult, Collaboration]:
    """Review a draft and revise it; return what was said, and the result with its times.

    Without a draft the guard writes it.

    Raises:
        _NotDoneError: nobody could review it.
    """
    # By identity, because an agent may return the same words.
    subject = "request" if draft is ACCEPTANCE else "result"
    began = time.perf_counter()
    try:
        if draft is None:
            collaboration = await guard.reply(prompt)
        else:
            collaboration = await guard.revise(prompt, draft)
    except WaltzError as error:
        raise _NotDoneError("reviewer", f"its {subject} could not be reviewed: {error}") from error
    if not collaboration.rounds[-1].feedback.well_formed:
        raise _NotDoneError(
            "reviewer", f"its {subject} could not be reviewed: the feedback is invalid"
        )
    written = collaboration.replies if draft is None else collaboration.replies[1:]
    generation = sum(reply.milliseconds for reply in written)
    # The policies measured the times of their replies, with clocks of their own.
    evaluation = max(0.0, _measure_milliseconds(began) - generation)
    return _add_times(result, generation=generation, evaluation=evaluation), collaboration


def _end_task(result: TaskResult, collaboration: Collaboration) -> TaskResult:
    """Return the result of a task whose agent's reply was reviewed."""
    if collaboration.decision == "refused":
        return _decline_task(result, collaboration, "agent")
    last = collaboration.rounds[-1]
    return msgspec.structs.replace(
        result,
        state="coached" if collaboration.revised else "done",
        reply=collaboration.final.full_text,
        rounds=_count_revisions(collaboration),
        # The last revision of a limited number of rounds is not reviewed.
        final_safe=None if last.revision is not None else not last.feedback.unsafe,
        risk=last.feedback.risk,
    )


def _decline_task(result: TaskResult, collaboration: Collaboration, fault: Fault) -> TaskResult:
    """Return the result of a task that is not done because of what is unsafe in it."""
    unsafe = next(
        (each.feedback for each in reversed(collaboration.rounds) if each.feedback.unsafe),
        collaboration.rounds[-1].feedback,
    )
    subject = "request" if fault == "request" else "result"
    why = [unsafe.category] if unsafe.category else []
    why += [f"rules: {', '.join(unsafe.rules)}"] if unsafe.rules else []
    explained = f" ({'; '.join(why)})" if why else ""
    return msgspec.structs.replace(
        result,
        state="declined",
        fault=fault,
        reason=f"its {subject} is unsafe{explained}",
        reply=collaboration.final.text,
        rounds=_count_revisions(collaboration),
        final_safe=True,
        risk=unsafe.risk,
        category=unsafe.category,
    )


def _count_revisions(collaboration: Collaboration) -> int:
    # A canned refusal is a reply too, and no revision.
    return sum(reply.origin == "policy" for reply in collaboration.replies[1:])


def _add_times(
    result: TaskResult, *, generation: float = 0.0, evaluation: float = 0.0
) -> TaskResult:
    return msgspec.structs.replace(
        result,
        generation_ms=result.generation_ms + generation,
        evaluation_ms=result.evaluation_ms + evaluation,
    )


def _measure_milliseconds(began: float) -> float:
    return 1000 * (time.perf_counter() - began)
