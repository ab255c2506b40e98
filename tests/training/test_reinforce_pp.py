import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.training.algorithms.reinforce_pp import (
    centre_by_group,
    clipped,
    dual_clip,
    moments,
    policy_losses,
    returns,
    token_rewards,
    weighted_loss,
    whiten,
)
from waltzrl.training.algorithms.tokens import (
    sequence_mean,
    sequence_weights,
    token_mean,
    token_weights,
)

MASK = [[False, True, True], [True, False, True]]

sizes = st.tuples(st.integers(1, 5), st.integers(1, 7))
seeds = st.integers(0, 2**31)


def batch(size, seed):
    """Draw a random tensor and a mask with at least one token in every row."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(size, generator=generator) < 0.6
    mask[:, 0] |= ~mask.any(1)
    return torch.randn(size, generator=generator), mask, generator


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.token_rewards`")
def test_the_score_falls_on_the_last_own_token_and_kl_on_each(device):
    rewards = token_rewards(
        torch.tensor([1.0, -1.0], device=device),
        old_logprobs_BT=torch.tensor([[9.0, -1.0, -2.0], [-3.0, 9.0, -1.0]], device=device),
        reference_logprobs_BT=torch.tensor([[0.0, -2.0, -1.0], [-3.0, 0.0, -5.0]], device=device),
        mask_BT=torch.tensor(MASK, device=device),
        kl_weight=0.1,
    )
    # k1 on own tokens: row 0 has +1, -1; row 1 has 0, +4
    expected = torch.tensor([[0.0, -0.1, 0.1 + 1.0], [0.0, 0.0, -0.4 - 1.0]], device=device)
    torch.testing.assert_close(rewards, expected)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.token_rewards`")
def test_a_padded_reply_gets_its_score_before_the_padding(device):
    zeros = torch.zeros(1, 4, device=device)
    mask = torch.tensor([[True, True, False, False]], device=device)
    rewards = token_rewards(torch.tensor([0.5], device=device), zeros, zeros, mask, kl_weight=0.01)
    assert rewards.tolist() == [[0.0, 0.5, 0.0, 0.0]]


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.token_rewards`")
def test_scores_and_kl_are_cut_at_ten(device):
    mask = torch.ones(1, 1, dtype=torch.bool, device=device)
    log = torch.tensor([[100.0]], device=device)
    rewards = token_rewards(torch.tensor([99.0], device=device), log, -log, mask, kl_weight=0.5)
    assert rewards.item() == 10.0 - 0.5 * 10.0


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.returns`")
def test_returns_are_what_own_tokens_still_earn(device):
    rewards = torch.tensor([[7.0, 1.0, 2.0], [1.0, 7.0, -3.0]], device=device)
    expected = torch.tensor([[0.0, 3.0, 2.0], [-2.0, 0.0, -3.0]], device=device)
    torch.testing.assert_close(returns(rewards, torch.tensor(MASK, device=device)), expected)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.whiten`")
def test_whitening_by_hand(device):
    mask = torch.tensor([[True, True], [True, False]], device=device)
    # tokens 1, 1, 4: mean 2, variance (1 + 1 + 4) / 3 = 2; the 99 is padding
    values = torch.tensor([[1.0, 1.0], [4.0, 99.0]], device=device)
    advantages = whiten(values, token_weights(mask), 0.1)
    root = math.sqrt(2)
    expected = torch.tensor([[-1 / root, -1 / root], [2 / root, 0.0]], device=device)
    torch.testing.assert_close(advantages, expected)


@given(sizes, seeds)
def test_whitened_advantages_have_mean_zero_and_sigma_at_most_one(size, seed):
    values, mask, _ = batch(size, seed)
    for weights in (sequence_weights(mask), token_weights(mask)):
        mean, sigma = moments(whiten(3 * values + 5, weights, sigma_floor=0.1), weights)
        assert abs(mean.item()) < 1e-4
        assert sigma.item() < 1 + 1e-4


@given(sizes, seeds, st.floats(-100, 100))
def test_whitening_forgets_a_constant(size, seed, constant):
    values, mask, _ = batch(size, seed)
    weights = sequence_weights(mask)
    shifted = whiten(values + constant, weights, sigma_floor=0.1)
    torch.testing.assert_close(shifted, whiten(values, weights, 0.1), atol=1e-3, rtol=1e-3)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.whiten`")
@given(sizes, seeds, st.floats(-10, 10))
def test_a_batch_with_equal_scores_teaches_almost_nothing(size, seed, score):
    """The returns differ by KL alone: 0.01 * k1 is far below the floor, and stays there."""
    noise, mask, _ = batch(size, seed)
    old = 0.01 * noise
    scores = torch.full((size[0],), score)
    rewards = token_rewards(scores, old, torch.zeros_like(old), mask, kl_weight=0.01)
    advantages = whiten(returns(rewards, mask), token_weights(mask), sigma_floor=0.1)
    assert advantages.isfinite().all()
    assert advantages.abs().max().item() < 0.05


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.whiten`")
def test_without_a_floor_noise_would_be_blown_up_to_unit_size():
    noise = torch.tensor([[1e-6, -1e-6]])
    even = torch.tensor([[0.5, 0.5]])
    torch.testing.assert_close(whiten(noise, even, 1e-9), torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(whiten(noise, even, 0.1), torch.tensor([[1e-5, -1e-5]]))


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.centre_by_group`")
def test_groups_are_centred_one_by_one(device):
    scores = torch.tensor([1.0, 0.0, 0.0, 5.0, 1.0], device=device)
    groups = torch.tensor([7, 3, 7, 4, 3], device=device)
    # group 7 has mean 0.5, group 3 too, group 4 is alone
    assert centre_by_group(scores, groups).tolist() == [0.5, -0.5, -0.5, 0.0, 0.5]


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.centre_by_group`")
@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1))
def test_centred_scores_sum_to_zero_in_every_group(replies):
    scores, groups = (torch.tensor(column) for column in zip(*replies, strict=True))
    centred = centre_by_group(scores, groups)
    for group in set(groups.tolist()):
        assert abs(centred[groups == group].sum().item()) < 1e-3


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.policy_losses`")
def test_the_clipped_surrogate_by_hand(device):
    ratios = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5], device=device)
    advantages = torch.tensor([2.0, 2.0, -2.0, 2.0, -2.0], device=device)
    losses = policy_losses(ratios.log(), torch.zeros_like(ratios), advantages, 0.2, 0.3)
    # gain of a good token stops at 1.3; of a bad one at 0.8; the harmful side is never cut
    expected = torch.tensor([-2.0, -2.6, 3.0, -1.0, 1.6], device=device)
    torch.testing.assert_close(losses, expected)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.policy_losses`")
def test_where_the_clip_bites_the_gradient_is_zero(device):
    logprobs = torch.tensor([1.5, 1.5, 1.0], device=device).log().requires_grad_()
    advantages = torch.tensor([2.0, -2.0, 2.0], device=device)
    policy_losses(logprobs, torch.zeros_like(logprobs), advantages, 0.2, 0.2).sum().backward()
    # unclipped, dl / dlog pi = -rho * A
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([0.0, 3.0, -2.0], device=device))


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.policy_losses`")
@given(sizes, seeds)
def test_the_clip_never_helps(size, seed):
    logprobs, _, generator = batch(size, seed)
    old = torch.randn(size, generator=generator)
    advantages = torch.randn(size, generator=generator)
    unclipped = -(logprobs - old).exp() * advantages
    assert (policy_losses(logprobs, old, advantages, 0.2, 0.2) >= unclipped).all()


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.policy_losses`")
def test_a_runaway_log_ratio_stays_finite(device):
    far = torch.tensor([500.0, -500.0], device=device)
    losses = policy_losses(far, torch.zeros_like(far), -torch.ones_like(far), 0.2, 0.2)
    assert losses.isfinite().all()


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.dual_clip`")
def test_the_dual_clip_by_hand(device):
    losses = torch.tensor([10.0, 2.0, -2.6], device=device)
    advantages = torch.tensor([-2.0, -2.0, 2.0], device=device)
    # ceiling 3 * 2 = 6 for the bad tokens, none for the good one
    assert dual_clip(losses, advantages, 3.0).tolist() == [6.0, 2.0, losses[2].item()]


WEIGHTS = st.sampled_from([sequence_weights, token_weights])


@pytest.mark.promise(
    "Training",
    "The loss weighs every reply the same, as in the paper, or every token, by a key; both have "
    "the gradient of the whole batch in any micro-batches",
)
@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.weighted_loss`")
@given(sizes, seeds, WEIGHTS)
def test_micro_batches_add_up_to_one_big_batch(size, seed, weigh):
    logprobs, mask, generator = batch(size, seed)
    logprobs.requires_grad_()
    old = torch.randn(size, generator=generator)
    advantages = torch.randn(size, generator=generator)
    weights = weigh(mask)

    def gradient(rows):
        losses = policy_losses(logprobs[rows], old[rows], advantages[rows], 0.2, 0.2)
        return torch.autograd.grad(weighted_loss(losses, weights[rows]), logprobs)[0]

    parts = sum(gradient([row]) for row in range(size[0]))
    torch.testing.assert_close(parts, gradient(list(range(size[0]))))


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.token_weights`")
@given(sizes, seeds, WEIGHTS)
def test_the_weights_of_a_batch_add_up_to_one_and_are_zero_outside_the_mask(size, seed, weigh):
    _, mask, _ = batch(size, seed)
    weights = weigh(mask)
    assert weights.sum().item() == pytest.approx(1)
    assert ((weights > 0) == mask).all()


@pytest.mark.promise(
    "Training",
    "The loss weighs every reply the same, as in the paper, or every token, by a key; both have "
    "the gradient of the whole batch in any micro-batches",
)
@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.sequence_weights`")
def test_by_sequence_a_short_reply_counts_like_a_long_one_by_hand(device):
    # Seven answers of 100 tokens that earn 1, and an over-refusal of 10 tokens that earns 0.
    lengths = torch.tensor([100] * 7 + [10], device=device)
    mask = torch.arange(100, device=device) < lengths[:, None]
    earned = mask * torch.tensor([1.0] * 7 + [0.0], device=device)[:, None]

    def pull(weigh):
        """Return the refusal's advantage, and its share of all that pulls at the policy."""
        weights = weigh(mask)
        advantages = whiten(earned, weights, 0.01)
        pulls = (weights * advantages.abs()).sum(1)
        return advantages[7, 0].item(), weights[7].sum().item(), (pulls[7] / pulls.sum()).item()

    # By sequence: mean 7/8, sigma sqrt(7)/8, so A = -(7/8) / (sqrt(7)/8); it weighs 1/8.
    assert pull(sequence_weights) == pytest.approx((-math.sqrt(7), 1 / 8, 1 / 2))
    # By token: 700 of 710 tokens earn 1, so A = -sqrt(70); it weighs 10/710, an eighth of that.
    assert pull(token_weights) == pytest.approx((-math.sqrt(70), 1 / 71, 1 / 2), rel=1e-4)


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.sequence_weights`")
def test_the_sequence_mean_is_the_mean_of_means_by_hand(device):
    losses = torch.tensor([[1.0, math.nan], [3.0, 5.0]], device=device)
    mask = torch.tensor([[True, False], [True, True]], device=device)
    # The mean of 1 and of (3 + 5) / 2; the mean of 1, 3 and 5.
    assert weighted_loss(losses, sequence_weights(mask)).item() == pytest.approx(2.5)
    assert weighted_loss(losses, token_weights(mask)).item() == pytest.approx(3.0)


def test_the_clip_counts_tokens_without_a_gradient_by_hand(device):
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.5, 1.0], device=device)
    advantages = torch.tensor([2.0, -2.0, 2.0, -2.0, 0.0, 2.0], device=device)
    assert clipped(ratios, advantages, 0.2, 0.2).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.tokens.token_mean`")
