import random

import pytest
import torch

from support.tiny_models import (
    CONTEXT,
    END_ID,
    FAMILIES,
    PAD_ID,
    STOP_ID,
    tiny_architecture,
    tiny_model,
)
from waltzrl.errors import PolicyError
from waltzrl.policies import decode as decoding
from waltzrl.policies.attention import BLOCK
from waltzrl.policies.decode import Ask, choose_tokens

ENDS = (END_ID, STOP_ID)


def decode(model, prompts, limits, *how):
    """Continue each prompt up to its limit."""
    asks = [Ask(prompt=p, limit=most) for p, most in zip(prompts, limits, strict=True)]
    return decoding.decode(model, asks, *how)


def prompts_of(lengths, seed=0):
    chance = random.Random(seed)
    return [tuple(chance.randrange(6, 300) for _ in range(length)) for length in lengths]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def generated(model, prompt, limit, ends=ENDS):
    """Return what `model.generate` says greedily to one prompt, up to the end of its turn."""
    said = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=list(ends) or None,
        pad_token_id=PAD_ID,
    )
    return tuple(said[0, len(prompt) :].tolist())


def teacher_forced(model, prompt, ids, temperature=1.0):
    """Return the log-probabilities of `ids` after `prompt` in one plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[range(len(ids)), list(ids)]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_generate(family):
    model = tiny_model(family).model
    prompts = prompts_of([3, 17, 9, 30, 1, 17])
    limits = [20, 24, 3, 16, 24, 1]
    decoded = decode(model, prompts, limits, 0.0, ENDS, generator())
    assert [d.ids for d in decoded] == [
        generated(model, prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)
    ]


@pytest.mark.parametrize("name", ["phi3", "gpt2", "diffllama"])
def test_keys_and_values_may_be_parts_of_one_projection_or_of_several_calls_by_a_layer(name):
    model = tiny_architecture(name)
    prompts = prompts_of([3, 17])
    decoded = decode(model, prompts, [6, 6], 0.0, ENDS, generator())
    assert [d.ids for d in decoded] == [generated(model, prompt, 6) for prompt in prompts]


@pytest.mark.promise(
    "Training",
    "A model whose layers mix tokens otherwise than by attention is refused, not decoded wrongly",
)
@pytest.mark.parametrize(
    ("name", "special", "kind"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of kind conv"),
        ("mamba", {}, "layers of kind linear_attention"),
        ("llama4_text", {"num_local_experts": 2}, "layers of kind chunked_attention"),
        ("doge", {}, "DogeAttention has an attention"),
        ("bert", {}, "BertSelfAttention has an attention"),  # of an encoder
        ("bart", {}, "BartForCausalLM takes no position_ids"),
    ],
)
def test_a_model_that_mixes_tokens_in_another_way_is_refused(name, special, kind):
    model = tiny_architecture(name, **special)
    with pytest.raises(PolicyError, match=kind):
        decode(model, prompts_of([5]), [2], 0.0, ENDS, generator())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_forward_pass(family, temperature):
    model = tiny_model(family).model
    prompts = prompts_of([5, 12, 12, 26])
    decoded = decode(model, prompts, [20] * 4, temperature, ENDS, generator())
    for prompt, said in zip(prompts, decoded, strict=True):
        expected = teacher_forced(model, prompt, said.ids, temperature)
        assert torch.allclose(torch.tensor(said.logprobs), expected, atol=1e-4)


def test_greedy_logprobs_are_at_temperature_one():
    model = tiny_model().model
    (prompt,) = prompts_of([8])
    (said,) = decode(model, [prompt], [10], 0.0, ENDS, generator())
    expected = teacher_forced(model, prompt, said.ids)
    assert torch.allclose(torch.tensor(said.logprobs), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_long_replies_outgrow_the_first_buffers_and_stay_the_same(family):
    model = tiny_model(family).model
    prompts, limits = prompts_of([9, 20, 3]), [BLOCK + 9, 2 * BLOCK + 1, BLOCK]
    decoded = decode(model, prompts, limits, 0.0, (), generator())
    for prompt, limit, said in zip(prompts, limits, decoded, strict=True):
        assert said.ids == generated(model, prompt, limit, ends=())
        expected = teacher_forced(model, prompt, said.ids)
        assert torch.tensor(said.logprobs) == pytest.approx(expected, abs=1e-4)


def test_a_group_that_shares_a_prompt_reads_it_once():
    model = tiny_model().model
    first, second = prompts_of([10, 14])
    read = []
    model.model.embed_tokens.register_forward_hook(
        lambda _module, given, _embedded: read.append(given[0].numel())
    )
    decoded = decode(model, [first, second, first, first], [6] * 4, 0.0, (), generator())
    assert read[0] == 2 * 14
    assert decoded[0] == decoded[2] == decoded[3]
    assert decoded[1].ids == generated(model, second, 6, ends=())


@pytest.mark.promise(
    "Training",
    "What all prompts of a batch begin with is read once, in decoding as in an update and in the "
    "reference's pass, and changes nothing",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_all_prompts_begin_with_is_read_once_and_changes_nothing(family):
    model, (start,) = tiny_model(family).model, prompts_of([40])
    rests = prompts_of([3, 17, 9, 1, 1, 24], seed=1)
    prompts = [start + rest for rest in (*rests, rests[0])]
    limits = [9, 4, 12, 7, 1, 12, 5]
    read = []
    watched = model.get_input_embeddings().register_forward_hook(
        lambda _module, given, _embedded: read.append(given[0])
    )
    decoded = decode(model, prompts, limits, 1.0, (), generator())
    watched.remove()
    assert read[0].tolist() == [list(start)]
    assert read[1].shape == (6, 24)  # distinct rests, padded; then single tokens
    assert all(ids.shape[1] == 1 for ids in read[2:])
    for prompt, said in zip(prompts, decoded, strict=True):
        expected = teacher_forced(model, prompt, said.ids)
        torch.testing.assert_close(torch.tensor(said.logprobs), expected, atol=1e-4, rtol=1e-4)


def test_a_short_common_start_is_read_with_each_prompt():
    model, (start,) = tiny_model().model, prompts_of([decoding.FEW_TOKENS - 1])
    widths = []
    watched = model.get_input_embeddings().register_forward_hook(
        lambda _module, given, _embedded: widths.append(given[0].shape[1])
    )
    decode(model, [(*start, 7), (*start, 8)], [1, 1], 0.0, (), generator())
    watched.remove()
    assert widths == [len(start) + 1]


def test_any_end_id_stops_a_reply_and_stays_in_it():
    model = tiny_model().model
    (prompt,) = prompts_of([8])
    free = decode(model, [prompt], [12], 0.0, (), generator())[0].ids
    for end in (free[2], free[5]):
        stopped = decode(model, [prompt], [12], 0.0, (PAD_ID, end), generator())[0]
        assert stopped.ids == free[: free.index(end) + 1]
        assert len(stopped.logprobs) == len(stopped.ids)
        assert stopped.finish == "stop"


def test_a_reply_cut_at_its_limit_says_so():
    model = tiny_model().model
    said = decode(model, prompts_of([4, 4]), [1, 5], 0.0, (), generator())
    assert [(len(d.ids), d.finish) for d in said] == [(1, "length"), (5, "length")]


def test_finished_rows_leave_the_batch():
    model = tiny_model().model
    rows = []
    model.model.embed_tokens.register_forward_hook(
        lambda _module, given, _embedded: rows.append(len(given[0]))
    )
    decode(model, prompts_of([4, 4, 4, 4]), [1, 4, 2, 4], 0.0, (), generator())
    assert rows == [4, 3, 2, 2]


def test_long_prompts_are_read_in_several_chunks():
    model = tiny_model(seed=1).model
    prompts = prompts_of([100] * 11 + [40] * 3)
    decoded = decode(model, prompts, [4] * 14, 0.0, (), generator())
    assert [d.ids for d in decoded] == [generated(model, p, 4, ends=()) for p in prompts]


def test_the_same_seed_gives_the_same_replies():
    model = tiny_model().model
    prompts, limits = prompts_of([6, 9]) * 4, [12] * 8
    first, again, other = (
        decode(model, prompts, limits, 1.0, ENDS, generator(seed)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def chance_of(counts, expected):
    """Return the p-value of Pearson's test."""
    from scipy.stats import chisquare  # slow to import

    return chisquare(counts, expected).pvalue


