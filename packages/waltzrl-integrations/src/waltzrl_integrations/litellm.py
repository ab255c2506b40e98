"""LiteLLM: guarded calls in a program, and a guardrail for its proxy.

reply = await GuardedLiteLLM(guard).acompletion(model="openai/qwen", messages=messages)
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from waltzrl.errors import InputError
from waltzrl.gateway.guard import Guard
from waltzrl_integrations import drafts

with drafts.needs("LiteLLM", "litellm>=1.80"):
    import litellm
    from litellm.integrations.custom_guardrail import CustomGuardrail
    from litellm.llms.base_llm.base_model_iterator import convert_model_response_to_streaming
    from litellm.types.utils import Message, ModelResponse, ModelResponseStream

JsonObject: TypeAlias = dict[str, Any]
Messages: TypeAlias = Sequence[Any]

UNSEEN = {"stream": False, "stream_options": None, "no-log": True}
"""The options of a call that no callback sees."""
UNREVIEWED = re.compile(
    "text_completion|responses|messages|send_message|generate_content|interaction|realtime|"
    "pass_?through|run_thread|create_batch"
)
"""What is in the names of calls that return what a model wrote and are no chat completions."""


class GuardedLiteLLM:
    """`litellm.completion` and `litellm.acompletion`; the guard reviews what they return.

    LiteLLM's callbacks see the reply that was reviewed and the usage of draft, reviews and
    revision.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def completion(self, model: str, messages: Messages, **options: object) -> object:
        read = drafts.run_blocking(_withhold_from_messages, self._guard, messages)
        request = options | {"model": model, "messages": read}
        draft = litellm.completion(**request | UNSEEN)
        drafts.run_blocking(_revise_response, self._guard, read, draft)
        # This call asks no model: it gives the reviewed reply to the callbacks.
        final = litellm.completion(**request, mock_response=draft)
        return _cut_stream(final) if options.get("stream") else final

    async def acompletion(self, model: str, messages: Messages, **options: object) -> object:
        read = await _withhold_from_messages(self._guard, messages)
        request = options | {"model": model, "messages": read}
        draft = await litellm.acompletion(**request | UNSEEN)
        await _revise_response(self._guard, read, draft)
        final = await litellm.acompletion(**request, mock_response=draft)
        return _cut_async_stream(final) if options.get("stream") else final


class WaltzGuardrail(CustomGuardrail):
    """Guards chat completions behind LiteLLM's proxy: `pre_call` and `post_call`."""

    def __init__(self, guard: Guard, **options: object) -> None:
        super().__init__(**options)
        self._guard = guard

    async def async_pre_call_hook(
        self, user_api_key_dict: object, cache: object, data: JsonObject, call_type: str
    ) -> JsonObject:
        if UNREVIEWED.search(call_type):
            raise InputError(
                f"waltzrl's guardrail reviews chat completions, not {call_type}; give the proxy a "
                "waltzrl gateway as its guardrail, which reviews those too"
            )
        if call_type in ("completion", "acompletion"):
            data["messages"] = await _withhold_from_messages(self._guard, data["messages"])
        return data

    async def async_post_call_success_hook(
        self, data: JsonObject, user_api_key_dict: object, response: object
    ) -> object:
        if isinstance(response, ModelResponse):
            await _revise_response(self._guard, data["messages"], response)
        return response

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: object, response: AsyncIterator[object], request_data: JsonObject
    ) -> AsyncIterator[object]:
        chunks: list[Any] = [chunk async for chunk in response]
        messages = request_data["messages"]
        replies = []
        for index, of_one in _split_choices(chunks).items():
            # LiteLLM would build one choice of all.
            replies.append(litellm.stream_chunk_builder(of_one, messages=messages))
            replies[-1].choices[0].index = index
        changed = [await _revise_response(self._guard, messages, reply) for reply in replies]
        if any(changed):
            chunks = [convert_model_response_to_streaming(reply) for reply in replies]
        for chunk in chunks:
            yield chunk


def _split_choices(chunks: Iterable[Any]) -> dict[int, list[Any]]:
    """Return the chunks of each choice, by its index."""
    split: dict[int, list[Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            one = chunk.model_copy(update={"choices": [choice]})
            split.setdefault(choice.index, []).append(one)
    return split


async def _withhold_from_messages(guard: drafts.AnyGuard, messages: Messages) -> list[object]:
    """Return the messages, without what no model may read of the results of tools."""
    read: list[object] = []
    for message in messages:
        turn = _convert_to_dict(message)
        readable = await drafts.read_turn(guard, turn)
        read.append(message if readable is turn else readable)
    return read


def _convert_to_dict(message: Any) -> JsonObject:
    turn: JsonObject = (
        message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    )
    return turn


async def _revise_response(
    guard: drafts.AnyGuard, messages: Messages, response: ModelResponse
) -> bool:
    """Replace what may not be said in `response`, add the usage; return whether it changed."""
    changed = False
    turns = [drafts.flatten_turn(_convert_to_dict(message)) for message in messages]
    for choice in response.choices:
        message = choice.message
        calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
        if older := getattr(message, "function_call", None):
            calls.append(("", older.name, older.arguments))
        thought = getattr(message, "reasoning_content", None) or ""
        reply = drafts.reply_of(message.content or "", thought, calls)
        text, added = await drafts.revise(guard, turns, reply)
        if used := getattr(response, "usage", None):
            used.prompt_tokens += added.input_tokens
            used.completion_tokens += added.output_tokens
            used.total_tokens += added.input_tokens + added.output_tokens
        if text is not None:
            choice.message = Message(content=text)
            choice.finish_reason, changed = "stop", True
    return changed


def _cut_stream(stream: Iterator[ModelResponseStream]) -> Iterator[ModelResponseStream]:
    for chunk in stream:
        yield from _cut_chunk(chunk)


async def _cut_async_stream(
    stream: AsyncIterator[ModelResponseStream],
) -> AsyncIterator[ModelResponseStream]:
    async for chunk in stream:
        for piece in _cut_chunk(chunk):
            yield piece


def _cut_chunk(chunk: ModelResponseStream) -> Iterator[ModelResponseStream]:
    """Cut a chunk that holds a whole text into one for each word."""
    if len(chunk.choices) > 1:
        for [of_one] in _split_choices([chunk]).values():
            yield from _cut_chunk(of_one)
        return
    # The last chunk may have token counts alone.
    words = drafts.cut_pieces(chunk.choices[0].delta.content or "") if chunk.choices else []
    for word in words[:-1]:
        piece = chunk.model_copy(deep=True)
        piece.choices[0].delta.content, piece.choices[0].finish_reason = word, None
        yield piece
    if words:
        chunk.choices[0].delta.content = words[-1]
    yield chunk
