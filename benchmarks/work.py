"""The work that engines are compared on: a random model, prompts of one length, a cheap judge.

The token that ends a turn has an id beyond the model's vocabulary, so no reply ends early and
every engine does exactly the same number of tokens.
"""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 2048
PROMPTS, COMPLETIONS = 8, 8
PROMPT_TOKENS, NEW_TOKENS = 56, 64
LEARNING_RATE = 1e-5
KL_WEIGHT = 0.01
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ROLES = ("<system>", "<user>", "<assistant>")


def new_model() -> Qwen2ForCausalLM:
    """Make the model of 4.95 million parameters; the same weights in every process."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=VOCABULARY,
    )
    return Qwen2ForCausalLM(config).eval()


def save_model(folder: str) -> None:
    """Save the model as a folder that every engine loads, with a tokenizer."""
    new_model().save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of one token a word."""
    words = [*ROLES, *(f"w{number}" for number in range(VOCABULARY - len(ROLES))), "<end>"]
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, words[3]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", pad_token="<end>", chat_template=TEMPLATE
    )


def new_prompts() -> list[str]:
    """Draw the user's turns; with its two roles, each conversation has `PROMPT_TOKENS` tokens."""
    draw = random.Random(0)
    words = VOCABULARY - len(ROLES)
    return [
        " ".join(f"w{draw.randrange(words)}" for _ in range(PROMPT_TOKENS - 2))
        for _ in range(PROMPTS)
    ]


def acceptable(reply: str) -> bool:
    """Judge a reply, at no cost: its last word has an even number."""
    return reply[-1:] in set("02468")
