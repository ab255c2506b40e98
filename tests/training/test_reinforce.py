import math
from dataclasses import replace

import pytest
import torch

from support import tiny_pair
from waltzrl.errors import DivergenceError
from waltzrl.policies.weights import Weights
from waltzrl.records import Tokens
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.reinforce import reinforce
from waltzrl.training.samples import Sample, collate
from waltzrl.training.settings import OptimizerSettings, ReinforceSettings
from waltzrl.training.stages import imitation

OPTIMIZER = OptimizerSettings(learning_rate=1e-2, warmup_steps=0)


def sampled(scorer, ids, score, group=0, prompt=(5, 6, 7)):
    """Make a sample whose old log-probabilities are the policy's own."""
    bare = Sample(tokens=Tokens(prompt_ids=prompt, ids=ids, logprobs=()))
    logprobs = tuple(scorer.score([bare])[0])
    tokens = Tokens(prompt_ids=prompt, ids=ids, logprobs=logprobs)
    return Sample(tokens=tokens, score=score, group=group)


@pytest.mark.promise("Equations", "`waltzrl.training.reinforce.reinforce`")
@pytest.mark.parametrize("layout", [tiny_pair.two_models, tiny_pair.adapters])
def test_a_step_makes_the_better_reply_likelier_and_the_worse_one_less(layout):
    role = layout().roles["conversation"]
    learner = Learner(role.weights, OPTIMIZER, 5)
    reference = Scorer(role.reference, 8192)
    good = sampled(learner.scorer, (10, 11, 12), 1.0)
    bad = sampled(learner.scorer, (20, 21), 0.0)
    before = [sum(row) for row in learner.scorer.score([good, bad])]
    for step in range(5):
        learner.schedule_step = step
        learned = reinforce(learner, [good, bad], reference, ReinforceSettings(clip_high=10.0))
    after = [sum(row) for row in learner.scorer.score([good, bad])]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert learned.score_mean == 0.5
    assert learned.tokens == 5


@pytest.mark.parametrize("layout", [tiny_pair.two_models, tiny_pair.adapters])
def test_one_role_learns_and_the_other_and_the_reference_stay(layout):
    roles = layout().roles
    learner = Learner(roles["feedback"].weights, OPTIMIZER, 1)
    conversation = roles["conversation"]
    others = [Scorer(its, 8192) for its in (conversation.weights, conversation.reference)]
    samples = [sampled(learner.scorer, (10,), 1.0), sampled(learner.scorer, (20,), 0.0)]
    before = [scorer.score(samples) for scorer in others]
    own = learner.scorer.score(samples)
    reinforce(learner, samples, others[1], ReinforceSettings())
    assert [scorer.score(samples) for scorer in others] == before
    assert learner.scorer.score(samples) != own


def test_equal_scores_teach_nothing_without_a_reference():
    learner = Learner(tiny_pair.two_models().weights["conversation"], OPTIMIZER, 1)
    samples = [sampled(learner.scorer, (10, 11), 1.0), sampled(learner.scorer, (20, 21), 1.0)]
    learned = reinforce(learner, samples, None, ReinforceSettings(kl_weight=0.0))
    assert learned.gradient_norm == 0.0
    assert learned.kl is None


def test_centred_groups_compare_a_prompt_with_itself_only():
    # Two prompts, of which one always earns 1 and the other always 0: nothing to learn from.
    learner = Learner(tiny_pair.two_models().weights["conversation"], OPTIMIZER, 1)
    samples = [
        sampled(learner.scorer, (10,), 1.0, group=0),
        sampled(learner.scorer, (11,), 1.0, group=0),
        sampled(learner.scorer, (12,), 0.0, group=1),
        sampled(learner.scorer, (13,), 0.0, group=1),
    ]
    settings = ReinforceSettings(kl_weight=0.0, centre_groups=True)
    assert reinforce(learner, samples, None, settings).gradient_norm == 0.0


@pytest.mark.promise(
    "Training", "The KL to the reference is measured, and limited, whatever it costs"
)
def test_the_divergence_from_another_reference_is_measured():
    team, other = tiny_pair.two_models(seed=0), tiny_pair.two_models(seed=1)
    learner = Learner(team.weights["conversation"], OPTIMIZER, 1)
    reference = Scorer(other.roles["conversation"].reference, 8192)
    sample = sampled(learner.scorer, (10, 11, 12), 1.0)
    (theirs,) = reference.score([sample])
    # k3 = exp(-x) - 1 + x with x = log pi - log pi_ref, worked out here token by token
    gaps = [mine - ref for mine, ref in zip(sample.tokens.logprobs, theirs, strict=True)]
    expected = sum(math.exp(-gap) - 1 + gap for gap in gaps) / 3
    for weight in (0.01, 0.0):  # the KL is measured also where it costs nothing
        learned = reinforce(learner, [sample], reference, ReinforceSettings(kl_weight=weight))
        assert learned.kl == pytest.approx(expected, rel=1e-4)
        learner = Learner(tiny_pair.two_models(seed=0).weights["conversation"], OPTIMIZER, 1)


