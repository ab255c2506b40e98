"""AutoGen: a guarded model client, for agents, teams and the core runtime.

AssistantAgent("ada", model_client=GuardedModelClient(client, guard), tools=tools)
"""

from collections.abc import AsyncIterator, Sequence
from operator import attrgetter

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply
from waltzrl_integrations import drafts

with drafts.needs("AutoGen", "autogen-core>=0.7"):
    from autogen_core import models as theirs


class GuardedModelClient(theirs.ChatCompletionClient):
    """A model client whose replies the guard has reviewed, and the results of tools it reads."""

    def __init__(self, client: theirs.ChatCompletionClient, guard: Guard) -> None:
        self._client, self._guard = client, guard

    # The base class is abstract, so each must be defined here: `__getattr__` would not do.
    close = property(attrgetter("_client.close"))
    actual_usage = property(attrgetter("_client.actual_usage"))
    total_usage = property(attrgetter("_client.total_usage"))
    count_tokens = property(attrgetter("_client.count_tokens"))
    remaining_tokens = property(attrgetter("_client.remaining_tokens"))
    capabilities = property(attrgetter("_client.capabilities"))
    model_info = property(attrgetter("_client.model_info"))

    async def create(
        self, messages: Sequence[theirs.LLMMessage], **options: object
    ) -> theirs.CreateResult:
        messages = [await self._withhold_results(message) for message in messages]
        draft = await self._client.create(messages, **options)
        turns = [turn for message in messages for turn in _convert_llm_message(message)]
        text, added = await drafts.revise(self._guard, turns, _convert_draft(draft))
        draft.usage.prompt_tokens += added.input_tokens
        draft.usage.completion_tokens += added.output_tokens
        if text is None:
            return draft
        # Thought and log-probabilities are those of the draft.
        final = {"content": text, "finish_reason": "stop"}
        return draft.model_copy(update=final | {"thought": None, "logprobs": None})

    async def create_stream(
        self, messages: Sequence[theirs.LLMMessage], **options: object
    ) -> AsyncIterator[str | theirs.CreateResult]:
        result = await self.create(messages, **options)
        for piece in drafts.cut_pieces(result.content if isinstance(result.content, str) else ""):
            yield piece
        yield result

    async def _withhold_results(self, message: theirs.LLMMessage) -> theirs.LLMMessage:
        if message.type != "FunctionExecutionResultMessage":
            return message
        results = [
            r.model_copy(update={"content": drafts.WITHHELD})
            if await drafts.withholds(self._guard, r.content)
            else r
            for r in message.content
        ]
        if all(result is before for result, before in zip(results, message.content, strict=True)):
            return message
        return message.model_copy(update={"content": results})


def _convert_llm_message(message: theirs.LLMMessage) -> list[Message]:
    if message.type == "FunctionExecutionResultMessage":
        return [Message(role="tool", content=r.content, call_id=r.call_id) for r in message.content]
    if message.type == "AssistantMessage":
        return drafts.turns_of("assistant", _convert_draft(message))
    parts = [message.content] if isinstance(message.content, str) else message.content
    text = "\n".join(part for part in parts if isinstance(part, str))
    return [Message(role="system" if message.type == "SystemMessage" else "user", content=text)]


def _convert_draft(message: theirs.AssistantMessage | theirs.CreateResult) -> Reply:
    if isinstance(message.content, str):
        return drafts.reply_of(message.content, message.thought or "")
    calls = [(call.id, call.name, call.arguments) for call in message.content]
    return drafts.reply_of(message.thought or "", calls=calls)
