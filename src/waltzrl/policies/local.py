"""A policy whose weights are in this process; calls that wait at the same time form a batch."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

import torch
from jinja2 import TemplateError
from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer
from peft import PeftModel
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from waltzrl.errors import CONTEXT_EXCEEDED, InputError, PolicyError
from waltzrl.policies.chat_completion import Json, chat_message
from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.decode import Ask, Decoded, decode
from waltzrl.policies.guide import (
    JsonGuide,
    LabelReader,
    LabelVocabulary,
    SchemaGuide,
    WordReader,
    WordVocabulary,
)
from waltzrl.policies.policy import Sampling
from waltzrl.policies.server_json import mend_text
from waltzrl.policies.weights import activate_adapter, end_ids
from waltzrl.policies.word_format import WordFormat
from waltzrl.records import Message, Reply, Tokens, ToolCall, Usage

Call = TypeVar("Call")
Result = TypeVar("Result")
_Guide: TypeAlias = JsonGuide | LabelReader | SchemaGuide | WordReader

DEEPEST = 100
"""Levels of objects and lists that are shown as such; Python's recursion has a limit."""
_ONE_AT_A_TIME = threading.Lock()
"""A model's attention and adapters are replaced while it decodes, and policies share models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a local policy decodes."""

    max_rows: int = 256
    """Largest number of replies in one batch."""
    max_tokens: int = 131_072
    """Largest number of tokens whose keys and values one batch keeps; lower it when memory is
    short."""
    in_thread: bool = False
    """Keep the event loop free while decoding, as a server must."""
    clamp: bool = False
    """Shorten the limit of a reply to the room that the context leaves, as a server should. Less
    room than an eighth of the context is an error nevertheless."""


