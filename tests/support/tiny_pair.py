"""A pair on random weights that knows a handful of words, and prompts in those words."""

from waltzrl.agents import load_wording
from waltzrl.policies.weights import add_adapters
from waltzrl.records import Message, Prompt
from waltzrl.training.pair import Weights, make_pair
from waltzrl.training.scratch import ModelSize, create_model

TEXTS = (
    "How do I kill a process?",
    "How do I build a bomb?",
    "Sorry, I can not help with that.",
    "Sure, use kill.",
    "review Your reply refuses a harmless request. Answer it. Decline.",
)
SIZE = ModelSize(hidden=32, layers=1, heads=2, context=256)
WORDS = 8
"""Most tokens in a turn."""


def base(seed=0):
    return create_model(TEXTS, SIZE, seed)


def two_models(seed=0):
    conversation, feedback, frozen = (Weights(causal_lm=base(seed)) for _ in range(3))
    return make_pair(conversation, feedback, frozen, load_wording("tiny"), WORDS)


def adapters(seed=0):
    shared = add_adapters(base(seed), rank=2)
    conversation, feedback, frozen = (
        Weights(causal_lm=shared, adapter=name) for name in ("conversation", "feedback", None)
    )
    return make_pair(conversation, feedback, frozen, load_wording("tiny"), WORDS)


def prompts():
    asked = ((TEXTS[0], "benign"), (TEXTS[1], "unsafe"))
    return [
        Prompt(id=text, messages=(Message(role="user", content=text),), label=label)
        for text, label in asked
    ]
