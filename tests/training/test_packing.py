import random
import weakref

import pytest
import torch

from support.tiny_models import FAMILIES, tiny_architecture, tiny_model
from waltzrl.errors import PolicyError
from waltzrl.records import Tokens
from waltzrl.training.packing import MANY_SCORES, pack_turns, recomputing_layers

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
    """Return the log-probabilities of the reply's tokens by a plain forward pass over one turn."""
    ids = torch.tensor([said.prompt_ids + said.ids])
    logits = model(ids).logits[0, len(said.prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(said.ids)[:, None])[:, 0]


def together(model, turns, **options):
    """Return the log-probabilities of all replies by one pass over a pack."""
    ids = torch.tensor([token for said in turns for token in said.ids])
    return pack_turns(turns, CPU).logprobs(model, ids, **options)


def gradients_of(model, logprobs):
    """Return the gradients of a loss that weighs every token differently."""
    weights = torch.linspace(-1.0, 1.0, len(logprobs))
    return torch.autograd.grad((logprobs * weights).mean(), list(model.parameters()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pack_scores_every_turn_as_if_it_were_alone(family):
    model = tiny_model(family).model
    turns = turns_of([5, 17, 5, 1, 17, 5], [9, 3, 1, 12, 20, 14])
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns])
        found = together(model, turns)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_values_may_be_smaller_than_keys():
    model = tiny_architecture("minicpm3", num_key_value_heads=4, v_head_dim=8)
    turns = turns_of([5, 17], [9, 3])
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns])
        found = together(model, turns)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_a_model_that_does_not_call_its_base_model_is_refused():
    model = tiny_architecture("opt", ffn_dim=48, word_embed_proj_dim=32)
    with pytest.raises(PolicyError, match="OPTForCausalLM does not call its base model"):
        together(model, turns_of([5, 7], [3, 3]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pack_has_the_gradients_of_its_turns(family):
    model = tiny_model(family).model
    turns = turns_of([6, 6, 11], [7, 4, 9])
    one_by_one = torch.cat([alone(model, said) for said in turns])
    gradients = [gradients_of(model, found) for found in (one_by_one, together(model, turns))]
    for plain, packed in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-3)


def test_a_model_reads_each_prompt_once_no_padding_and_no_last_token():
    model = tiny_model().model
    read = []
    model.model.embed_tokens.register_forward_hook(
        lambda _module, given, _embedded: read.append(given[0].numel())
    )
    together(model, turns_of([10, 14, 10, 10], [6, 2, 8, 1]))
    assert read == [10 + 14 + (6 - 1) + (2 - 1) + (8 - 1) + (1 - 1)]


@pytest.mark.promise(
    "Training",
    "What all prompts of a batch begin with is read once, in decoding as in an update and in the "
    "reference's pass, and changes nothing",
)
@pytest.mark.promise(
    "Training",
    "What all prompts of a micro-batch begin with, such as the system message, is computed once, "
    "with the same log-probabilities and gradients",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_all_prompts_begin_with_is_read_once_with_the_same_gradients(family):
    model = tiny_model(family).model
    system = prompt_of(70, seed=0)
    prompts = [system + prompt_of(length, seed=length) for length in (3, 8, 3)]
    turns = [
        turn(prompt, length, length) for prompt, length in zip(prompts, (5, 1, 4), strict=True)
    ]
    assert len(pack_turns(turns, CPU).ids_N) == 70 + 3 + 8 + (5 - 1) + (4 - 1)
    one_by_one = torch.cat([alone(model, said) for said in turns])
    found = together(model, turns)
    torch.testing.assert_close(found, one_by_one, atol=1e-5, rtol=1e-5)
    gradients = [gradients_of(model, logprobs) for logprobs in (one_by_one, found)]
    for plain, packed in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-3)


def test_replies_of_one_token_need_their_prompts_only():
    model = tiny_model().model
    turns = turns_of([4, 7, 4], [1, 1, 1])
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns])
        torch.testing.assert_close(together(model, turns), expected, atol=1e-5, rtol=1e-5)


def test_long_turns_go_through_the_tiled_kernel_with_the_same_scores():
    model = tiny_model().model
    turns = turns_of([1100, 1100, 1300], [900, 1200, 1200])
    heads = model.config.num_attention_heads
    assert 3 * heads * 1199 * 2499 > MANY_SCORES
    with torch.no_grad():
        expected = torch.cat([alone(model, said) for said in turns])
        found = together(model, turns)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_model_keeps_its_own_attention_afterwards():
    model = tiny_model().model
    usual = model.config._attn_implementation
    together(model, turns_of([4], [3]))
    assert model.config._attn_implementation == usual


@pytest.mark.promise(
    "Training",
    "Logits are computed in parts that are never in memory together, with the same values and "
    "gradients",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_parts_are_the_same_numbers_and_never_in_memory_together(family):
    model = tiny_model(family).model
    words = model.config.vocab_size
    turns = turns_of([6, 6, 11], [7, 4, 9])
    sizes, living = [], []

    def watch(_module, _given, logits):
        assert [ref for ref in living if ref() is not None] == []
        sizes.append(logits.numel() // words)
        living.append(weakref.ref(logits))

    whole = together(model, turns)
    whole_gradients = gradients_of(model, whole)
    model.get_output_embeddings().register_forward_hook(watch)
    parts = together(model, turns, most_logits=6 * words + 1)
    assert sizes == [6, 6, 6, 2]
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-6)
    for one, other in zip(gradients_of(model, parts), whole_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    assert sorted(sizes) == sorted([6, 6, 6, 2] * 2)  # again in the backward pass


@pytest.mark.promise(
    "Training",
    "Checkpointed activations keep nothing of a layer but its input, and give the same gradients "
    "and weights bit for bit, in both layouts and number formats",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_recomputed_keep_nothing_and_give_the_same_gradients(family):
    model = tiny_model(family).model
    turns = turns_of([6, 6, 11], [7, 4, 9])
    activations = []
    for layer in model.base_model.layers:
        layer.mlp.act_fn.register_forward_hook(
            lambda _module, _given, kept: activations.append(weakref.ref(kept))
        )
    kept = together(model, turns)
    assert [ref() is not None for ref in activations] == [True, True]
    expected = gradients_of(model, kept)
    activations.clear()
    with recomputing_layers(model):
        recomputed = together(model, turns)
        assert [ref() is not None for ref in activations] == [False, False]
        found = gradients_of(model, recomputed)
    assert torch.equal(recomputed, kept)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert len(activations) == 4  # again in the backward pass
    together(model, turns)
    assert activations[-1]() is None  # no longer recomputed, and no graph is left


def test_a_model_without_marked_layers_cannot_be_recomputed():
    with pytest.raises(PolicyError, match=r"leave compute\.checkpoint_activations off"):  # noqa: SIM117
        with recomputing_layers(torch.nn.Linear(1, 1)):
            pass
