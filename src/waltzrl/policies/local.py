"""A policy whose weights live in this process."""

import copy
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jinja2 import TemplateError
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from waltzrl.errors import InputError, PolicyError
from waltzrl.policies.batching import Batcher
from waltzrl.policies.chat_completion import chat_message
from waltzrl.policies.decode import Ask, Decoded, decode
from waltzrl.policies.policy import Sampling
from waltzrl.policies.weights import activated, end_ids, narrow
from waltzrl.records import Message, Reply, Tokens, Usage

_ONE_AT_A_TIME = threading.Lock()
"""A model's attention and adapters are exchanged while it decodes, and policies share models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a local policy decodes."""

    max_rows: int = 256
    """Most replies in one batch."""
    max_tokens: int = 131_072
    """Most tokens for which one batch may keep keys and values; lower it when memory is short."""
    dtype: torch.dtype | None = None
    """Decode with a copy of the weights in this dtype, made anew for every batch.

    bfloat16 decodes faster where the weights are float32, and moves log-probabilities by about
    a hundredth. None decodes with the weights themselves.
    """
    in_thread: bool = False
    """Keep the event loop free while decoding, as a server must."""


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
    ) -> None:
        """Make a policy of `model`.

        Args:
            model: may be shared with other policies, each with its own adapter.
            tokenizer: must have a chat template to reply.
            adapter: what is switched on while this policy replies; None is the bare model.
            seed: of all sampling, see `seed`.
            decoding: how to decode; the defaults suit training on a CPU.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.adapter = adapter
        self._decoding = decoding or Decoding()
        self._name = str(model.config.name_or_path or "")
        self._end_ids = end_ids(model, tokenizer)
        self._special = _special_tokens(tokenizer)
        self._context: int | None = getattr(
            model.config.get_text_config(), "max_position_embeddings", None
        )
        dtype = self._decoding.dtype
        self._copy = None if dtype in {None, model.dtype} else _copy_in(dtype, model)
        self._generator = torch.Generator(model.device)
        self._decode = Batcher(self._serve, self._fits, in_thread=self._decoding.in_thread)
        self.seed(seed)

    def seed(self, number: int) -> None:
        """Begin chance anew: the same calls, made in the same order, get the same replies."""
        self._generator.manual_seed(number)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn, with its tokens and log-probabilities.

        Raises:
            InputError: the tokenizer has no chat template.
            PolicyError: the conversation and its reply do not fit into the model's context.
        """
        started = time.perf_counter()
        prompt = self.render(messages)
        if self._context is not None and len(prompt) + sampling.max_new_tokens > self._context:
            raise PolicyError(
                f"the conversation has {len(prompt)} tokens and may get"
                f" {sampling.max_new_tokens} more (max_new_tokens), but the model's context has"
                f" {self._context}; shorten the conversation or lower max_new_tokens"
            )
        decoded = await self._decode(_Call(prompt=prompt, sampling=sampling))
        return Reply(
            text=sampling.cut(self._text(decoded.ids)),
            finish=decoded.finish,
            usage=Usage(input_tokens=len(prompt), output_tokens=len(decoded.ids), model=self._name),
            milliseconds=(time.perf_counter() - started) * 1e3,
            tokens=Tokens(prompt_ids=prompt, ids=decoded.ids, logprobs=decoded.logprobs),
        )

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of the conversation up to where the assistant speaks next.

        A special token spelt out in a message stays text, so that nobody can end a turn from
        inside. Where the chat template knows no system role, the system message opens the next
        turn.

        Raises:
            InputError: the tokenizer has no chat template.
            PolicyError: the chat template refuses the conversation.
        """
        if self.tokenizer.chat_template is None:
            raise InputError(
                f"the tokenizer of {self.model.config.name_or_path or 'this model'} has no chat"
                " template; use an instruction-tuned model, or add a chat_template.jinja to its"
                " folder"
            )
        try:
            return self._templated(messages)
        except TemplateError as error:
            if messages[0].role != "system" or len(messages) == 1:
                raise PolicyError(f"the chat template refused the conversation: {error}") from error
        system, first, *others = messages  # Gemma knows no system role
        together = Message(role=first.role, content=f"{system.content}\n\n{first.content}")
        return self.render([together, *others])

    def _templated(self, messages: Sequence[Message]) -> tuple[int, ...]:
        turns = [self._turn(message) for message in messages]
        ids = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=False
        )
        return tuple(ids)

    def _turn(self, message: Message) -> Mapping[str, object]:
        """Spell a turn for the chat template.

        A template that knows no tools reads a tool's turn as the user's, and calls as text.
        """
        text = self._special.sub(_apart, message.content)
        if "tool" in str(self.tokenizer.chat_template):
            return chat_message(replace(message, content=text))
        if message.role == "tool":
            return {"role": "user", "content": f"[tool result] {text}"}
        full_text = self._special.sub(_apart, message.full_text)
        return {"role": message.role, "content": full_text}

    def _fits(self, batch: Sequence["_Call"], call: "_Call") -> bool:
        calls = [*batch, call]
        columns = max(len(c.prompt) for c in calls) + max(c.sampling.max_new_tokens for c in calls)
        return (
            len(calls) <= self._decoding.max_rows
            and len(calls) * columns <= self._decoding.max_tokens
            and all(c.sampling.temperature == call.sampling.temperature for c in batch)
        )

    def _serve(self, calls: Sequence["_Call"]) -> list[Decoded]:
        with _ONE_AT_A_TIME, activated(self._current_weights(), self.adapter) as model:
            return decode(
                model,
                [self._ask(call) for call in calls],
                calls[0].sampling.temperature,
                self._end_ids,
                self._generator,
            )

    def _ask(self, call: "_Call") -> Ask:
        enough, limit = call.sampling.enough, call.sampling.max_new_tokens
        if enough is None:
            return Ask(prompt=call.prompt, limit=limit)
        return Ask(prompt=call.prompt, limit=limit, enough=lambda ids: enough(self._text(ids)))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _current_weights(self) -> PreTrainedModel | PeftModel:
        """Return the model, or its copy in the dtype of decoding, brought up to date."""
        if self._copy is None:
            return self.model
        with torch.no_grad():
            pairs = zip(self._copy.parameters(), self.model.parameters(), strict=True)
            for copied, original in pairs:
                copied.copy_(original)
        return self._copy


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Match every token that means more than its letters, such as the end of a turn."""
    names = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def _apart(token: re.Match[str]) -> str:
    """Put a space after the first letter, which makes it any other text."""
    return f"{token[0][0]} {token[0][1:]}"


def _copy_in(dtype: torch.dtype, model: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """Copy `model` with its parameters in `dtype`."""
    copied = copy.deepcopy(model)
    narrow(copied, dtype)
    return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A rendered conversation that waits for its reply."""

    prompt: tuple[int, ...]
    sampling: Sampling
