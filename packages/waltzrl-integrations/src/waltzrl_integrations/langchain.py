"""LangChain: a guarded chat model, which is a `Runnable`.

model = GuardedChatModel(model=ChatOpenAI(model="qwen"), guard=guard)
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import Field

from waltzrl.gateway.guard import Guard
from waltzrl.records import Reply
from waltzrl_integrations import drafts

with drafts.needs("LangChain", "langchain>=1.0"):
    from langchain_core.caches import BaseCache
    from langchain_core.callbacks import CallbackManager
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        BaseMessage,
        convert_to_openai_messages,
    )
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable, RunnableParallel, RunnableSequence
    from langchain_core.runnables.config import ensure_config
    from langchain_core.runnables.config import var_child_runnable_config as config_of_calls
    from langchain_core.tracers.context import _configure_hooks, tracing_v2_callback_var
    from langchain_core.utils.utils import LC_ID_PREFIX
    from langsmith import tracing_context

Turns: TypeAlias = list[BaseMessage]
OPENAI_ROLES = (*drafts.ROLES, "user", "tool", "function")
"""The roles that OpenAI knows; any other is a user's."""


class GuardedChatModel(BaseChatModel):
    """A chat model whose replies the guard has reviewed, and the results of tools it reads."""

    model: Runnable
    guard: Guard
    cache: BaseCache | bool | None = Field(default=False, exclude=True)
    """Off, because a global cache would mix the answers of guards, models and tools; the wrapped
    model may have one."""
    model_config: ClassVar[dict[str, bool]] = {"arbitrary_types_allowed": True}

    @property
    def _llm_type(self) -> str:
        return "waltzrl"

    @property
    def model_name(self) -> str:
        """The wrapped model's name, by which LangChain knows what a model can do."""
        names = (self._find_own(name) for name in ("model_name", "model", "model_id"))
        return next((name for name in names if isinstance(name, str) and name), self._llm_type)

    def _resolve_model_profile(self) -> Any:
        return self._find_own("profile")

    def _get_ls_params(self, stop: Any = None, **options: Any) -> Any:
        describe = self._find_own("_get_ls_params") or super()._get_ls_params
        return describe(stop, **options)

    def get_token_ids(self, text: str) -> list[int]:
        count: Any = self._find_own("get_token_ids") or super().get_token_ids
        ids: list[int] = count(text)
        return ids

    def get_num_tokens_from_messages(self, messages: Turns, tools: Any = None) -> int:
        name = "get_num_tokens_from_messages"
        count: Any = self._find_own(name) or super().get_num_tokens_from_messages
        number: int = count(messages, tools)
        return number

    def _find_own(self, name: str) -> Any:
        """Return an attribute of the wrapped model; None where it has none, as a function has."""
        return getattr(self.model, name, None)

    def bind_tools(self, tools: Sequence[object], **options: Any) -> Self:
        return self.model_copy(update={"model": self.model.bind_tools(tools, **options)})

    def with_structured_output(self, schema: Any, **options: Any) -> Runnable:
        """Return what the wrapped model returns, which knows its methods, with the guard in it."""
        structured = self._find_own("with_structured_output")
        chain = structured and structured(schema, **options)
        model, *parsers = chain.steps if isinstance(chain, RunnableSequence) else [None]
        if with_raw := isinstance(model, RunnableParallel):  # with include_raw
            model = model.steps__.get("raw")
        if not isinstance(getattr(model, "bound", model), BaseChatModel):
            # Of a chain that begins otherwise, the guard would not review what the model writes.
            return super().with_structured_output(schema, **options)
        guarded = self.model_copy(update={"model": model})
        return RunnableSequence(RunnableParallel(raw=guarded) if with_raw else guarded, *parsers)

    def _generate(
        self, messages: Turns, stop: object = None, run_manager: object = None, **options: Any
    ) -> ChatResult:
        model = partial(self.model.invoke, **_with_stop(options, stop))
        return drafts.run_blocking(_generate_guarded, self.guard, model, messages)

    async def _agenerate(
        self, messages: Turns, stop: object = None, run_manager: object = None, **options: Any
    ) -> ChatResult:
        model = partial(self.model.ainvoke, **_with_stop(options, stop))
        return await _generate_guarded(self.guard, model, messages)

    def _stream(self, messages: Turns, **options: Any) -> Iterator[ChatGenerationChunk]:
        yield from _yield_generation_chunks(self._generate(messages, **options))

    async def _astream(self, messages: Turns, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _yield_generation_chunks(await self._agenerate(messages, **options)):
            yield chunk


def _with_stop(options: dict[str, Any], stop: object) -> dict[str, Any]:
    """Return the options of a call; without words to stop at, those of the model hold."""
    return options if stop is None else options | {"stop": stop}


@contextmanager
def _hide_calls() -> Iterator[None]:
    """Call no callback of the caller's configuration, and send nothing to LangSmith."""
    # In this variable LangChain hands the callbacks of a call on to the calls within it.
    before = config_of_calls.set(ensure_config() | {"callbacks": CallbackManager([])})
    # In these it finds those of a block, such as `with get_usage_metadata_callback()`.
    of_blocks: list[Any] = [tracing_v2_callback_var, *(hook[0] for hook in _configure_hooks)]
    tokens = [variable.set(None) for variable in of_blocks]
    try:
        with tracing_context(enabled=False):
            yield
    finally:
        for variable, token in zip(of_blocks, tokens, strict=True):
            variable.reset(token)
        config_of_calls.reset(before)


async def _generate_guarded(
    guard: drafts.AnyGuard, model: drafts.Model, messages: Turns
) -> ChatResult:
    read = [
        m.model_copy(update={"content": drafts.WITHHELD})
        if m.type == "tool" and await drafts.withholds(guard, m.content)
        else m
        for m in messages
    ]
    turns = turns_of(read)
    with _hide_calls():
        draft = await drafts.await_draft(model, read)
    text, added = await drafts.revise(guard, turns, _convert_ai_message(draft))
    usage = draft.usage_metadata
    if usage:
        usage = drafts.add_tokens(usage, added, drafts.RESPONSES_COUNTS)
    final = draft
    if text is not None:
        # LangChain counts tokens by model; all else there is the draft's.
        told = {k: v for k, v in draft.response_metadata.items() if k == "model_name"}
        final = AIMessage(text, response_metadata=told)
    # An id that LangChain made is that of a call that nobody sees.
    id_ = None if (final.id or "").startswith(LC_ID_PREFIX) else final.id
    final = final.model_copy(update={"usage_metadata": usage, "id": id_})
    return ChatResult(generations=[ChatGeneration(message=final)])


def turns_of(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form as the guard reads them."""
    return [turn for message in messages for turn in _convert_message(message)]


def _convert_message(message: BaseMessage) -> list[dict[str, Any]]:
    """Return a message in OpenAI's form; a tool's result and unknown blocks become words."""
    content = message.content
    if message.type == "tool":
        content = drafts.words_of(content)
    elif not isinstance(content, str):
        content = [_convert_block(message, block) for block in content]
    turns = convert_to_openai_messages([message.model_copy(update={"content": content})])
    return [
        turn | {"role": turn["role"] if turn["role"] in OPENAI_ROLES else "user"} for turn in turns
    ]


def _convert_block(message: BaseMessage, block: object) -> object:
    try:
        convert_to_openai_messages([message.model_copy(update={"content": [block]})])
    except (ValueError, KeyError):
        return {"type": "text", "text": drafts.words_of([block])}
    return block


def _convert_ai_message(draft: AIMessage) -> Reply:
    blocks = draft.content_blocks
    reasoning = "".join(block.get("reasoning", "") for block in blocks)
    calls = [block for block in blocks if block["type"] in ("tool_call", "invalid_tool_call")]
    called = [(call["id"], call["name"], call["args"]) for call in calls]
    return drafts.reply_of(str(draft.text), reasoning, called)


def _yield_generation_chunks(result: ChatResult) -> Iterator[ChatGenerationChunk]:
    """Yield the text in pieces, and everything else in the last one."""
    message = result.generations[0].message
    words = drafts.cut_pieces(message.content) if isinstance(message.content, str) else []
    for word in words:
        yield ChatGenerationChunk(message=AIMessageChunk(word, id=message.id))
    # A chunk has a type of its own.
    rest = message.model_dump(exclude={"type", "content"} if words else {"type"})
    last = {"content": ""} | rest | {"chunk_position": "last"}
    yield ChatGenerationChunk(message=AIMessageChunk(**last))
