"""Random checkpoints of every family we support, two layers deep, with a tokenizer of their own."""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from waltzrl.policies.weights import CausalLM

CONTEXT = 128
TEXT = [
    "How do I kill a process on Linux? Use kill with the number of the process.",
    "Sorry, I can not help with that. Here is how to bake bread without an oven.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|stop|>", "<|system|>", "<|user|>", "<|assistant|>"]
PAD_ID, END_ID, STOP_ID = range(3)

_SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": PAD_ID,
    "bos_token_id": None,
    "eos_token_id": [END_ID, STOP_ID],
    "initializer_range": 0.5,  # so far from zero that the likeliest token is never nearly a tie
}
_FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 8}),
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {"head_dim": 8, "sliding_window": 8, "attn_logit_softcapping": 2.0},
    ),
}
FAMILIES = tuple(_FAMILIES)


def tiny_model(family="qwen2", seed=0, context=CONTEXT):
    """Make a causal LM of `family` with random weights; its replies end with either of two ids."""
    kind, config, special = _FAMILIES[family]
    torch.manual_seed(seed)
    size = _SIZE | special | {"max_position_embeddings": context}
    model = kind(config(**size, vocab_size=len(tiny_tokenizer()))).eval()
    return CausalLM(model=model, tokenizer=tiny_tokenizer())


def tiny_architecture(name, **special):
    """Make a random model of another architecture, by the name of its config."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **(_SIZE | special), vocab_size=len(tiny_tokenizer()))
    return AutoModelForCausalLM.from_config(config).eval()


@cache
def _trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def tiny_tokenizer(chat_template=CHAT_TEMPLATE):
    """Make a byte-level BPE that knows `TEXT` well and can spell everything else."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_trained(),
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=chat_template,
    )
