"""LlamaIndex: a guarded LLM, for agents, query engines and chat engines.

FunctionAgent(llm=GuardedLLM(OpenAILike(model="qwen"), guard), tools=tools)
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from operator import attrgetter

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply
from waltzrl_integrations import drafts

with drafts.needs("LlamaIndex", "llama-index-core>=0.14"):
    from llama_index.core.base.llms import generic_utils as completions
    from llama_index.core.base.llms import types as theirs
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms.callbacks import llm_chat_callback
    from llama_index.core.llms.function_calling import FunctionCallingLLM

Messages = Sequence[theirs.ChatMessage]


class GuardedLLM(FunctionCallingLLM):
    """An LLM whose replies the guard has reviewed, and the results of tools it reads."""

    _llm: FunctionCallingLLM = PrivateAttr()
    _guard: Guard = PrivateAttr()

    def __init__(self, llm: FunctionCallingLLM, guard: Guard) -> None:
        # The settings of any LLM, such as its system prompt.
        super().__init__(**{name: getattr(llm, name) for name in FunctionCallingLLM.model_fields})
        # The caller's callbacks would see the draft.
        self._llm = llm.model_copy(update={"callback_manager": CallbackManager()})
        self._guard = guard

    metadata = property(attrgetter("_llm.metadata"))

    @llm_chat_callback()
    def chat(self, messages: Messages, **options: object) -> theirs.ChatResponse:
        return self._chat(messages, options)

    @llm_chat_callback()
    def stream_chat(self, messages: Messages, **options: object) -> Iterator[theirs.ChatResponse]:
        return _yield_chat_responses(self._chat(messages, options))

    @llm_chat_callback()
    async def achat(self, messages: Messages, **options: object) -> theirs.ChatResponse:
        return await self._achat(messages, options)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Messages, **options: object
    ) -> AsyncIterator[theirs.ChatResponse]:
        return _yield_chat_responses_async(await self._achat(messages, options))

    def complete(self, prompt: str, formatted: bool = False, **options: object) -> object:
        return completions.chat_to_completion_decorator(self.chat)(prompt, **options)

    def stream_complete(self, prompt: str, formatted: bool = False, **options: object) -> object:
        return completions.stream_chat_to_completion_decorator(self.stream_chat)(prompt, **options)

    async def acomplete(self, prompt: str, formatted: bool = False, **options: object) -> object:
        return await completions.achat_to_completion_decorator(self.achat)(prompt, **options)

    async def astream_complete(
        self, prompt: str, formatted: bool = False, **options: object
    ) -> object:
        stream = completions.astream_chat_to_completion_decorator(self.astream_chat)
        return await stream(prompt, **options)

    def _prepare_chat_with_tools(self, *args: object, **options: object) -> dict[str, object]:
        return self._llm._prepare_chat_with_tools_compat(*args, **options)

    def get_tool_calls_from_response(self, *args: object, **options: object) -> list[object]:
        return self._llm.get_tool_calls_from_response(*args, **options)

    def _chat(self, messages: Messages, options: dict[str, object]) -> theirs.ChatResponse:
        return drafts.run_blocking(
            _answer_chat, self._guard, partial(self._llm.chat, **options), messages
        )

    async def _achat(self, messages: Messages, options: dict[str, object]) -> theirs.ChatResponse:
        return await _answer_chat(self._guard, partial(self._llm.achat, **options), messages)


async def _answer_chat(
    guard: drafts.AnyGuard, model: drafts.Model, messages: Messages
) -> theirs.ChatResponse:
    read = [
        theirs.ChatMessage(
            role=message.role,
            content=drafts.WITHHELD,
            additional_kwargs=message.additional_kwargs,
        )
        if message.role == "tool" and await drafts.withholds(guard, _list_result_parts(message))
        else message
        for message in messages
    ]
    draft = await drafts.await_draft(model, read)
    turns = [turn for message in read for turn in _convert_llama_message(message)]
    text, added = await drafts.revise(guard, turns, _convert_blocks(draft.message))
    used = draft.additional_kwargs = drafts.add_tokens(draft.additional_kwargs, added)
    if text is None:
        return draft
    message = theirs.ChatMessage(text, role="assistant")
    return theirs.ChatResponse(message=message, raw={"usage": used}, additional_kwargs=used)


def _convert_llama_message(message: theirs.ChatMessage) -> list[Message]:
    call_id = message.additional_kwargs.get("tool_call_id", "")
    is_result = message.role == "tool"
    results = [(call_id, drafts.words_of(_list_result_parts(message)))] if is_result else []
    return drafts.turns_of(message.role.value, _convert_blocks(message), results)


def _list_result_parts(message: theirs.ChatMessage) -> str | list[object]:
    """Return the parts of a tool's result; the data of files and images is none of its words."""
    if all(isinstance(block, theirs.TextBlock) for block in message.blocks):
        return message.content or ""
    return [_convert_block(block) for block in message.blocks]


def _convert_block(block: theirs.ContentBlock) -> dict[str, object]:
    data = {"image", "audio", "video", "data"}
    part: dict[str, object] = block.model_dump(mode="json", exclude=data, exclude_none=True)
    part["type"] = part.pop("block_type")
    if isinstance(nested := getattr(block, "content", None), list):
        part["content"] = [_convert_block(inner) for inner in nested]
    return part


def _convert_blocks(message: theirs.ChatMessage) -> Reply:
    thoughts = [b.content or "" for b in message.blocks if isinstance(b, theirs.ThinkingBlock)]
    blocks = [block for block in message.blocks if isinstance(block, theirs.ToolCallBlock)]
    calls = [(block.tool_call_id, block.tool_name, block.tool_kwargs) for block in blocks]
    return drafts.reply_of(message.content or "", "\n".join(thoughts), calls)


def _yield_chat_responses(final: theirs.ChatResponse) -> Iterator[theirs.ChatResponse]:
    text = ""
    for piece in drafts.cut_pieces(final.message.content or ""):
        text += piece
        message = theirs.ChatMessage(text, role="assistant")
        yield theirs.ChatResponse(message=message, delta=piece)
    yield final.model_copy(update={"delta": ""})


async def _yield_chat_responses_async(
    final: theirs.ChatResponse,
) -> AsyncIterator[theirs.ChatResponse]:
    for chunk in _yield_chat_responses(final):
        yield chunk
