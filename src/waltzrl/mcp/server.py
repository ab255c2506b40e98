"""A guard as an MCP server: an agent's model asks it before and after it acts."""

from collections.abc import Awaitable
from typing import Annotated, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, JsonValue

from waltzrl import __version__
from waltzrl.errors import WaltzError
from waltzrl.guard import Guard
from waltzrl.records import Decision, Feedback

INSTRUCTIONS = (
    "Call `assess` before you carry out a request that could do harm, `review` before you send a "
    "reply, and `revise` to have an unsafe or needlessly refusing reply rewritten."
)
READ_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_Result = TypeVar("_Result")


class ChatMessage(BaseModel):
    """A message in the form of OpenAI's chat completions."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[dict[str, JsonValue]] | None = None
    tool_call_id: str | None = None


Messages = Annotated[
    str | list[ChatMessage],
    Field(description="The conversation, oldest message first; a string is one user's message."),
]
ReplyText = Annotated[str, Field(description="The reply to the last message.")]
Request = Annotated[
    str | list[ChatMessage], Field(description="What somebody asks an agent to do.")
]


class ReviewAnswer(BaseModel):
    """What a reviewer says."""

    unsafe: Annotated[bool, Field(description="Do not send the reply, or carry out the request.")]
    overrefuse: Annotated[bool, Field(description="The reply refuses a harmless request.")]
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


def mcp_server(guard: Guard) -> MCPServer:
    """Return a server with the tools `review`, `revise` and `assess`; the caller closes `guard`."""
    server: MCPServer = MCPServer(
        "waltzrl", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )

    @server.tool(title="Review a reply", annotations=READ_ONLY)
    async def review(messages: Messages, reply: ReplyText) -> ReviewAnswer:
        """Say whether a reply is unsafe or refuses needlessly, and how to improve it."""
        return _answer(await _told(guard.review(_plain(messages), reply)))

    @server.tool(title="Revise a reply", annotations=READ_ONLY)
    async def revise(messages: Messages, reply: ReplyText) -> RevisionAnswer:
        """Rewrite a reply that is unsafe or refuses needlessly; a good reply stays as it is."""
        collaboration = await _told(guard.revise(_plain(messages), reply))
        return RevisionAnswer(
            reply=collaboration.final.text,
            decision=collaboration.decision,
            rounds=sum(round_.revision is not None for round_ in collaboration.rounds),
        )

    @server.tool(title="Assess a request", annotations=READ_ONLY)
    async def assess(request: Request) -> ReviewAnswer:
        """Say whether a request is unsafe to carry out, before an agent acts on it."""
        return _answer(await _told(guard.assess(_plain(request))))

    return server


def _plain(messages: str | list[ChatMessage]) -> str | list[dict[str, object]]:
    if isinstance(messages, str):
        return messages
    return [message.model_dump(exclude_none=True) for message in messages]


async def _told(answer: Awaitable[_Result]) -> _Result:
    """Await an answer; the client is told the cause of a failure.

    Raises:
        ToolError: with the message for people.
    """
    try:
        return await answer
    except WaltzError as error:
        raise ToolError(str(error)) from error


def _answer(feedback: Feedback) -> ReviewAnswer:
    return ReviewAnswer(
        unsafe=feedback.unsafe,
        overrefuse=feedback.overrefuse,
        reviewed=feedback.well_formed,
        risk=feedback.risk,
        category=feedback.category,
        rules=feedback.rules,
        advice=feedback.text,
    )