def test_the_token_mean_ignores_what_stands_under_the_padding(device):
    losses = torch.tensor([[1.0, math.nan], [3.0, 5.0]], device=device)
    mask = torch.tensor([[True, False], [True, True]], device=device)
    assert token_mean(losses, mask, token_count=3).item() == 3.0


def test_a_step_on_the_loss_makes_rewarded_tokens_likelier(device):
    logits = torch.zeros(3, device=device, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    advantages = torch.tensor([1.0, -1.0, 0.0], device=device)
    losses = policy_losses(logprobs, logprobs.detach(), advantages, 0.2, 0.2)
    losses.sum().backward()
    assert logits.grad is not None
    # -sum A_i * dlog pi_i = -(A_j - p_j * sum A) and sum A = 0
    torch.testing.assert_close(logits.grad, torch.tensor([-1.0, 1.0, 0.0], device=device))


def test_the_sequence_mean_weighs_a_short_reply_like_a_long_one_without_its_padding():
    losses = torch.tensor([[1.0, math.nan, math.nan], [2.0, 4.0, 9.0]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert sequence_mean(losses, mask, reply_count=2).item() == pytest.approx((1 + 5) / 2)
    parts = [sequence_mean(losses[[row]], mask[[row]], reply_count=2).item() for row in (0, 1)]
    assert sum(parts) == pytest.approx(3)  # micro-batches add up
