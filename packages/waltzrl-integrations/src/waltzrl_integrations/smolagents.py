"""smolagents: a guarded model.

ToolCallingAgent(tools=[...], model=GuardedSmolModel(OpenAIModel("qwen"), guard))
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from waltzrl.gateway.guard import Guard, Turn
from waltzrl.records import Reply
from waltzrl_integrations import drafts

with drafts.needs("smolagents", "smolagents>=1.20"):
    from smolagents import models
    from smolagents.models import ChatMessage, ChatMessageStreamDelta, MessageRole, Tool

ROLES = {MessageRole.TOOL_CALL: "assistant", MessageRole.TOOL_RESPONSE: "tool"}


class GuardedSmolModel(models.Model):
    """A model whose replies the guard has reviewed, and the results of tools it reads.

    A revision ends an agent's run, because it calls no tool: it becomes the agent's final answer.
    """

    def __init__(self, model: models.Model, guard: Guard) -> None:
        super().__init__(model_id=model.model_id)
        self.model = model
        self.guard = guard

    # It knows the names that the model writes in calls.
    parse_tool_calls = property(attrgetter("model.parse_tool_calls"))

    def generate(
        self,
        messages: list[ChatMessage | dict[str, Any]],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: Sequence[Tool] | None = None,
        **options: Any,
    ) -> ChatMessage:
        read = [
            drafts.run_blocking(_withhold_response, self.guard, _read_message(message))
            for message in messages
        ]
        draft = self.model.generate(
            read, stop_sequences, response_format, tools_to_call_from, **options
        )
        turns = [_convert_smol_message(message) for message in read]
        text, added = drafts.run_blocking(
            drafts.revise, self.guard, turns, _convert_smol_draft(draft)
        )
        usage = draft.token_usage or models.TokenUsage(0, 0)
        usage = models.TokenUsage(
            usage.input_tokens + added.input_tokens, usage.output_tokens + added.output_tokens
        )
        if text is not None:
            draft = _make_final_answer(text, stop_sequences or [], tools_to_call_from)
        return replace(draft, token_usage=usage)

    def generate_stream(self, *args: Any, **options: Any) -> Iterator[ChatMessageStreamDelta]:
        message = self.generate(*args, **options)
        for piece in drafts.cut_pieces(_join_message_text(message)):
            yield ChatMessageStreamDelta(content=piece)
        for index, call in enumerate(message.tool_calls or []):
            for piece in drafts.cut_pieces(call.function.arguments):
                function = models.ChatMessageToolCallFunction(piece, call.function.name)
                delta = models.ChatMessageToolCallStreamDelta(index, call.id, call.type, function)
                yield ChatMessageStreamDelta(tool_calls=[delta])
        yield ChatMessageStreamDelta(token_usage=message.token_usage)


def _read_message(message: ChatMessage | dict[str, Any]) -> ChatMessage:
    # A copy, because smolagents reads the calls of a dict in place.
    return ChatMessage.from_dict({**message}) if isinstance(message, dict) else message


def _make_final_answer(
    text: str, stop_sequences: list[str], tools: Sequence[Tool] | None
) -> ChatMessage:
    """Return a text as the final answer of an agent that calls tools, or that writes code."""
    calls = None
    if any(tool.name == "final_answer" for tool in tools or ()):
        function = models.ChatMessageToolCallFunction(
            name="final_answer", arguments=json.dumps({"answer": text})
        )
        calls = [models.ChatMessageToolCall(function=function, id="waltzrl", type="function")]
        return ChatMessage(MessageRole.ASSISTANT, "", calls)
    # An agent that writes code stops where its block ends.
    if "</code>" in stop_sequences:
        text = f"<code>\nfinal_answer({text!r})\n</code>"
    return ChatMessage(MessageRole.ASSISTANT, text)


async def _withhold_response(guard: drafts.AnyGuard, message: ChatMessage) -> ChatMessage:
    if message.role != MessageRole.TOOL_RESPONSE:
        return message
    if not await drafts.withholds(guard, message.content):
        return message
    return replace(message, content=[{"type": "text", "text": drafts.WITHHELD}])


def _convert_smol_message(message: ChatMessage) -> Turn:
    is_result = message.role == MessageRole.TOOL_RESPONSE
    content = drafts.words_of(message.content) if is_result else _join_message_text(message)
    return {"role": ROLES.get(message.role, message.role), "content": content}


def _join_message_text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.get("text", "") for part in message.content)
    return message.content or ""


def _convert_smol_draft(draft: ChatMessage) -> Reply:
    calls = [(c.id, c.function.name, c.function.arguments) for c in draft.tool_calls or []]
    return drafts.reply_of(_join_message_text(draft), "", calls)
