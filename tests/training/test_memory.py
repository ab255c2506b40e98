"""The plan counts, without memory, what a real update of a real model allocates."""

import gc
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from support.tiny_models import tiny_tokenizer
from waltzrl.policies.attention import KeyValues
from waltzrl.policies.blocks import fuse_blocks
from waltzrl.policies.weights import CausalLM, Weights, add_adapters
from waltzrl.training.learner import Scorer
from waltzrl.training.memory import (
    Turns,
    Update,
    largest_micro_batch,
    rollout_bytes,
    update_bytes,
)
from waltzrl.training.samples import collate

TURNS = Turns(context_tokens=(20,) * 8, shared_tokens=0, reply_tokens=30)


def config(layers=5):
    return Qwen2Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


def update(**changes):
    usual = {
        "adapter_rank": None,
        "dtype": torch.float32,
        "micro_batch_tokens": 250,
        "checkpoint_activations": False,
    }
    return Update(**usual | changes)


def allocated(how):
    """Return the bytes at the peak of a real update of a real model, as torch's allocator says."""
    causal_lm = CausalLM(model=Qwen2ForCausalLM(config()).eval(), tokenizer=tiny_tokenizer())
    fuse_blocks(causal_lm.model)
    adapter = None if how.adapter_rank is None else "feedback"
    if adapter:
        causal_lm = add_adapters(causal_lm, [adapter], how.adapter_rank)
    weights = Weights(causal_lm=causal_lm, adapter=adapter)
    scorer = Scorer(
        weights,
        how.micro_batch_tokens,
        how.dtype,
        checkpoint_activations=how.checkpoint_activations,
    )
    for parameter in causal_lm.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda its: setattr(its, "grad", None))
    gc.collect()  # what another test left is not freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocator:
        batch = collate(largest_micro_batch(TURNS, how.micro_batch_tokens), torch.device("cpu"))
        with scorer.logprobs(batch) as logprobs:
            torch.autograd.backward(logprobs.sum())
    events = allocator.profiler.kineto_results.events()
    moves = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(moves, key=lambda move: move[0])))


@pytest.mark.promise(
    "Training",
    "`--dry-run` counts what an update and a rollout allocate, in every layout, number format and "
    "with checkpointed activations",
)
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, 1e-3),
        ({"checkpoint_activations": True}, 1e-3),
        ({"dtype": torch.bfloat16}, 1e-3),
        ({"dtype": torch.bfloat16, "checkpoint_activations": True}, 0.1),  # planned 9 % too small
        ({"adapter_rank": 4}, 1e-3),
        ({"adapter_rank": 4, "checkpoint_activations": True}, 1e-3),
    ],
)
def test_an_update_is_planned_as_a_real_one_allocates(changes, error):
    how = update(**changes)
    assert update_bytes(config(), how, TURNS) == pytest.approx(allocated(how), rel=error)


def test_checkpointed_activations_are_planned_with_less():
    kept, recomputed = (
        update_bytes(config(12), update(checkpoint_activations=switch), TURNS)
        for switch in (False, True)
    )
    assert recomputed < kept / 3


@pytest.mark.promise(
    "Training",
    "`--dry-run` counts what an update and a rollout allocate, in every layout, number format and "
    "with checkpointed activations",
)
def test_keys_and_values_are_planned_as_they_are_allocated():
    rows, prompt, reply = len(TURNS.context_tokens), TURNS.context_tokens[0], TURNS.reply_tokens
    cache = KeyValues(torch.zeros(rows, dtype=torch.long), prompt)
    one = torch.zeros(rows, 2, 1, 16)
    for layer in range(5):
        cache.buffers(layer, one, one)
    for _ in range(reply - 1):
        cache.advance()
    buffers = [buffer for layer in range(5) for buffer in cache.buffers(layer, one, one)]
    held = sum(buffer.untyped_storage().nbytes() for buffer in buffers)
    logits = 4 * rows * 300 * 4
    assert rollout_bytes(config(), torch.float32, TURNS) == held + logits


def test_the_largest_micro_batch_has_the_most_tokens_and_reads_instructions_once():
    # With 5 tokens of reply, 30 + 5 and 40 + 5 tokens fill the first 100: 2 x (40 + 5) = 90; then
    # 3 x (60 + 5) would be 195, so one of 60 + 5 = 65 is alone, and so are the two others.
    turns = Turns(context_tokens=(60, 30, 60, 40, 60), shared_tokens=10, reply_tokens=5)
    chosen = [sample.tokens for sample in largest_micro_batch(turns, 100)]
    assert [len(tokens.prompt_ids) for tokens in chosen] == [30, 40]
    starts = {tokens.prompt_ids[:10] for tokens in chosen}
    rests = {tokens.prompt_ids[10:] for tokens in chosen}
    assert (len(starts), len(rests)) == (1, 2)
