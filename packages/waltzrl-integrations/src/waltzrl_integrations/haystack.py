"""Haystack: a guarded chat generator, for pipelines and agents.

Agent(chat_generator=GuardedChatGenerator(OpenAIChatGenerator(), guard), tools=tools)
"""

import json
from collections.abc import Iterator
from copy import copy
from functools import partial
from inspect import isawaitable
from typing import Any

from waltzrl.gateway.guard import Guard
from waltzrl_integrations import drafts

with drafts.needs("Haystack", "haystack-ai>=3.0"):
    from haystack import component
    from haystack.components.generators.chat.types import ChatGenerator
    from haystack.dataclasses import (
        ChatMessage,
        FileContent,
        ImageContent,
        StreamingCallbackT,
        StreamingChunk,
        TextContent,
        ToolCallDelta,
        ToolCallResult,
    )

Replies = dict[str, list[ChatMessage]]


@component
class GuardedChatGenerator:
    """A chat generator whose replies the guard has reviewed, and the results of tools it reads."""

    def __init__(self, generator: ChatGenerator, guard: Guard) -> None:
        # A copy without the callback, to which drafts would be streamed.
        self._generator, self._guard = copy(generator), guard
        self._on_chunk: StreamingCallbackT | None = getattr(generator, "streaming_callback", None)
        self._generator.streaming_callback = None

    def warm_up(self) -> None:
        """Load what the wrapped generator loads before its first run."""
        if hasattr(self._generator, "warm_up"):
            self._generator.warm_up()

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: object = None,
    ) -> Replies:
        model = partial(self._generator.run, generation_kwargs=generation_kwargs, tools=tools)
        on_chunk = streaming_callback or self._on_chunk
        return drafts.run_blocking(_answer_messages, self._guard, model, messages, on_chunk)

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        tools: object = None,
    ) -> Replies:
        model = partial(self._generator.run_async, generation_kwargs=generation_kwargs, tools=tools)
        on_chunk = streaming_callback or self._on_chunk
        return await _answer_messages(self._guard, model, messages, on_chunk)


async def _answer_messages(
    guard: drafts.AnyGuard,
    model: drafts.Model,
    messages: list[ChatMessage] | str,
    on_chunk: StreamingCallbackT | None,
) -> Replies:
    if isinstance(messages, str):
        messages = [ChatMessage.from_user(messages)]
    read = [await _withhold_result(guard, message) for message in messages]
    turns = [_convert_chat_message(message) for message in read]
    drafted = await drafts.await_draft(model, messages=read)
    replies = [await _revise_reply(guard, turns, draft) for draft in drafted["replies"]]
    if on_chunk is not None:
        for chunk in _yield_streaming_chunks(replies):
            if isawaitable(shown := on_chunk(chunk)):
                await shown
    return {"replies": replies}


async def _withhold_result(guard: drafts.AnyGuard, message: ChatMessage) -> ChatMessage:
    if (result := message.tool_call_result) is None:
        return message
    if not await drafts.withholds(guard, _read_result(result)):
        return message
    return ChatMessage.from_tool(
        drafts.WITHHELD, origin=result.origin, error=result.error, meta=message.meta
    )


async def _revise_reply(
    guard: drafts.AnyGuard, turns: list[dict[str, Any]], draft: ChatMessage
) -> ChatMessage:
    calls = [(call.id, call.tool_name, call.arguments) for call in draft.tool_calls]
    thought = draft.reasoning.reasoning_text if draft.reasoning else ""
    reply = drafts.reply_of("\n".join(draft.texts), thought, calls)
    text, added = await drafts.revise(guard, turns, reply)
    if used := draft.meta.get("usage"):
        draft.meta["usage"] = drafts.add_tokens(used, added)
    if text is None:
        return draft
    return ChatMessage.from_assistant(text, meta=draft.meta | {"finish_reason": "stop"})


def _convert_chat_message(message: ChatMessage) -> dict[str, Any]:
    if (result := message.tool_call_result) is not None:  # its form for OpenAI has no images
        call_id = result.origin.id or ""
        return {"role": "tool", "tool_call_id": call_id, "content": _read_result(result)}
    turn: dict[str, Any] = message.to_openai_dict_format(require_tool_call_ids=False)
    return turn


def _read_result(result: ToolCallResult) -> str:
    if isinstance(result.result, str):
        return result.result
    return drafts.words_of([_convert_content(part) for part in result.result])


def _convert_content(part: TextContent | ImageContent | FileContent) -> str | dict[str, Any]:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, ImageContent):
        return {"type": "image_url"}
    data = f"data:{part.mime_type};base64,{part.base64_data}"
    return {"type": "file", "file": {"filename": part.filename, "file_data": data}}


def _yield_streaming_chunks(replies: list[ChatMessage]) -> Iterator[StreamingChunk]:
    for reply in replies:
        for number, piece in enumerate(drafts.cut_pieces("\n".join(reply.texts))):
            yield StreamingChunk(piece, index=0, start=number == 0)
        calls = [
            ToolCallDelta(place, call.tool_name, json.dumps(call.arguments), call.id)
            for place, call in enumerate(reply.tool_calls)
        ]
        finish = reply.meta.get("finish_reason")
        yield StreamingChunk(
            "",
            reply.meta,
            index=0,
            tool_calls=calls or None,
            finish_reason=finish,
            start=bool(calls),
        )
