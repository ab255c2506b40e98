import torch
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_models import tiny_model
from waltzrl.records import Tokens
from waltzrl.training.samples import Sample, collate, micro_batches, reply_logprobs

CPU = torch.device("cpu")


def sample(prompt_ids, ids, logprobs=()):
    return Sample(tokens=Tokens(prompt_ids=prompt_ids, ids=ids, logprobs=logprobs))


turns = st.builds(
    sample,
    st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple),
    st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple),
)


def test_a_batch_pads_what_belongs_to_replies_and_nothing_else():
    batch = collate([sample((7, 8), (1, 2), (-0.5, -0.25)), sample((9,), (3,), (-1.0,))], CPU)
    assert batch.pack.ids_N.tolist() == [7, 8, 9, 1]  # two prompts, and one reply's first token
    assert batch.pack.positions_N.tolist() == [0, 1, 0, 2]
    assert batch.pack.before_M.tolist() == [1, 3, 2]  # 8 before 1, 1 before 2, 9 before 3
    assert batch.reply_ids_M.tolist() == [1, 2, 3]
    assert batch.mask_BT.tolist() == [[True, True], [True, False]]
    assert batch.old_logprobs_BT.tolist() == [[-0.5, -0.25], [-1.0, 0.0]]


def test_samples_without_old_logprobs_have_zeros():
    assert collate([sample((1,), (2, 3))], CPU).old_logprobs_BT.tolist() == [[0.0, 0.0]]


def test_reply_logprobs_stand_at_their_own_reply_and_are_zero_after_it():
    model = tiny_model().model
    several = [sample((7, 8, 9), (10, 11, 12)), sample((7, 8, 9), (13,)), sample((20,), (21, 22))]
    with torch.no_grad():
        together = reply_logprobs(model, collate(several, CPU))
        for row, one in zip(together, several, strict=True):
            single = reply_logprobs(model, collate([one], CPU))[0]
            torch.testing.assert_close(row[: len(single)], single, atol=1e-5, rtol=1e-5)
            assert (row[len(single) :] == 0).all()


@given(st.lists(turns, min_size=1, max_size=20), st.integers(1, 40))
def test_every_sample_is_in_one_micro_batch_and_only_a_single_one_breaks_the_limit(samples, limit):
    batches = list(micro_batches(samples, limit))
    assert sorted(position for batch in batches for position in batch) == list(range(len(samples)))
    for batch in batches:
        said = [samples[position].tokens for position in batch]
        prompts = {tokens.prompt_ids for tokens in said}
        padded = len(prompts) * max(len(prompt) for prompt in prompts)
        padded += len(said) * max(len(tokens.ids) for tokens in said)
        assert padded <= limit or len(batch) == 1


def test_a_group_shares_its_prompt_in_the_count_of_a_micro_batch():
    group = [sample((1, 2, 3, 4), (5, 6)) for _ in range(4)]
    assert list(micro_batches(group, 4 + 4 * 2)) == [[0, 1, 2, 3]]
    assert list(micro_batches(group, 4 + 4 * 2 - 1)) == [[0, 1, 2], [3]]