def test_sampling_follows_the_distribution():
    chances = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    temperature = 0.5
    draws = 20_000
    logits = (chances.log() * temperature).expand(draws, -1)
    uniform = torch.rand((draws, 1), generator=generator())
    ids, logprobs = choose_tokens(logits, temperature, uniform)
    counts = torch.bincount(ids, minlength=5)
    assert counts[1] == 0
    possible = chances > 0
    assert chance_of(counts[possible], chances[possible] * draws) > 0.01
    assert torch.allclose(logprobs, chances.log()[ids], atol=1e-5)


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process honours `stop`, `tools`, `seed` and `top_p`, and refuses what it "
    "cannot honour by its name",
)
def test_a_nucleus_excludes_the_unlikely_tokens():
    chances = torch.tensor([0.15, 0.5, 0.05, 0.3])  # 0.5 + 0.3 is the least that reaches 0.7
    draws = 20_000
    uniform = torch.rand((draws, 1), generator=generator())
    ids, logprobs = choose_tokens(chances.log().expand(draws, -1), 1.0, uniform, 0.7)
    counts = torch.bincount(ids, minlength=4)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert chance_of(counts[[1, 3]], [0.625 * draws, 0.375 * draws]) > 0.01
    assert torch.allclose(logprobs, chances.log()[ids], atol=1e-5)


