"""Keeps the reply of a model in this process to a JSON format, and reads its labels' odds."""

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from waltzrl.policies.json_format import (
    BEFORE_VALUE,
    JsonField,
    JsonFormat,
    in_order,
    read_label_value,
)
from waltzrl.policies.json_schema import JsonSchema
from waltzrl.policies.word_format import WordFormat

SPACES = "\u0120\u010a\u0109\u2581 \t\n"
"""White space, as text and as vocabularies spell it."""
QUOTE = re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL)
"""A string of JSON, without its opening, up to its closing quotation mark."""
TAIL_TOKENS = 32
"""The last tokens among which the name of a label is looked for."""

Steps: TypeAlias = "Generator[int | None, Tensor, Tensor]"
"""Yields the token that must come next, None for any, and gets the logits of the one after."""


class LabelVocabulary:
    """The tokens of a tokenizer that say whether a label is true."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]) -> None:
        """Search the vocabulary, some tenths of a second of a large one.

        Args:
            tokenizer: of the model that replies.
            labels: names of boolean fields.
        """
        self.labels = tuple(labels)
        named = re.compile(rf'"({"|".join(map(re.escape, labels))})":\s*(true|false)')
        self._meanings: dict[int, tuple[str, bool]] = {}
        """The label that each token names, empty if that comes before it, and the value."""
        for token, token_id in tokenizer.get_vocab().items():
            if match := named.search(token):
                self._meanings[token_id] = (match[1], match[2] == "true")
            elif (meaning := read_label_value(token.strip(SPACES))) is not None:
                self._meanings[token_id] = ("", meaning)
        self._groups: dict[tuple[str, bool], list[int]] = {}
        for token_id, key in self._meanings.items():
            self._groups.setdefault(key, []).append(token_id)

    def label(self, token_id: int) -> str | None:
        """Return the label that a token names, empty for a bare value; None for other tokens."""
        meaning = self._meanings.get(token_id)
        return None if meaning is None else meaning[0]

    def probability(
        self, label: str, logits: Tensor, true: int | None = None, false: int | None = None
    ) -> float:
        """Return the probability of true, renormalised over all tokens for true and for false.

        Args:
            label: the label that the tokens name themselves; empty for bare values.
            logits: [V].
            true: one more token for true.
            false: one more token for false.
        """
        sums = [
            logits[[*({*self._groups.get((label, value), ()), more} - {None})]]
            for value, more in ((True, true), (False, false))
        ]
        # The sigmoid of the difference of both log-sums is p(true) / (p(true) + p(false)).
        likelier, other = (group.float().logsumexp(-1) for group in sums)
        return float(torch.sigmoid(likelier - other))


class LabelReader:
    """Reads the probabilities of labels while a model writes freely, greedily."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        json_format: JsonFormat,
        vocabulary: LabelVocabulary,
    ) -> None:
        self._tokenizer = tokenizer
        self._format = json_format
        self._vocabulary = vocabulary
        self._found: dict[str, float] = {}

    def next(self, ids: Sequence[int], logits: Tensor) -> int | None:
        """Look at the logits [V] of the token after `ids`; every token is permitted."""
        label = self._vocabulary.label(int(logits.argmax()))
        if label is None:
            return None
        name = label
        if not name:
            before = BEFORE_VALUE.search(str(self._tokenizer.decode(ids[-TAIL_TOKENS:])))
            name = before[1] if before else ""
        if name in self._format.labels:
            self._found[name] = self._vocabulary.probability(label, logits)
        return None

    @property
    def probabilities(self) -> tuple[float, ...]:
        """[labels] of the last value of each; empty if one was not read."""
        return in_order(self._format.labels, self._found)


class WordVocabulary:
    """The tokens of a tokenizer that begin the words of each label."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, word_format: WordFormat) -> None:
        """Search the vocabulary, some tenths of a second of a large one."""
        self._groups: dict[str, list[list[int]]] = {}
        """The tokens of each label's words for false, for true, and for neither."""
        vocabulary = tokenizer.get_vocab().items()
        for label in word_format.words:
            groups: list[list[int]] = [[], [], []]
            for token, token_id in vocabulary:
                if (group := label.group(token)) is not None:
                    groups[group].append(token_id)
            self._groups[label.name] = groups

    def probability(self, label: str, logits: Tensor) -> float:
        """Return the probability of true, renormalised over the label's words, given [V]."""
        false, true, undecided = self._groups[label]
        others = logits[[*false, *undecided]].float().logsumexp(-1)
        return float(torch.sigmoid(logits[true].float().logsumexp(-1) - others))