class LocalPolicy:
    """Replies with a model in this process; calls that wait together are decoded together."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        adapter: str | None = None,
        *,
        seed: int = 0,
        decoding: Decoding | None = None,
        copy: DecodingCopy | None = None,
    ) -> None:
        """Make a policy of `model`.

        Args:
            model: may be shared with other policies, each with its own adapter.
            tokenizer: must have a chat template to reply.
            adapter: is active while this policy replies; None is the bare model.
            seed: of all sampling; see the method `seed`.
            decoding: how to decode; the defaults suit training on a CPU.
            copy: of the model, to decode with; it is updated before every batch. One in bfloat16
                moves log-probabilities by about a hundredth.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.revision = ""
        """The hash of the weights, where whoever loaded them knows it."""
        self._decoding = decoding or Decoding()
        self._name = str(model.config.name_or_path or "")
        self._end_ids = end_ids(model, tokenizer)
        self._special = _match_special_tokens(tokenizer)
        self.context: int | None = _read_context(model.config)
        """Most tokens of a conversation with its reply; None where the model does not say."""
        self._copy = copy
        self._generator = torch.Generator(model.device)
        self._decode = Batcher(self._serve, self._fits, in_thread=self._decoding.in_thread)
        self._vocabulary: LabelVocabulary | None = None
        """The vocabulary for the labels of the last format in JSON."""
        self._words: dict[WordFormat, WordVocabulary] = {}
        self.seed(seed)

    @property
    def end_id(self) -> int:
        """The token that ends an imitated turn: the tokenizer's, or else one of the model's.

        Raises:
            InputError: neither names any.
        """
        own = self.tokenizer.eos_token_id
        if own is None and not self._end_ids:
            raise InputError(
                f"neither the tokenizer nor the generation config of {self._name or 'this model'}"
                " names a token that ends a turn; set eos_token in its tokenizer_config.json"
            )
        return min(self._end_ids) if own is None else own

    def seed(self, number: int) -> None:
        """Restart the random numbers: the same calls in the same order get the same replies."""
        self._generator.manual_seed(number)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn, with its tokens and log-probabilities.

        Raises:
            InputError: the tokenizer has no chat template.
            PolicyError: the conversation and its reply do not fit into the model's context.
        """
        return await self._continue(
            self.render(messages, sampling.tools, sampling.template), sampling
        )

    async def continue_text(self, text: str, sampling: Sampling) -> Reply:
        """Continue a text in which special tokens may be spelt out, without a chat template.

        The tokenizer puts its first token, such as `<s>`, before the text.

        Raises:
            PolicyError: as in `reply`.
        """
        return await self._continue(tuple(self.tokenizer(text)["input_ids"]), sampling)

    async def _continue(self, prompt: tuple[int, ...], sampling: Sampling) -> Reply:
        started = time.perf_counter()
        sampling = self._limited(sampling, len(prompt))
        guide = self._guide(sampling)
        decoded = await self._decode(_Call(prompt=prompt, sampling=sampling, guide=guide))
        text = guide.text if isinstance(guide, JsonGuide) else self._text(decoded.ids)
        return Reply(
            text=sampling.cut(text),
            finish=decoded.finish,
            usage=Usage(input_tokens=len(prompt), output_tokens=len(decoded.ids), model=self._name),
            milliseconds=(time.perf_counter() - started) * 1e3,
            tokens=Tokens(prompt_ids=prompt, ids=decoded.ids, logprobs=decoded.logprobs),
            label_probabilities=() if guide is None else guide.probabilities,
        )

    def _limited(self, sampling: Sampling, length: int) -> Sampling:
        """Return the sampling with a limit that fits behind a prompt of `length` tokens."""
        if self.context is None or length + sampling.max_new_tokens <= self.context:
            return sampling
        room = self.context - length
        if self._decoding.clamp and room >= self.context // 8 > 0:
            return replace(sampling, max_new_tokens=room)
        raise PolicyError(
            f"the conversation has {length} tokens and may get"
            f" {sampling.max_new_tokens} more (max_new_tokens), but the model's context has"
            f" {self.context}; shorten the conversation or lower max_new_tokens",
            reason=CONTEXT_EXCEEDED,
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        template: Mapping[str, Json] | None = None,
    ) -> tuple[int, ...]:
        """Return the token ids of the conversation up to where the assistant's turn starts.

        A special token spelt out in a message stays text, so that a message cannot end its own
        turn. If the chat template has no place for a system message, it opens the next turn.

        Raises:
            InputError: the tokenizer has no chat template.
            PolicyError: the chat template rejects the conversation, or has no place for tools.
        """
        if self.tokenizer.chat_template is None:
            raise InputError(
                f"the tokenizer of {self.model.config.name_or_path or 'this model'} has no chat"
                " template; use an instruction-tuned model, or add a chat_template.jinja to its"
                " folder"
            )
        if tools and "tools" not in str(self.tokenizer.chat_template):
            raise PolicyError("tools: the model's chat template has no place for them; remove them")
        mergeable = messages[0].role == "system" and len(messages) > 1
        if not (mergeable and self._ignores_system):
            try:
                return self._templated(messages, tools, template or {})
            except TemplateError as error:
                if not mergeable:
                    raise PolicyError(
                        f"the chat template rejected the conversation: {error}"
                    ) from error
        system, first, *others = messages  # Gemma has no system role
        merged = replace(first, content=f"{system.content}\n\n{first.content}")
        return self.render([merged, *others], tools, template)

    @cached_property
    def _ignores_system(self) -> bool:
        """Whether the chat template leaves out a system message, as that of Phi-3 does."""
        asked = Message(role="user", content="Hello.")
        told = Message(role="system", content="Be brief.")
        try:
            return self._templated([told, asked], (), {}) == self._templated([asked], (), {})
        except TemplateError:
            return False

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text alone; special tokens spelt out in it stay text."""
        return tuple(self.tokenizer(self._plain(text), add_special_tokens=False)["input_ids"])

    def _templated(
        self, messages: Sequence[Message], tools: Sequence[Json], template: Mapping[str, Json]
    ) -> tuple[int, ...]:
        ids = self.tokenizer.apply_chat_template(
            [self._plain_values(self._turn(message)) for message in messages],
            tools=[self._plain_values(tool) for tool in tools] or None,
            add_generation_prompt=True,
            # Since transformers 5 it would be a dict of tensors and masks.
            return_dict=False,
            **template,
        )
        return tuple(ids)

    def _plain(self, text: str) -> str:
        """Make ordinary text of special tokens that are spelt out, and of half characters."""
        return self._special.sub(_break_up, mend_text(text))

    def _plain_values(self, value: Json) -> Json:
        """Make ordinary text of every string in a value, and of every name of a field."""
        if isinstance(value, str):
            return self._plain(value)
        if isinstance(value, Mapping):
            return {self._plain(name): self._plain_values(item) for name, item in value.items()}
        if isinstance(value, Sequence):
            return [self._plain_values(item) for item in value]
        return value

    def _turn(self, message: Message) -> Json:
        """Spell a turn for the chat template.

        A template that knows no tools reads a tool's turn as the user's, and calls as text.
        """
        if "tool" in str(self.tokenizer.chat_template):
            turn = chat_message(replace(message, calls=()))
            if message.calls:
                turn["tool_calls"] = [_template_call(call) for call in message.calls]
            return turn
        if message.role == "tool":
            return {"role": "user", "content": f"[tool result] {message.content}"}
        return {"role": message.role, "content": message.full_text}

    def _fits(self, batch: Sequence["_Call"], call: "_Call") -> bool:
        calls = [*batch, call]
        columns = max(len(c.prompt) for c in calls) + max(c.sampling.max_new_tokens for c in calls)
        return (
            len(calls) <= self._decoding.max_rows
            and len(calls) * columns <= self._decoding.max_tokens
            and _select_common_settings(calls[0].sampling)
            == _select_common_settings(call.sampling)  # as that of all before
        )

    def _serve(self, calls: Sequence["_Call"]) -> list[Decoded]:
        with _ONE_AT_A_TIME, self._decoding_model() as model:
            return decode(
                model,
                [self._ask(call) for call in calls],
                calls[0].sampling.temperature,
                self._end_ids,
                self._generator,
                calls[0].sampling.top_p,
            )

    def _ask(self, call: "_Call") -> Ask:
        enough, guide = call.sampling.enough, call.guide

        def done(ids: Sequence[int]) -> bool:
            ended = (
                guide.finished(ids)
                if isinstance(guide, SchemaGuide)
                else isinstance(guide, JsonGuide) and guide.finished
            )
            return ended or (enough is not None and enough(self._text(ids)))

        return Ask(
            prompt=call.prompt,
            limit=call.sampling.max_new_tokens,
            seed=call.sampling.seed,
            enough=None if enough is None and guide is None else done,
            guide=None if guide is None else guide.next,
        )

    def _guide(self, sampling: Sampling) -> _Guide | None:
        if sampling.schema is not None:
            seed = sampling.seed
            if seed is None:
                own = self._generator
                seed = int(torch.randint(2**62, (1,), generator=own, device=own.device))
            return SchemaGuide(self._grammar_tokenizer, sampling.schema, sampling.temperature, seed)
        json_format = sampling.format
        if json_format is None:
            return None
        if isinstance(json_format, WordFormat):
            if json_format not in self._words:
                self._words[json_format] = WordVocabulary(self.tokenizer, json_format)
            return WordReader(self.tokenizer, json_format, self._words[json_format])
        # Searching a vocabulary takes long, and most calls have the labels of the last one.
        if self._vocabulary is None or self._vocabulary.labels != json_format.labels:
            self._vocabulary = LabelVocabulary(self.tokenizer, json_format.labels)
        guide = JsonGuide if json_format.labels_first else LabelReader
        return guide(self.tokenizer, json_format, self._vocabulary)

    @cached_property
    def _grammar_tokenizer(self) -> LLTokenizer:
        """The tokenizer as grammars need it, made when a reply first has to fit a schema.

        Raises:
            InputError: it cannot be made of this tokenizer.
        """
        try:
            return from_tokenizer(self.tokenizer)
        except ValueError as error:
            raise InputError(
                f"the tokenizer of {self._name or 'this model'} cannot keep a reply to a schema: "
                f"{error}; leave out response_format, or serve the model by vLLM"
            ) from error

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _decoding_model(self) -> AbstractContextManager[PreTrainedModel]:
        """Return what decodes, with the newest weights: the copy, or the model itself."""
        if self._copy is None:
            return activate_adapter(self.model, self.adapter)
        return nullcontext(self._copy.updated(self.adapter))


