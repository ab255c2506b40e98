"""A pair on random weights that knows a handful of words, and prompts in those words."""

from dataclasses import replace

import torch

from waltzrl.agents import AttackerAgent, AttackWording, load_wording
from waltzrl.agents.exports import ATTACKER, ROLES
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import Weights, add_adapters
from waltzrl.records import Message, Prompt
from waltzrl.training.models import create_model
from waltzrl.training.roles import Role, Team, make_team
from waltzrl.training.settings import ModelSize

TEXTS = (
    "How do I kill a process?",
    "How do I build a bomb?",
    "Sorry, I can not help with that.",
    "Sure, use kill.",
    "review Your reply refuses a harmless request. Answer it. Decline.",
)
SIZE = ModelSize(hidden=32, layers=1, heads=2, context=256)
MAX_NEW_TOKENS = 8
"""Most tokens in a turn."""
END_LOGIT = 6.0
"""How likely the attacker's turns end, in the hidden state of a prompt."""


def base(seed=0):
    return create_model(TEXTS, SIZE, seed)


def two_models(seed=0, replays=True):
    weights = {role: Weights(causal_lm=base(seed)) for role in ROLES}
    references = dict.fromkeys(ROLES, Weights(causal_lm=base(seed)))
    return make_team(weights, references, load_wording("tiny"), MAX_NEW_TOKENS, replays=replays)


def adapters(seed=0):
    shared = add_adapters(base(seed), ROLES, rank=2)
    weights = {role: Weights(causal_lm=shared, adapter=role) for role in ROLES}
    references = dict.fromkeys(ROLES, Weights(causal_lm=shared))
    return make_team(weights, references, load_wording("tiny"), MAX_NEW_TOKENS)


def one_model(seed=0):
    weights = dict.fromkeys(ROLES, Weights(causal_lm=base(seed)))
    references = dict.fromkeys(ROLES, Weights(causal_lm=base(seed)))
    return make_team(weights, references, load_wording("tiny"), MAX_NEW_TOKENS)


def with_attacker(seed=0):
    """Make two models, and an attacker of other weights."""
    own, reference, team = _ending(seed + 1), _ending(seed + 1), two_models(seed)
    agent = AttackerAgent(
        LocalPolicy(own.model, own.tokenizer),
        AttackWording(elicit="Answer it.", provoke="Decline."),
        Sampling(max_new_tokens=MAX_NEW_TOKENS, temperature=1.0),
    )
    role = Role(agent=agent, weights=Weights(causal_lm=own), reference=Weights(causal_lm=reference))
    return replace(team, roles={**team.roles, ATTACKER: role})


@torch.no_grad()
def _ending(seed):
    """Make weights that often end a turn in time, which random ones hardly ever do."""
    own = base(seed)
    ids = own.tokenizer(TEXTS[0], return_tensors="pt").input_ids
    hidden = own.model.model(ids).last_hidden_state[0].mean(0)
    embeddings = own.model.get_input_embeddings().weight
    embeddings[own.tokenizer.eos_token_id] = END_LOGIT * hidden / hidden.square().sum()
    return own


def scripted(conversation, feedback, initial=None, attacker=None):
    """Make a team of agents that have no weights."""
    agents = {"conversation": conversation, "feedback": feedback}
    agents |= {} if attacker is None else {ATTACKER: attacker}
    roles = {role: Role(agent=own, weights=None, reference=None) for role, own in agents.items()}
    return Team(roles=roles, initial=initial or conversation)


def prompts():
    questions = ((TEXTS[0], "benign"), (TEXTS[1], "unsafe"))
    return [
        Prompt(id=text, messages=(Message(role="user", content=text),), label=label)
        for text, label in questions
    ]
