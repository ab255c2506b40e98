"""Microsoft Agent Framework: middleware for agents and chat clients.

Agent(client, tools=tools, middleware=[GuardChatMiddleware(guard)])
"""

from collections.abc import Awaitable, Callable, Sequence

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply
from waltzrl_integrations import drafts

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
        context.messages = [await self._withhold_results(message) for message in context.messages]
        turns = [turn for message in context.messages for turn in _convert_message(message)]

        async def final(draft: theirs.ChatResponse) -> theirs.ChatResponse:
            parts = [part for message in draft.messages for part in message.contents]
            text, added = await drafts.revise(self._guard, turns, _convert_contents(parts))
            if used := draft.usage_details:
                draft.usage_details = drafts.add_tokens(used, added, COUNTS)
            if text is not None:
                draft.messages = [theirs.Message("assistant", [text])]
                # The raw response is the draft, which nobody may see.
                draft.finish_reason, draft.raw_representation = "stop", None
            return draft

        if context.stream:  # nothing leaves before the review, and then in pieces
            context.stream_buffer_updates = True
            context.stream_result_transforms.append(final)
            context.stream_result_to_updates = _cut_into_updates
            await call_next()
        else:
            await call_next()
            context.result = await final(context.result)

    async def _withhold_results(self, message: theirs.Message) -> theirs.Message:
        if message.role != "tool":
            return message
        parts = [await self._withhold_part(part) for part in message.contents]
        if all(part is before for part, before in zip(parts, message.contents, strict=True)):
            return message
        return theirs.Message("tool", parts)

    async def _withhold_part(self, part: theirs.Content) -> theirs.Content:
        if not await drafts.withholds(self._guard, _join_result_items(part)):
            return part
        return theirs.Content.from_function_result(part.call_id, result=drafts.WITHHELD)


def _convert_message(message: theirs.Message) -> list[Message]:
    parts = message.contents
    results = [(p.call_id, _join_result_items(p)) for p in parts if p.type == "function_result"]
    return drafts.turns_of(message.role, _convert_contents(parts), results)


def _join_result_items(part: theirs.Content) -> str:
    """Return the words of a tool's result, also of those that are items of it."""
    texts = [item.text for item in part.items or () if item.text]
    result = part.text if part.type == "text" else part.result
    return "\n".join(texts) or drafts.words_of(result)


def _convert_contents(parts: Sequence[theirs.Content]) -> Reply:
    text = [part.text or "" for part in parts if part.type == "text"]
    reasoning = [part.text or "" for part in parts if part.type == "text_reasoning"]
    calls = [(p.call_id, p.name, p.arguments) for p in parts if p.type == "function_call"]
    return drafts.reply_of("\n".join(text), "\n".join(reasoning), calls)


def _cut_into_updates(response: theirs.ChatResponse) -> list[theirs.ChatResponseUpdate]:
    updates = []
    for update in response.to_updates():
        ids = {"message_id": update.message_id, "response_id": update.response_id}
        text = _convert_contents(update.contents).text
        updates += [
            theirs.ChatResponseUpdate(contents=[piece], role=update.role, **ids)
            for piece in map(theirs.Content.from_text, drafts.cut_pieces(text))
        ]
        update.contents = [part for part in update.contents if part.type != "text"]
        updates.append(update)
    return updates
