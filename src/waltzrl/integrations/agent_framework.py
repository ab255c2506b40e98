"""Microsoft Agent Framework: middleware for agents and chat clients.

Agent(client, tools=tools, middleware=[GuardChatMiddleware(guard)])
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from waltzrl.guard import Guard
from waltzrl.integrations import drafts
from waltzrl.records import Message, Reply, Role

with drafts.needs("Microsoft Agent Framework", "agent-framework-core>=1.20"):
    import agent_framework as theirs

COUNTS = ("input_token_count", "output_token_count", "total_token_count")


class GuardChatMiddleware(theirs.ChatMiddleware):
    """Has the guard review every reply of the model, and every result of a tool it reads."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def process(
        self, context: theirs.ChatContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        context.messages = [await self._read(message) for message in context.messages]
        turns = [turn for message in context.messages for turn in _turns(message)]

        async def final(draft: theirs.ChatResponse) -> theirs.ChatResponse:
            parts = [part for message in draft.messages for part in message.contents]
            collaboration = await drafts.revise(self._guard, turns, _reply(parts))
            added = drafts.added_usage(collaboration)
            if used := draft.usage_details:
                draft.usage_details = drafts.add_tokens(used, added, COUNTS)
            if collaboration.decision != "draft":
                draft.messages = [theirs.Message("assistant", [collaboration.final.text])]
                draft.finish_reason, draft.raw_representation = "stop", None
            return draft

        if context.stream:  # nothing leaves before the review, and then in pieces
            context.stream_buffer_updates = True
            context.stream_result_transforms.append(final)
            context.stream_result_to_updates = _updates
            await call_next()
        else:
            await call_next()
            context.result = await final(context.result)

    async def _read(self, message: theirs.Message) -> theirs.Message:
        if message.role != "tool":
            return message
        results = [
            theirs.Content.from_function_result(
                part.call_id, result=await drafts.read_result(self._guard, str(part.result))
            )
            for part in message.contents
        ]
        return theirs.Message("tool", results)


def _turns(message: theirs.Message) -> list[Message]:
    if message.role == "tool":
        parts = message.contents
        return [Message(role="tool", content=str(p.result), call_id=p.call_id) for p in parts]
    reply = _reply(message.contents)
    role = cast(Role, message.role if message.role in ("system", "assistant") else "user")
    return [Message(role=role, content=reply.text, calls=reply.calls)]


def _reply(parts: Sequence[theirs.Content]) -> Reply:
    text = [part.text or "" for part in parts if part.type == "text"]
    reasoning = [part.text or "" for part in parts if part.type == "text_reasoning"]
    calls = [(p.call_id, p.name, p.arguments) for p in parts if p.type == "function_call"]
    return drafts.reply_of("\n".join(text), "\n".join(reasoning), calls)


def _updates(response: theirs.ChatResponse) -> list[theirs.ChatResponseUpdate]:
    updates = []
    for update in response.to_updates():
        texts = [part.text or "" for part in update.contents if part.type == "text"]
        update.contents = [part for part in update.contents if part.type != "text"]
        updates += [
            theirs.ChatResponseUpdate(
                contents=[theirs.Content.from_text(piece)],
                role=update.role,
                message_id=update.message_id,
                response_id=update.response_id,
            )
            for piece in drafts.pieces("\n".join(texts))
        ]
        updates.append(update)
    return updates
