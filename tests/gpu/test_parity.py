"""What a device computes is what a plain forward pass on the CPU computes."""

import asyncio
import copy

import pytest
import torch

from support.places import everywhere
from waltzrl.policies import Sampling
from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import CausalLM, Weights
from waltzrl.records import Message
from waltzrl.training.algorithms.reinforce_pp import returns, token_rewards, whiten
from waltzrl.training.algorithms.tokens import token_weights
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.reinforce import reinforce
from waltzrl.training.samples import Sample
from waltzrl.training.settings import OptimizerSettings, ReinforceSettings

QUESTIONS = ["How do I kill a process?", "Linux?", "How do I kill a process?", "help " * 5]


def said_by(causal_lm, temperature=1.0, dtype=None):
    copied = None if dtype is None else DecodingCopy(causal_lm.model, dtype)
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer, copy=copied, seed=3)
    sampling = Sampling(max_new_tokens=12, temperature=temperature)

    async def replies():
        asked = ([Message(role="user", content=text)] for text in QUESTIONS)
        return await asyncio.gather(*(policy.reply(messages, sampling) for messages in asked))

    return [reply.tokens for reply in asyncio.run(replies())]


def on_cpu(causal_lm):
    model = copy.deepcopy(causal_lm.model).to("cpu")
    return CausalLM(model=model, tokenizer=causal_lm.tokenizer)


def plain_logprobs(causal_lm, tokens):
    """Return the log-probabilities of one turn from one forward pass, nothing packed or cached."""
    with torch.no_grad():
        logits = causal_lm.model(torch.tensor([tokens.prompt_ids + tokens.ids])).logits[0]
    first = len(tokens.prompt_ids) - 1
    return logits[first:-1].log_softmax(-1)[range(len(tokens.ids)), list(tokens.ids)]


def scored(turns):
    return [Sample(tokens=tokens, score=float(n % 2)) for n, tokens in enumerate(turns)]


@everywhere
def test_decoding_gives_the_log_probabilities_of_a_plain_pass_on_the_cpu(place):
    causal_lm = place.causal_lm()
    turns = said_by(causal_lm)
    reference = on_cpu(causal_lm)
    for tokens in turns:
        expected = plain_logprobs(reference, tokens)
        torch.testing.assert_close(torch.tensor(tokens.logprobs), expected, atol=1e-3, rtol=1e-3)


@everywhere
def test_scoring_gives_the_log_probabilities_of_a_plain_pass_on_the_cpu(place):
    causal_lm = place.causal_lm()
    turns = said_by(causal_lm)
    found = Scorer(Weights(causal_lm=causal_lm), 64).score(scored(turns))
    reference = on_cpu(causal_lm)
    for logprobs, tokens in zip(found, turns, strict=True):
        expected = plain_logprobs(reference, tokens)
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-3, rtol=1e-3)


@everywhere
def test_advantages_by_hand(place):
    mask = torch.tensor([[True, True], [True, False]], device=place.device)
    zeros = torch.zeros(2, 2, device=place.device)
    scores = torch.tensor([1.0, -2.0], device=place.device)
    rewards = token_rewards(scores, zeros, zeros, mask, kl_weight=0.0)
    found = whiten(returns(rewards, mask), token_weights(mask), sigma_floor=0.1)
    # returns 1, 1 and -2: mean 0, sigma sqrt((1 + 1 + 4) / 3) = sqrt(2)
    expected = torch.tensor([[1.0, 1.0], [-2.0, 0.0]]) / 2**0.5
    torch.testing.assert_close(found.cpu(), expected)


@everywhere
def test_a_step_has_the_gradient_that_the_cpu_finds(place):
    causal_lm = place.causal_lm()
    samples = scored(said_by(causal_lm))
    settings = ReinforceSettings(kl_weight=0.0)
    steps = [
        reinforce(
            Learner(
                Weights(causal_lm=own),
                OptimizerSettings(learning_rate=1e-4, micro_batch_tokens=limit),
                10,
            ),
            samples,
            None,
            settings,
        )
        for own, limit in ((on_cpu(causal_lm), 8192), (causal_lm, 32))
    ]
    assert steps[1].gradient_norm == pytest.approx(steps[0].gradient_norm, rel=1e-3)
    assert steps[1].loss == pytest.approx(steps[0].loss, abs=1e-4)


@everywhere
def test_bfloat16_decodes_and_learns_nearly_as_float32_does(place):
    causal_lm = place.causal_lm()
    turns = said_by(causal_lm, dtype=torch.bfloat16)
    exact = Scorer(Weights(causal_lm=causal_lm), 8192).score(scored(turns))
    for tokens, logprobs in zip(turns, exact, strict=True):
        assert tokens.logprobs == pytest.approx(logprobs, abs=0.1)
    norms = [
        reinforce(
            Learner(Weights(causal_lm=own), OptimizerSettings(learning_rate=1e-4), 10, dtype),
            scored(turns),
            None,
            ReinforceSettings(kl_weight=0.0),
        ).gradient_norm
        for own, dtype in ((copy_of(causal_lm), torch.float32), (causal_lm, torch.bfloat16))
    ]
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


def copy_of(causal_lm):
    return CausalLM(model=copy.deepcopy(causal_lm.model), tokenizer=causal_lm.tokenizer)
