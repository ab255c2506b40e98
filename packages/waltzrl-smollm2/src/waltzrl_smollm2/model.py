"""The first layers of a language model with low-rank adapters, and a head that labels an exchange.

One pass reads the request and the reply in the model's chat format. The model is causal, so what is
pooled over the request knows nothing of the reply, and what is pooled over the reply has read the
request.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import LoraConfig, LoraModel
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaModel, PreTrainedTokenizerBase

LABELS = ("harmful", "unsafe", "refuses")
"""The request asks for something harmful; the reply gives it; the reply declines."""
TURN_MARKS = re.compile(r"<\|[a-z_]{1,20}\|>")
CHARACTERS_READ = 32
"""Characters of a text that are read for each token that is kept."""
ADAPTERS = "reviewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the classifier; stored with its weights."""

    layers: int = 18
    """Layers of the base that are used."""
    frozen: int = 4
    """The first of them, which are not trained."""
    rank: int = 16
    """Of the adapters; 0 trains the layers themselves."""
    hidden: int = 128
    """Width of the head."""


class Classifier(nn.Module):
    """Labels exchanges of a request and a reply."""

    def __init__(self, base: LlamaModel, shape: Shape) -> None:
        """Take the first layers of `base`, which is changed: its other layers are dropped."""
        super().__init__()
        self.shape = shape
        base.layers = base.layers[: shape.layers]
        base.config.num_hidden_layers = shape.layers
        # It was trained for the output of the last layer; `_pooled` normalises what it pools.
        base.norm = nn.Identity()
        self.base: nn.Module = base
        if shape.rank:
            adapted = "|".join(map(str, range(shape.frozen, shape.layers)))
            adapters = LoraConfig(
                r=shape.rank,
                lora_alpha=shape.rank,
                target_modules=rf"layers\.({adapted})\..*_proj",
            )
            self.base = LoraModel(base, adapters, ADAPTERS)
        else:
            base.requires_grad_(False)
            base.layers[shape.frozen :].requires_grad_(True)
        width = 3 * base.config.hidden_size
        self.of_request = nn.Sequential(
            nn.Linear(width, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, 1)
        )
        self.of_reply = nn.Sequential(
            nn.Linear(2 * width, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, 2)
        )

    def forward(self, tokens: Tensor, requests: Tensor, replies: Tensor) -> Tensor:
        """Compute the logits of `LABELS`.

        Args:
            tokens: [B, T] ids, padded at the end.
            requests: [B, T] true where the request is.
            replies: [B, T] true where the reply is.

        Returns:
            [B, 3]
        """
        states = self.base(input_ids=tokens, use_cache=False).last_hidden_state
        request, reply = _pooled(states, requests), _pooled(states, replies)
        return torch.cat(
            [self.of_request(request), self.of_reply(torch.cat([request, reply], -1))], -1
        )

    def trained(self) -> dict[str, Tensor]:
        """Return what was trained, by name: the head, and adapters or layers."""
        return {name: value for name, value in self.named_parameters() if value.requires_grad}

    def merge(self) -> None:
        """Add the adapters to the base, so that a pass costs no more than without them."""
        if isinstance(self.base, LoraModel):
            self.base = self.base.merge_and_unload()


def _pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Mean, maximum and last of the marked states, each normalised: [B, T, D] -> [B, 3 D]."""
    states, mask = states.float(), mask.unsqueeze(-1)
    mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
    highest = states.masked_fill(~mask, -1e4).amax(1)
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(-1)
    rows = torch.arange(len(states), device=mask.device)
    last = states[rows, (positions * mask).amax(1).squeeze(-1)]
    return torch.cat(
        [functional.layer_norm(part, part.shape[-1:]) for part in (mean, highest, last)], -1
    )


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns exchanges into batches; long texts keep their beginning and end."""

    tokenizer: PreTrainedTokenizerBase
    longest_request: int = 128
    """Tokens."""
    longest_reply: int = 256

    def encode_all(self, exchanges: Sequence[tuple[str, str]]) -> list[tuple[list[int], int, int]]:
        """Return the ids of each, and where request and reply begin; each ends with its turn."""
        opening, between, end = (
            self._ids([text])[0]
            for text in ("<|im_start|>user\n", "\n<|im_start|>assistant\n", "<|im_end|>")
        )
        requests = self._text_ids([request for request, _ in exchanges], self.longest_request)
        replies = self._text_ids([reply for _, reply in exchanges], self.longest_reply)
        encoded = []
        for request, reply in zip(requests, replies, strict=True):
            before = [*opening, *request, *end, *between]
            encoded.append(([*before, *reply, *end], len(opening), len(before)))
        return encoded

    def batch(self, encoded: Sequence[tuple[list[int], int, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Pad a batch; see `Classifier.forward`."""
        longest, between = (
            max(len(ids) for ids, *_ in encoded),
            len(self._ids(["\n<|im_start|>assistant\n"])[0]),
        )
        tokens = torch.zeros(len(encoded), longest, dtype=torch.long)
        requests, replies = (torch.zeros(len(encoded), longest, dtype=torch.bool) for _ in range(2))
        for row, (ids, request, reply) in enumerate(encoded):
            tokens[row, : len(ids)] = torch.tensor(ids)
            # With the mark that ends the turn, whose state has read the whole request.
            requests[row, request : reply - between] = True
            replies[row, reply : len(ids)] = True
        return tokens, requests, replies

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def _text_ids(self, texts: Sequence[str], longest: int) -> list[list[int]]:
        """Ids of what people wrote, who must not be able to end a turn; `longest` at most."""
        half = longest // 2
        kept = 2 * half * CHARACTERS_READ  # the middle need not be tokenized to be dropped
        cut = (
            text
            if len(text) <= kept
            else f"{text[: half * CHARACTERS_READ]} {text[-half * CHARACTERS_READ :]}"
            for text in texts
        )
        encoded = self._ids([TURN_MARKS.sub(" ", text) for text in cut])
        return [ids if len(ids) <= longest else [*ids[:half], *ids[-half:]] for ids in encoded]