@pytest.mark.promise(
    "Training", "The KL to the reference is measured, and limited, whatever it costs"
)
def test_without_a_weight_the_divergence_changes_no_gradient():
    other = tiny_pair.two_models(seed=1).roles["conversation"].reference

    def norm(reference):
        learner = Learner(tiny_pair.two_models().weights["conversation"], OPTIMIZER, 1)
        samples = [sampled(learner.scorer, (10, 11), 1.0), sampled(learner.scorer, (20,), 0.0)]
        return reinforce(learner, samples, reference, ReinforceSettings(kl_weight=0.0))

    assert norm(Scorer(other, 8192)).gradient_norm == norm(None).gradient_norm


@pytest.mark.promise("Equations", "`waltzrl.training.reinforce.reinforce`")
def test_entropy_and_sigma_are_those_of_the_rollouts_by_hand():
    learner = Learner(tiny_pair.two_models().weights["conversation"], OPTIMIZER, 1)
    samples = [sampled(learner.scorer, (10, 11, 12), 1.0), sampled(learner.scorer, (20,), 0.0)]
    learned = reinforce(learner, samples, None, ReinforceSettings(kl_weight=0.0))
    logprobs = [logprob for sample in samples for logprob in sample.tokens.logprobs]
    assert learned.entropy == pytest.approx(-sum(logprobs) / 4)
    assert learned.advantage_sigma == pytest.approx(0.5)  # two replies, which earn 1 and 0
    by_token = ReinforceSettings(kl_weight=0.0, aggregation="token")
    learned = reinforce(learner, samples, None, by_token)
    assert learned.advantage_sigma == pytest.approx(math.sqrt(3) / 4)  # of 1, 1, 1 and 0


def test_the_ratio_is_one_in_the_first_pass_and_leaves_it_after_a_step():
    learner = Learner(tiny_pair.two_models().weights["conversation"], OPTIMIZER, 1)
    samples = [sampled(learner.scorer, (10,), 1.0), sampled(learner.scorer, (20,), 0.0)]
    once = reinforce(learner, samples, None, ReinforceSettings(kl_weight=0.0)).ratio
    assert (once.mean, once.maximum) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert (once.sampler_mean, once.sampler_maximum) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert once.clipped == 0.0
    again = [sampled(learner.scorer, (10,), 1.0), sampled(learner.scorer, (20,), 0.0)]
    twice = reinforce(learner, again, None, ReinforceSettings(kl_weight=0.0, passes=2)).ratio
    assert twice.maximum > 1.2  # a step of this size moves every token
    assert twice.clipped == 0.5  # both tokens, in one pass of two
    assert twice.sampler_maximum == pytest.approx(1.0, abs=1e-5)


def shifted(sample, by):
    """Make the sampler surer of every token by a factor, as if it computed otherwise."""
    tokens = sample.tokens
    logprobs = tuple(logprob + math.log(by) for logprob in tokens.logprobs)
    return replace(sample, tokens=replace(tokens, logprobs=logprobs))


@pytest.mark.promise(
    "Training",
    "A sampler of another precision than the learner is corrected for, and both ratios are in the "
    "journal",
)
@pytest.mark.promise("Equations", "`waltzrl.training.reinforce.reinforce`")
def test_another_precision_of_the_sampler_is_a_truncated_factor_and_no_ratio():
    def step(factors, dtype):
        weights = tiny_pair.two_models().weights["conversation"]
        learner = Learner(weights, OPTIMIZER, 1, dtype)
        samples = [
            shifted(sampled(learner.scorer, ids, score), by)
            for (ids, score), by in zip((((10,), 1.0), ((20,), 0.0)), factors, strict=True)
        ]
        settings = ReinforceSettings(kl_weight=0.0)
        return reinforce(learner, samples, None, settings)

    plain = step((1.0, 1.0), torch.bfloat16)
    # Half as sure as the learner: both count double; a tenth as sure: no more than double.
    for factors in ((0.5, 0.5), (0.1, 0.1)):
        corrected = step(factors, torch.bfloat16)
        assert corrected.gradient_norm == pytest.approx(2 * plain.gradient_norm, rel=1e-3)
        assert (corrected.ratio.mean, corrected.ratio.clipped) == (1.0, 0.0)
        assert corrected.ratio.sampler_maximum == pytest.approx(1 / factors[0], rel=1e-3)
    # In float32 both compute alike; the same numbers mean that the policy has moved.
    moved = step((0.5, 0.5), torch.float32)
    assert moved.ratio.mean == pytest.approx(2.0, rel=1e-3)
    assert moved.ratio.clipped == 0.5


