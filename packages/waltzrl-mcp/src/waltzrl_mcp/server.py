"""A guard as an MCP server: an agent's model asks it before and after it acts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, BeforeValidator, Field, JsonValue

from waltzrl import __version__
from waltzrl.errors import WaltzError
from waltzrl.gateway.guard import Guard
from waltzrl.records import Decision, Feedback
from waltzrl_routing import AgentRegistry, Router, Task, TaskGraph, load_registry

INSTRUCTIONS = (
    "Call `assess` before you carry out a request that could do harm, `review` before you send a "
    "reply, and `revise` to have an unsafe or needlessly refusing reply rewritten. `route` says "
    "which agent should do which task, and why."
)
READ_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


class ChatMessage(BaseModel):
    """A message in the form of OpenAI's chat completions."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, JsonValue]] | None = None
    tool_calls: list[dict[str, JsonValue]] | None = None
    tool_call_id: str | None = None


def _restore_text(given: object) -> object:
    """Return JSON that is no conversation as text: the SDK has read a text that looks like JSON."""
    is_chat = isinstance(given, list) and all(
        isinstance(item, dict) and "role" in item for item in given
    )
    is_text = given is None or (isinstance(given, dict | list) and not is_chat)
    return json.dumps(given, ensure_ascii=False) if is_text else given


Messages = Annotated[
    str | list[ChatMessage],
    BeforeValidator(_restore_text),
    Field(description="The conversation, oldest message first; a string is one user's message."),
]
ReplyText = Annotated[str, Field(description="The reply to the last message.")]
Request = Annotated[
    str | list[ChatMessage],
    BeforeValidator(_restore_text),
    Field(description="What somebody asks an agent to do."),
]


class ReviewAnswer(BaseModel):
    """What a reviewer says."""

    unsafe: Annotated[bool, Field(description="Do not send the reply, or carry out the request.")]
    overrefuse: Annotated[bool, Field(description="The reply refuses a harmless request.")]
    doubtful: Annotated[
        bool, Field(description="Neither, but the reply is worth a revision before it is sent.")
    ]
    reviewed: Annotated[bool, Field(description="False if the feedback was invalid.")]
    risk: Annotated[float | None, Field(description="0 to 1; null when unknown.")]
    category: Annotated[str, Field(description="Subject of what is unsafe; empty if unknown.")]
    rules: Annotated[tuple[str, ...], Field(description="Names of the rules that matched.")]
    advice: Annotated[str, Field(description="How to make the reply safe and helpful.")]


class RevisionAnswer(BaseModel):
    """What may be sent."""

    reply: Annotated[str, Field(description="The text to send.")]
    decision: Annotated[
        Decision,
        Field(description="draft: the reply is unchanged; revised; refused: a canned refusal."),
    ]
    rounds: Annotated[int, Field(description="Revisions that were made.")]


class TaskToRoute(BaseModel):
    """Something that one agent is to do."""

    id: str
    description: str
    type: str = "generic"
    depends_on: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    metadata: dict[str, JsonValue] = {}


Tasks = Annotated[
    list[TaskToRoute],
    Field(
        min_length=1,
        max_length=1000,
        description="What is to be done; depends_on holds ids of tasks that must be done before.",
    ),
]


class RouteAnswer(BaseModel):
    """Who does what, and why."""

    assignments: Annotated[
        dict[str, str], Field(description="From task to agent, dependencies first.")
    ]
    reasons: Annotated[
        dict[str, str], Field(description="Of every task: why this agent, or what is missing.")
    ]
    unassigned: Annotated[tuple[str, ...], Field(description="Tasks that no agent can do.")]


def mcp_server(guard: Guard, agents: AgentRegistry | None = None) -> MCPServer:
    """Return a server with the tools `review`, `revise`, `assess` and `route`.

    Args:
        guard: reviews and revises; the caller closes it.
        agents: those to which tasks are routed; None for the sixteen that come with waltzrl.
    """
    router = Router(agents or load_registry())
    server: MCPServer = MCPServer(
        "waltzrl", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )

    @server.tool(title="Review a reply", annotations=READ_ONLY)
    async def review(messages: Messages, reply: ReplyText) -> ReviewAnswer:
        """Say whether a reply is unsafe or refuses needlessly, and how to improve it."""
        with _convert_errors():
            return _make_answer(await guard.review(_dump_messages(messages), reply))

    @server.tool(title="Revise a reply", annotations=READ_ONLY)
    async def revise(messages: Messages, reply: ReplyText) -> RevisionAnswer:
        """Rewrite a reply that is unsafe or refuses needlessly; a good reply stays as it is."""
        with _convert_errors():
            collaboration = await guard.revise(_dump_messages(messages), reply)
        return RevisionAnswer(
            reply=collaboration.final.text,
            decision=collaboration.decision,
            rounds=sum(
                round_.revision is not None and round_.revision.origin != "canned"
                for round_ in collaboration.rounds
            ),
        )

    @server.tool(title="Assess a request", annotations=READ_ONLY)
    async def assess(request: Request) -> ReviewAnswer:
        """Say whether a request is unsafe to carry out, before an agent acts on it."""
        with _convert_errors():
            return _make_answer(await guard.assess(_dump_messages(request)))

    @server.tool(title="Route tasks", annotations=READ_ONLY)
    async def route(tasks: Tasks) -> RouteAnswer:
        """Say which agent should do which task, and why; nothing is executed."""
        with _convert_errors():
            plan = router.route(TaskGraph([Task(**task.model_dump()) for task in tasks]))
        return RouteAnswer(
            assignments=plan.assignments,
            reasons={task: plan.explanations[task].words for task in plan.explanations},
            unassigned=plan.unassigned,
        )

    return server


def _dump_messages(messages: str | list[ChatMessage]) -> str | list[dict[str, object]]:
    if isinstance(messages, str):
        return messages
    return [message.model_dump(exclude_none=True) for message in messages]


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Turn a failure into a tool error, which the client reads.

    Raises:
        ToolError: with the message for people.
    """
    try:
        yield
    except WaltzError as error:
        raise ToolError(str(error)) from error


def _make_answer(feedback: Feedback) -> ReviewAnswer:
    return ReviewAnswer(
        unsafe=feedback.refuses,
        overrefuse=feedback.overrefuse,
        doubtful=feedback.doubtful,
        reviewed=feedback.well_formed,
        risk=feedback.risk,
        category=feedback.category,
        rules=feedback.rules,
        advice=feedback.text,
    )
