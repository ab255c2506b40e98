import random

import pytest
import torch

from support.tiny_models import FAMILIES, tiny_model
from waltzrl.records import Tokens
from waltzrl.training.packing import MANY_SCORES, pack

CPU = torch.device("cpu")


def turn(prompt, length, seed):
    chance = random.Random(seed)
    return Tokens(
        prompt_ids=prompt, ids=tuple(chance.randrange(6, 300) for _ in range(length)), logprobs=()
    )


def prompt_of(length, seed):
    chance = random.Random(seed)
    return tuple(chance.randrange(6, 300) for _ in range(length))


def turns_of(prompt_lengths, reply_lengths):
    """Make turns; prompts of equal length are the same prompt."""
    pairs = enumerate(zip(prompt_lengths, reply_lengths, strict=True))
    return [turn(prompt_of(p, p), r, seed) for seed, (p, r) in pairs]


def alone(model, said):
    """Return the scores for the reply's tokens from a plain forward pass over one turn."""
    ids = torch.tensor([said.prompt_ids + said.ids])
    return model(ids).logits[0, len(said.prompt_ids) - 1 : -1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pack_scores_every_turn_as_if_it_were_alone(family):
    model = tiny_model(family).model
    turns = turns_of([5, 17, 5, 1, 17, 5], [9, 3, 1, 12, 20, 14])
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns]).log_softmax(-1)
        found = pack(turns, CPU).predict(model).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pack_has_the_gradients_of_its_turns(family):
    model = tiny_model(family).model
    turns = turns_of([6, 6, 11], [7, 4, 9])
    weights = torch.randn(sum(len(said.ids) for said in turns), 1)
    gradients = []
    for logits in (
        torch.cat([alone(model, said) for said in turns]),
        pack(turns, CPU).predict(model),
    ):
        loss = (logits.log_softmax(-1) * weights).mean()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for plain, packed in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-3)


def test_a_model_reads_each_prompt_once_no_padding_and_no_last_token():
    model = tiny_model().model
    read = []
    model.model.embed_tokens.register_forward_hook(
        lambda _module, given, _embedded: read.append(given[0].numel())
    )
    pack(turns_of([10, 14, 10, 10], [6, 2, 8, 1]), CPU).predict(model)
    assert read == [10 + 14 + (6 - 1) + (2 - 1) + (8 - 1) + (1 - 1)]


def test_replies_of_one_token_need_their_prompts_only():
    model = tiny_model().model
    turns = turns_of([4, 7, 4], [1, 1, 1])
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns])
        torch.testing.assert_close(pack(turns, CPU).predict(model), expected, atol=1e-5, rtol=1e-5)


def test_long_turns_go_through_the_tiled_kernel_with_the_same_scores():
    model = tiny_model().model
    turns = turns_of([1100, 1100, 1300], [900, 1200, 1200])
    heads = model.config.num_attention_heads
    assert 3 * heads * 1199 * 2499 > MANY_SCORES
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns]).log_softmax(-1)
        found = pack(turns, CPU).predict(model).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_model_keeps_its_own_attention_afterwards():
    model = tiny_model().model
    usual = model.config._attn_implementation
    pack(turns_of([4], [3]), CPU).predict(model)
    assert model.config._attn_implementation == usual