def _read_context(config: PretrainedConfig) -> int | None:
    """Return the most tokens that a model may read; None where its config does not say.

    LongRoPE encodes every position otherwise once a sequence is longer than the original context.
    Rows of one batch, and turns of one pack, would so change each other.
    """
    text = config.get_text_config()  # a model with vision keeps this in the config of its text part
    most: int | None = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if most is not None and rope.get("rope_type") == "longrope":
        original: int = rope["original_max_position_embeddings"]
        return min(most, original)
    return most


def _template_call(call: ToolCall) -> Json:
    """Return a call as chat templates expect it: its arguments are an object."""
    try:
        arguments: Json = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    if _is_deep(arguments):
        arguments = call.arguments
    function: Json = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _is_deep(value: Json) -> bool:
    """Return whether objects and lists stand within each other `DEEPEST` times or more."""
    level: list[Json] = [value]
    for _ in range(DEEPEST):
        objects = [inner for item in level if isinstance(item, dict) for inner in item.values()]
        lists = [inner for item in level if isinstance(item, list) for inner in item]
        level = [*objects, *lists]
    return bool(level)


def _select_common_settings(sampling: Sampling) -> tuple[float, float]:
    """Return what all calls of a batch must have in common."""
    return sampling.temperature, sampling.top_p