@pytest.mark.promise(
    "Training",
    "A run learns the same from a server's samples as from the same samples in its own process",
)
def test_what_a_server_sampled_is_scored_again_and_corrected_in_float32_too():
    def step(version, stale=False):
        weights = tiny_pair.two_models().weights["conversation"]
        learner = Learner(weights, OPTIMIZER, 1)
        samples = [
            shifted(sampled(learner.scorer, ids, score), 0.5)
            for ids, score in (((10,), 1.0), ((20,), 0.0))
        ]
        samples = [
            replace(s, tokens=replace(s.tokens, version=version), stale=stale) for s in samples
        ]
        return reinforce(learner, samples, None, ReinforceSettings(kl_weight=0.0)).ratio

    # The server was half as sure as the learner: no step of the policy, but a factor of 2.
    corrected = step("waltzrl-conversation-v3-5e0c9a")
    assert (corrected.mean, corrected.clipped) == (1.0, 0.0)
    assert corrected.sampler_mean == pytest.approx(2.0, rel=1e-4)
    assert step("", stale=True) == corrected  # so were the older weights of a worker of ours
    here = step("")
    assert (here.mean, here.sampler_mean) == (pytest.approx(2.0, rel=1e-4), 1.0)


@pytest.mark.promise(
    "Training", "The KL to the reference is measured, and limited, whatever it costs"
)
def test_the_divergence_is_measured_in_one_precision_whatever_the_sampler_computed_in():
    def step(by, seed, kl_weight):
        team = tiny_pair.two_models()
        learner = Learner(team.weights["conversation"], OPTIMIZER, 1, torch.bfloat16)
        other = tiny_pair.two_models(seed).roles["conversation"].reference
        samples = [
            shifted(sampled(learner.scorer, ids, 1.0), by) for ids in ((10, 11, 12), (20, 21))
        ]
        settings = ReinforceSettings(kl_weight=kl_weight)
        return reinforce(learner, samples, learner.scorer.with_weights(other), settings)

    # The reference is where the policy starts: the sampler's rounding is no distance from it.
    unmoved = step(0.5, 0, 1.0)
    assert unmoved.kl == 0.0
    assert unmoved.advantage_sigma == pytest.approx(0.0, abs=1e-6)
    assert unmoved.ratio.sampler_mean == pytest.approx(2.0)
    exact, rounded = (step(by, 1, 1.0) for by in (1.0, 0.5))
    assert exact.kl == rounded.kl > 0
    assert exact.advantage_sigma == rounded.advantage_sigma > 0


@pytest.mark.promise(
    "Training",
    "A sampler of another precision than the learner is corrected for, and both ratios are in the "
    "journal",
)
@pytest.mark.promise("Equations", "`waltzrl.training.reinforce.reinforce`")
def test_in_later_passes_the_ratio_is_to_the_learners_own_probabilities():
    def ratio(by):
        weights = tiny_pair.two_models().weights["conversation"]
        learner = Learner(weights, OPTIMIZER, 1, torch.bfloat16)
        samples = [
            shifted(sampled(learner.scorer, ids, score), by)
            for ids, score in (((10, 11), 1.0), ((20, 21), 0.0))
        ]
        settings = ReinforceSettings(kl_weight=0.0, passes=2)
        return reinforce(learner, samples, None, settings).ratio

    # AdamW's step does not depend on the size of the loss, which the factor of 2 doubles.
    assert ratio(0.5).maximum == pytest.approx(ratio(1.0).maximum, rel=1e-2)


@pytest.mark.promise("Equations", "`waltzrl.training.reinforce.reinforce`")
def test_micro_batches_change_nothing_but_memory():
    def weights_after(micro_batch_tokens):
        causal_lm = tiny_pair.base()
        settings = OptimizerSettings(
            learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=micro_batch_tokens
        )
        learner = Learner(Weights(causal_lm=causal_lm), settings, 1)
        samples = [
            Sample(tokens=Tokens(prompt_ids=(5,) * n, ids=(10 + n, 11), logprobs=()))
            for n in (1, 4, 9)
        ]
        step = learner.step(samples, imitation(6))
        return step, torch.cat([p.flatten() for p in causal_lm.model.parameters()])

    (one, whole), (many, parts) = weights_after(8192), weights_after(1)
    assert one.tokens == many.tokens == 6
    assert many.loss == pytest.approx(one.loss, rel=1e-5)
    assert many.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-4)


