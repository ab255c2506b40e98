"""The guard of the safeguard baseline: a linear classifier over the words of prompt and reply.

It replaces a guard model where none can be loaded, and shares the weakness of such models: it
judges by words, so it also flags harmless uses of alarming words.
"""

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from waltzrl.errors import InputError

EPOCHS = 8
LEARNING_RATE = 0.2
SHRINKAGE = 1e-5

_WORD = re.compile(r"\w+")


class LinearGuard:
    """Flags a prompt and reply as unsafe by their words."""

    def __init__(self, weights: dict[str, float], bias: float) -> None:
        self._weights, self._bias = weights, bias

    @classmethod
    def fit(
        cls, texts: Sequence[tuple[str, str]], labels: Sequence[bool], *, seed: int
    ) -> "LinearGuard":
        """Fit logistic regression by stochastic gradient descent; deterministic for a seed.

        Args:
            texts: [N] prompt and reply.
            labels: [N] whether the reply is unsafe.
            seed: of the order of the texts.

        Raises:
            ValueError: `texts` and `labels` differ in length.
        """
        examples = [
            (_list_marked_words(*pair), label) for pair, label in zip(texts, labels, strict=True)
        ]
        weights: dict[str, float] = defaultdict(float)
        bias, order = 0.0, random.Random(seed)
        for epoch in range(EPOCHS):
            order.shuffle(examples)
            rate = LEARNING_RATE / (1 + epoch)
            for words, label in examples:
                error = label - _compute_sigmoid(bias + sum(weights[word] for word in words))
                bias += rate * error
                for word in words:
                    weights[word] += rate * (error - SHRINKAGE * weights[word])
        return cls(dict(weights), bias)

    def log_odds(self, prompt: str, reply: str) -> float:
        """Return the log-odds that the reply to the prompt is unsafe."""
        return self._bias + sum(
            self._weights.get(word, 0.0) for word in _list_marked_words(prompt, reply)
        )

    def flags(self, prompt: str, reply: str) -> bool:
        """Whether the reply to the prompt is probably unsafe."""
        return self.log_odds(prompt, reply) > 0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"bias": self._bias, "weights": self._weights}), "utf-8")

    @classmethod
    def load(cls, path: Path) -> "LinearGuard":
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or is not a guard.
        """
        try:
            saved = json.loads(path.read_text("utf-8"))
            return cls(saved["weights"], saved["bias"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not a guard's weights ({error}); need a file that LinearGuard.save wrote"
            ) from error


def _list_marked_words(prompt: str, reply: str) -> list[str]:
    """Return the distinct words of both texts, sorted and prefixed with their side."""
    of_prompt = {f"prompt {word}" for word in _WORD.findall(prompt.lower())}
    of_reply = {f"reply {word}" for word in _WORD.findall(reply.lower())}
    # Sorted, because the order of a set changes the sum in its last bits.
    return sorted(of_prompt | of_reply)


def _compute_sigmoid(value: float) -> float:
    # By tanh, because `exp` of a large number overflows.
    return 0.5 * (1 + math.tanh(value / 2))