@pytest.mark.promise(
    "Endpoints and upstreams",
    "A model in this process honours `stop`, `tools`, `seed` and `top_p`, and refuses what it "
    "cannot honour by its name",
)
def test_a_reply_with_a_seed_is_the_same_alone_and_among_others():
    model = tiny_model().model
    prompts = prompts_of([6, 9, 6])
    alone = [Ask(prompt=prompts[0], limit=12, seed=5)]
    among = [*alone, Ask(prompt=prompts[1], limit=12), Ask(prompt=prompts[2], limit=9, seed=6)]
    first, *_ = decoding.decode(model, alone, 1.0, ENDS, generator(1))
    again, *_ = decoding.decode(model, among, 1.0, ENDS, generator(2))
    other, *_ = decoding.decode(
        model, [Ask(prompt=prompts[0], limit=12, seed=6)], 1.0, ENDS, generator(1)
    )
    assert first.ids == again.ids
    assert first.ids != other.ids


def test_the_model_gets_its_attention_and_its_mode_back():
    model = tiny_model().model
    model.train()
    usual = model.config._attn_implementation
    decode(model, prompts_of([3]), [2], 0.0, (), generator())
    assert model.config._attn_implementation == usual
    assert model.training


def test_weights_that_are_not_numbers_are_reported():
    model = tiny_model().model
    model.model.norm.weight.data.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(PolicyError, match="not finite"):
            decode(model, prompts_of([3]), [2], temperature, (), generator())
    assert model.config._attn_implementation != "waltzrl_decoding"


def test_bfloat16_weights_stay_close_to_float32():
    model, narrow = tiny_model().model, tiny_model().model.bfloat16()
    prompts = prompts_of([7, 11])
    for prompt, said in zip(
        prompts, decode(narrow, prompts, [8] * 2, 1.0, ENDS, generator()), strict=True
    ):
        expected = teacher_forced(model, prompt, said.ids)
        assert (torch.tensor(said.logprobs) - expected).abs().mean() < 0.2


def test_a_reply_may_fill_the_context():
    model = tiny_model().model
    (said,) = decode(model, prompts_of([100]), [CONTEXT - 100], 1.0, (), generator())
    assert len(said.ids) == 28