@pytest.mark.promise(
    "Training",
    "Checkpointed activations keep nothing of a layer but its input, and give the same gradients "
    "and weights bit for bit, in both layouts and number formats",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [tiny_pair.two_models, tiny_pair.adapters])
def test_checkpointed_activations_give_the_same_weights_bit_by_bit(layout, dtype):
    def weights_after(*, checkpoint_activations):
        role = layout().roles["feedback"]  # not the adapter that is active between two steps
        learner = Learner(
            role.weights, OPTIMIZER, 2, dtype, checkpoint_activations=checkpoint_activations
        )
        samples = [
            sampled(learner.scorer, (10, 11, 12), 1.0),
            sampled(learner.scorer, (20, 21), 0.0),
        ]
        for _ in range(2):  # an adapter's first half learns nothing in the first step
            reinforce(learner, samples, Scorer(role.reference, 8192), ReinforceSettings())
        return list(role.weights.causal_lm.model.parameters())

    kept = weights_after(checkpoint_activations=False)
    recomputed = weights_after(checkpoint_activations=True)
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))


@pytest.mark.promise(
    "Training",
    "The loss weighs every reply the same, as in the paper, or every token, by a key; both have "
    "the gradient of the whole batch in any micro-batches",
)
@pytest.mark.promise("Equations", "`waltzrl.training.algorithms.reinforce_pp.weighted_loss`")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("aggregation", ["sequence", "token"])
def test_advantages_find_their_samples_in_any_micro_batch(aggregation, dtype):
    def step(micro_batch_tokens):
        settings = OptimizerSettings(
            learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=micro_batch_tokens
        )
        learner = Learner(Weights(causal_lm=tiny_pair.base()), settings, 1, dtype)
        other = tiny_pair.two_models(seed=1).roles["conversation"].reference
        samples = [  # micro-batches are sorted by length, so the order changes
            sampled(learner.scorer, tuple(range(10, 10 + n)), float(n > 2), prompt=(5,) * (9 - n))
            for n in (4, 1, 3, 2)
        ]
        settings = ReinforceSettings(kl_weight=0.1, aggregation=aggregation)
        return reinforce(learner, samples, learner.scorer.with_weights(other), settings)

    whole, parts = step(8192), step(1)
    rounding = 1e-4 if dtype == torch.float32 else 1e-2
    assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=rounding)
    assert parts.loss == pytest.approx(whole.loss, abs=rounding / 100)
    assert parts.kl == pytest.approx(whole.kl, rel=rounding)
    assert whole.gradient_norm > 0.1


@pytest.mark.promise("Equations", "`waltzrl.training.stages.imitation`")
def test_the_supervised_loss_is_the_mean_over_reply_tokens_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0], [-4.0, 99.0]])  # what stands under the padding is noise
    samples = [
        Sample(tokens=Tokens(prompt_ids=(5,), ids=ids, logprobs=())) for ids in ((6, 7), (8,))
    ]
    batch = collate(samples, torch.device("cpu"))
    whole = imitation(3)(logprobs, batch, [0, 1])
    assert whole.item() == pytest.approx((1 + 2 + 4) / 3)


@pytest.mark.parametrize("ceiling", [0.5, 1.2])
def test_a_dual_clip_inside_the_clip_is_refused(ceiling):
    with pytest.raises(ValueError, match=r"more than 1 \+ clip_high"):
        ReinforceSettings(clip_high=0.2, dual_clip=ceiling)


def test_a_loss_that_is_not_a_number_changes_no_weight():
    causal_lm = tiny_pair.base()
    learner = Learner(Weights(causal_lm=causal_lm), OPTIMIZER, 1)
    before = [parameter.clone() for parameter in causal_lm.model.parameters()]
    sample = Sample(tokens=Tokens(prompt_ids=(5,), ids=(10,), logprobs=()))
    with pytest.raises(DivergenceError, match="changed nothing"):
        learner.step([sample], lambda logprobs, batch, positions: logprobs.sum() * math.nan)
    after = list(causal_lm.model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.promise("Equations", "`waltzrl.training.settings.OptimizerSettings`")
@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.5), (1, 1.0), (2, 1.0), (6, 0.55), (10, 0.1)],
)
def test_the_learning_rate_rises_then_falls_by_a_cosine(step, rate):
    # 2 steps up to 1, then half a cosine over 8 steps down to 0.1; half way it is (1 + 0.1) / 2.
    settings = OptimizerSettings(learning_rate=1.0, warmup_steps=2, final_share=0.1)
    assert settings.rate(step, 10) == pytest.approx(rate)
