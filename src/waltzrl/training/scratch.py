"""Small causal language models made from nothing: a word-level tokenizer and random weights."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from waltzrl.policies.weights import CausalLM

END, PAD = "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
FRAME = (
    "<conversation>", "</conversation>", "<reply>", "</reply>", "<feedback>", "</feedback>",
    '{"reasoning": "', '", "unsafe": true', '", "unsafe": false',
    ', "overrefuse": true, "feedback": "', ', "overrefuse": false, "feedback": "', '"}',
)  # fmt: skip
"""Fixed strings of the protocol; one token each keeps the small models' contexts short."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model made from scratch."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 512
    """Longest sequence in tokens."""

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.heads, self.context) < 1:
            raise ValueError("hidden, layers, heads and context of a model are 1 or more")
        if self.hidden % (2 * self.heads) or (self.heads > 1 and self.heads % 2):
            raise ValueError(
                f"hidden must be a multiple of twice the heads, and heads even or 1, got hidden "
                f"{self.hidden} and heads {self.heads}"
            )


def create_model(texts: Iterable[str], size: ModelSize, seed: int) -> CausalLM:
    """Make a Llama-shaped model with random weights that knows the words of `texts`."""
    tokenizer = create_tokenizer(texts)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(1, size.heads // 2),
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CausalLM(model=LlamaForCausalLM(config).eval(), tokenizer=tokenizer)


def create_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make one token of every word in `texts`; any other text falls back to bytes."""
    split = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\w\s]+|\s+"), behavior="isolated")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(piece for piece, _ in split.pre_tokenize_str(text))
    unknown = [("<|unk|>", 0.0)]
    raw_bytes = [(f"<0x{value:02X}>", -20.0) for value in range(256)]
    pieces: Sequence[tuple[str, float]] = [(word, -1.0) for word in sorted(words)]
    model = models.Unigram([*unknown, *raw_bytes, *pieces], unk_id=0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    special = [AddedToken(text, special=True, normalized=False) for text in (PAD, END, *ROLES)]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in FRAME])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