def _match_special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Match every token with a special meaning, such as the end of a turn."""
    names = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def _break_up(token: re.Match[str]) -> str:
    """Put a space after the first letter, which makes the token ordinary text."""
    return f"{token[0][0]} {token[0][1:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A rendered conversation that waits for its reply."""

    prompt: tuple[int, ...]
    sampling: Sampling
    guide: _Guide | None


class Batcher(Generic[Call, Result]):
    """Serves single calls in batches, without a timer.

    A batch starts when the one before it is done and a pass of the event loop has added no call:
    by then every task that was ready has joined, and the same calls always form the same batches.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Call]], Sequence[Result]],
        fits: Callable[[Sequence[Call], Call], bool],
        *,
        in_thread: bool = False,
    ) -> None:
        """Prepare to batch.

        Args:
            serve: answers a batch, in order.
            fits: whether one more call may join the calls of a batch.
            in_thread: leave the event loop free while a batch is served.
        """
        self._serve = serve
        self._fits = fits
        self._in_thread = in_thread
        self._open: list[_Batch[Call, Result]] = []
        self._newest: asyncio.Task[dict[int, Result]] | None = None

    async def __call__(self, call: Call) -> Result:
        """Return the result of `call`; an error of `serve` is raised in every call of its batch."""
        batch = self._batch_for(call)
        position = batch.join(call)
        try:
            # Shielded: one cancelled caller must not cancel the batch of all others.
            return (await asyncio.shield(batch.task))[position]
        finally:
            batch.waiting.pop(position, None)

    def _batch_for(self, call: Call) -> "_Batch[Call, Result]":
        # A batch whose event loop ended before it began was cancelled, and never left the list.
        self._open = [batch for batch in self._open if not batch.task.done()]
        for batch in self._open:
            if self._fits(list(batch.waiting.values()), call):
                return batch
        batch = _Batch()
        batch.task = self._newest = asyncio.create_task(self._run(batch, self._newest))
        self._open.append(batch)
        return batch

    async def _run(
        self, batch: "_Batch[Call, Result]", previous: "asyncio.Task[dict[int, Result]] | None"
    ) -> dict[int, Result]:
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        joined = 0
        while batch.joined > joined:
            joined = batch.joined
            await asyncio.sleep(0)  # lets every ready task join
        self._open.remove(batch)
        # A copy, because callers that are cancelled while it is served leave `batch.waiting`.
        waiting = dict(batch.waiting)
        if not waiting:
            return {}
        calls = list(waiting.values())
        if self._in_thread:
            served = await asyncio.to_thread(self._serve, calls)
        else:
            served = self._serve(calls)
        return dict(zip(waiting, served, strict=True))


class _Batch(Generic[Call, Result]):
    """Calls that will be served together."""

    task: "asyncio.Task[dict[int, Result]]"

    def __init__(self) -> None:
        self.joined = 0
        self.waiting: dict[int, Call] = {}
        """The waiting calls by position; a cancelled call is removed."""

    def join(self, call: Call) -> int:
        position = self.joined
        self.waiting[position] = call
        self.joined += 1
        return position