class WordReader:
    """Reads the probabilities of labels in words while a model writes freely."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        word_format: WordFormat,
        vocabulary: WordVocabulary,
    ) -> None:
        self._tokenizer = tokenizer
        self._format = word_format
        self._vocabulary = vocabulary
        self._found: dict[str, float] = {}

    def next(self, ids: Sequence[int], logits: Tensor) -> int | None:
        """Look at the logits [V] of the token after `ids`; every token is permitted."""
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        for label in self._format.words:
            if label.is_next(text):
                self._found[label.name] = self._vocabulary.probability(label.name, logits)
        return None

    @property
    def probabilities(self) -> tuple[float, ...]:
        """[labels] of the last place of each; empty if one was not reached."""
        return in_order(self._format.labels, self._found)


class SchemaGuide:
    """Permits only the tokens of a JSON object that fits a schema."""

    probabilities = ()
    """The probabilities of labels, of which it has none."""

    def __init__(
        self, tokenizer: LLTokenizer, schema: JsonSchema, temperature: float, seed: int
    ) -> None:
        """Start a reply.

        Args:
            tokenizer: of the model that replies.
            schema: of the reply.
            temperature: 0 takes the likeliest token that is permitted.
            seed: of its random numbers.
        """
        self._matcher = LLMatcher(tokenizer, schema.grammar, log_level=0)
        self._read = 0
        """The tokens that the matcher has seen."""
        self._temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)

    def next(self, ids: Sequence[int], logits: Tensor) -> int:
        """Choose the token after `ids` by its logits [V]; one that ends if no other fits."""
        self._consume(ids)
        # A byte for each token, 0 where it is not permitted.
        bias = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        # Either may be longer: models pad their vocabulary, and tokenizers get tokens added.
        scores = logits[: len(bias)].float().cpu()
        if self._temperature:
            # The largest sum of a logit and Gumbel noise is a sample of the softmax, also among
            # the permitted tokens alone.
            uniform = torch.rand(scores.shape, generator=self._generator).clamp_min(1e-30)
            scores = scores / self._temperature - (-uniform.log()).log()
        return int(scores.masked_fill(bias[: len(scores)] == 0, -torch.inf).argmax())

    def finished(self, ids: Sequence[int]) -> bool:
        """Return whether the tokens spell a whole object that fits."""
        self._consume(ids)
        return bool(self._matcher.is_accepting())

    def _consume(self, ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(ids[self._read :]))
        self._read = len(ids)


class JsonGuide:
    """Permits only the tokens of a JSON object, and reads the probabilities of its labels.

    Of each label and choice the model's preference is taken, and a string is what it prefers to
    write up to a quotation mark. `text` is well-formed wherever the reply is cut.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        json_format: JsonFormat,
        vocabulary: LabelVocabulary,
    ) -> None:
        self.finished = False
        """True if the next token is the last one."""
        self._tokenizer = tokenizer
        self._format = json_format
        self._vocabulary = vocabulary
        self._values: dict[str, object] = {}
        self._found: dict[str, float] = {}
        self._steps = self._object()
        # A generator has to reach its first `yield` before it takes a value.
        next(self._steps)

    def next(self, ids: Sequence[int], logits: Tensor) -> int | None:
        """Return the token that must come after `ids`, given its logits [V]."""
        return self._steps.send(logits)

    @property
    def text(self) -> str:
        """The object of all fields so far."""
        return json.dumps(self._values, ensure_ascii=False)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """[labels] the probability of each; empty if the reply was cut before the last."""
        return in_order(self._format.labels, self._found)

    def _object(self) -> Steps:
        """Yield the tokens of the object; each `yield` returns the logits of the next one."""
        logits = yield None
        opening = "{"
        for field in self._format.fields:
            opening += f'"{field.name}": '
            write = self._choice if field.values else self._string
            logits = yield from write(opening, field, logits)
            opening = ", "
        self.finished = True
        while True:
            yield self._encode("}")[-1]

    def _choice(self, opening: str, field: JsonField, logits: Tensor) -> Steps:
        left = {value: self._encode(opening + value) for value in field.values}
        for place in range(max(map(len, left.values()))):
            choices = {tokens[place]: value for value, tokens in left.items()}
            token = self._preferred(field, choices, logits)
            left = {value: tokens for value, tokens in left.items() if tokens[place] == token}
            if len(left) == 1:
                self._values[field.name] = json.loads(next(iter(left)))
            if all(len(tokens) == place + 1 for tokens in left.values()):
                break
            logits = yield token
        return (yield token)

    def _preferred(self, field: JsonField, choices: Mapping[int, str], logits: Tensor) -> int:
        """Return the likeliest of some tokens; of a label's, by all ways to spell its value."""
        if len(choices) == 1 or not field.is_label:
            return max(choices, key=lambda token: float(logits[token]))
        # In reverse order "true" comes before "false".
        true, false = sorted(choices, key=lambda token: choices[token], reverse=True)
        probability = self._vocabulary.probability("", logits, true, false)
        self._found[field.name] = probability
        return true if probability >= 0.5 else false

    def _string(self, opening: str, field: JsonField, logits: Tensor) -> Steps:
        for token in self._encode(f'{opening}"'):
            logits = yield token
        tokens: list[int] = []
        while True:
            tokens.append(int(logits.argmax()))
            written = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
            self._values[field.name] = _unescape_content(written)
            if QUOTE.match(written) or tokens[-1] in self._tokenizer.all_special_ids:
                # The last token may hold more than the mark, such as a comma that `opening` brings
                # again, so the mark alone takes its place.
                return (yield self._encode('"')[-1])
            logits = yield tokens[-1]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _unescape_content(written: str) -> str:
    """Return the value of a string of JSON without its quotation marks, up to the closing one."""
    end = QUOTE.match(written)
    content = end[1] if end else written
    try:
        return str(json.loads(f'"{content}"', strict=False))
    except ValueError:  # such as half an escape
        return content
