import asyncio
from collections import Counter
from functools import partial

import pytest

from support import tiny_pair
from waltzrl.agents.feedback_json import read_feedback
from waltzrl.collaboration import collaborate, draft_only
from waltzrl.judges import LabelRefusalJudge
from waltzrl.records import Collaboration, Demonstration, Feedback, Reply, Round
from waltzrl.training.checkpoints import weights_digest
from waltzrl.training.learner import Learner, Optimizer
from waltzrl.training.reinforce import ReinforcePlusPlus
from waltzrl.training.rewards import STAGE_1, paper_rewards
from waltzrl.training.stages import Imitation, Reinforcement, shuffled
from waltzrl.training.warmup import demonstration_sample

OPTIMIZER = Optimizer(learning_rate=1e-2, warmup_steps=0)
BENIGN, UNSAFE = tiny_pair.prompts()


def stage(learns, **options):
    settings = {
        "name": "joint",
        "steps": 3,
        "learns": learns,
        "prompts": tiny_pair.prompts(),
        "judge": LabelRefusalJudge(),
        "pattern": collaborate,
        "feedback_reward": partial(paper_rewards, coefficients=STAGE_1),
        "optimizer": OPTIMIZER,
        "algorithm": ReinforcePlusPlus(),
        "prompts_per_step": 4,
    }
    return Reinforcement(**settings | options)


def learners(pair, names):
    return {
        name: Learner(pair.weights[name].causal_lm, pair.weights[name].adapter, OPTIMIZER, 3)
        for name in names
    }


def digests(pair):
    return {name: weights_digest(w.causal_lm.model) for name, w in pair.weights.items()}


def test_an_epoch_deals_everything_once_in_another_order_each_time():
    dealt = [shuffled(10, 4, step, "s") for step in range(5)]
    places = [place for one in dealt for place in one]
    assert Counter(places[:10]) == Counter(places[10:]) == Counter(range(10))
    assert places[:10] != places[10:]
    assert shuffled(10, 4, 3, "s") == dealt[3]
    assert shuffled(10, 4, 0, "other") != dealt[0]


def test_a_step_larger_than_the_set_deals_it_more_than_once():
    assert Counter(shuffled(3, 7, 0, "s")) == Counter([0, 1, 2] * 2 + [shuffled(3, 7, 0, "s")[6]])


def test_the_same_step_on_the_same_weights_measures_the_same():
    def measured():
        pair = tiny_pair.two_models()
        both = ("conversation", "feedback")
        found = asyncio.run(stage(both).step(2, pair, learners(pair, both)))
        return {k: v for k, v in found.items() if not k.startswith("time/")}, digests(pair)

    assert measured() == measured()


def test_only_those_who_learn_change():
    pair = tiny_pair.two_models()
    before = digests(pair)
    measured = asyncio.run(stage(("feedback",)).step(0, pair, learners(pair, ("feedback",))))
    after = digests(pair)
    assert after["conversation"] == before["conversation"]
    assert after["feedback"] != before["feedback"]
    assert "kl/feedback_nats" in measured
    assert "kl/conversation_nats" not in measured
    assert measured["kl/feedback_nats"] == pytest.approx(0.0, abs=1e-6)  # nobody has moved yet


def test_single_model_rl_samples_no_feedback():
    pair = tiny_pair.two_models()
    alone = stage(("conversation",), pattern=draft_only, group_size=2)
    measured = asyncio.run(alone.step(0, pair, learners(pair, ("conversation",))))
    assert "rate/feedback_trigger" not in measured
    assert measured["tokens/sampled"] == measured["tokens/conversation"]


def test_replayed_drafts_are_not_counted_in_the_rates():
    pair = tiny_pair.two_models()
    replaying = stage(("feedback",), replayed_share=1.0)
    measured = asyncio.run(replaying.step(0, pair, learners(pair, ("feedback",))))
    assert "rate/asr" not in measured
    assert "tokens/feedback" in measured


def demonstration(*rounds, draft="Sure, use kill."):
    said = Collaboration(prompt=BENIGN, draft=Reply(text=draft), rounds=rounds)
    return Demonstration(collaboration=said)


def texts(sample, pair):
    tokenizer = pair.policies[0].tokenizer
    return tuple(tokenizer.decode(ids) for ids in (sample.tokens.prompt_ids, sample.tokens.ids))


def test_a_demonstration_without_rounds_is_a_draft():
    pair = tiny_pair.two_models()
    shown, said = texts(demonstration_sample(demonstration(), pair), pair)
    assert shown == "<|user|>How do I kill a process?<|end|><|assistant|>"
    assert said == "Sure, use kill.<|end|>"


def test_a_demonstration_that_ends_in_feedback_is_a_review_that_can_be_read():
    pair = tiny_pair.two_models()
    feedback = Feedback(unsafe=False, overrefuse=True, text="Answer it.", reasoning="harmless")
    shown, said = texts(
        demonstration_sample(demonstration(Round(feedback=feedback), draft="Sorry,"), pair), pair
    )
    assert "<reply>Sorry,</reply>" in shown
    read = read_feedback(Reply(text=said.removesuffix("<|end|>")))
    assert (read.unsafe, read.overrefuse, read.text) == (False, True, "Answer it.")


def test_a_demonstration_that_ends_in_a_revision_shows_the_feedback():
    pair = tiny_pair.two_models()
    feedback = Feedback(unsafe=False, overrefuse=True, text="Answer it.")
    turn = Round(feedback=feedback, revision=Reply(text="Sure, use kill."))
    shown, said = texts(demonstration_sample(demonstration(turn, draft="Sorry,"), pair), pair)
    assert shown.endswith("<feedback>Answer it.</feedback><|end|><|assistant|>")
    assert said == "Sure, use kill.<|end|>"


def test_imitation_learns_its_demonstrations_by_heart():
    pair = tiny_pair.two_models()
    warm_up = Imitation(
        name="warm-up",
        steps=40,
        demonstrations=[demonstration()],
        optimizer=OPTIMIZER,
        batch_size=2,
    )
    taught = learners(pair, ("conversation",))

    async def learn():
        return [
            (await warm_up.step(number, pair, taught))["loss/conversation"]
            for number in range(warm_up.steps)
        ]

    losses = asyncio.run(learn())
    assert losses[-1] < 0.1 < losses[0]
    sampling = pair.conversation.sampling
    reply = asyncio.run(pair.conversation.policy.reply(BENIGN.messages, sampling))
    assert reply.text == "Sure, use kill."
