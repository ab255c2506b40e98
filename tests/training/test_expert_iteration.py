"""Expert iteration: both agents imitate what the judge accepts, and how it labels."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import pytest

from support import tiny_pair
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.errors import RecipeError
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.patterns import (
    OVERREFUSAL_ADVICE,
    UNSAFE_ADVICE,
    Advice,
    OracleReviewer,
)
from waltzrl.foundation.validation import validate_table
from waltzrl.records import (
    Collaboration,
    Demonstration,
    Feedback,
    JudgedCollaboration,
    Message,
    Prompt,
    Reply,
    Round,
    Tokens,
    Verdict,
)
from waltzrl.training.checkpoints import weights_digest
from waltzrl.training.learner import Learner
from waltzrl.training.rewards import paper_rewards
from waltzrl.training.rollouts import (
    Collaborators,
    RankSampler,
    Rollout,
    accepted_samples,
)
from waltzrl.training.samples import make_imitated_sample
from waltzrl.training.settings import CheckpointSettings, OptimizerSettings, ReinforcementStage
from waltzrl.training.stages import Reinforcement, imitate
from waltzrl.training.trainer import Trainer

OPTIMIZER = OptimizerSettings(learning_rate=1e-2, warmup_steps=0)
ASKED = Prompt(id="1", messages=(Message(role="user", content="Hi?"),), label="benign")
GOOD = Verdict(judge="j", unsafe=False, refuses=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, refuses=False, overrefuses=False)
UNSCORED = Verdict(judge="j")


def reply(number):
    return Reply(text=f"{number}", tokens=Tokens(prompt_ids=(0,), ids=(number,), logprobs=(-1.0,)))


def rollout(*verdicts, prompt=ASKED):
    flagged = Feedback(unsafe=True, overrefuse=False, text="Again.")
    rounds = tuple(
        Round(feedback=flagged, revision=reply(number)) for number in range(1, len(verdicts))
    )
    said = Collaboration(prompt=prompt, draft=reply(0), rounds=rounds)
    return Rollout(judged=JudgedCollaboration(collaboration=said, verdicts=verdicts))


HARMFUL = replace(ASKED, id="3", label="unsafe")


def test_each_revision_that_fixed_its_draft_has_a_draft_of_the_other_kind_beside_it():
    rollouts = [
        rollout(UNSAFE, GOOD),
        rollout(UNSAFE, UNSAFE),  # not fixed
        rollout(UNSAFE),  # not revised
        rollout(UNSAFE, UNSCORED),
        rollout(UNSCORED, GOOD),
        rollout(UNSAFE, UNSAFE, GOOD, prompt=replace(ASKED, id="2")),  # fixed by the second
        rollout(UNSAFE, GOOD, UNSAFE),  # and lost again
        rollout(UNSAFE, GOOD, prompt=HARMFUL),
        *(rollout(GOOD, prompt=replace(HARMFUL, id=f"4.{number}")) for number in range(5)),
        rollout(GOOD, GOOD, prompt=HARMFUL),  # revised for nothing
        replace(rollout(GOOD, prompt=HARMFUL), replayed=True),  # another agent's draft
        *(rollout(GOOD, prompt=replace(ASKED, id=f"5.{number}")) for number in range(9)),
    ]
    samples = accepted_samples(rollouts, random.Random(0))
    texts = [sample.tokens.ids for sample in samples]
    groups = [sample.group for sample in samples]
    assert (texts[0], groups[0]) == ((1,), 2)  # to the harmful prompt, of which there are three
    assert (texts[1], groups[1] > 7) == ((0,), True)  # a draft to a harmless one
    assert (texts[2:4], groups[2:4]) == ([(1,), (2,)], [0, 1])
    assert texts[4:] == [(0,), (0,)]
    assert all(2 <= group <= 7 for group in groups[4:])


def test_without_enough_drafts_of_the_other_kind_there_are_fewer():
    fixed = [rollout(UNSAFE, GOOD, prompt=replace(ASKED, id=f"1.{n}")) for n in range(4)]
    drafts = [rollout(GOOD, prompt=replace(HARMFUL, id=f"2.{n}")) for n in range(9)]
    assert len(accepted_samples([*fixed, *drafts], random.Random(0))) == 8
    assert len(accepted_samples([*fixed, *drafts[:1]], random.Random(0))) == 5
    assert accepted_samples(drafts, random.Random(0)) == []


class EvenReplies:
    """A judge to whom every reply with an even number of characters is unsafe."""

    name = "even"

    async def judge(self, prompt, reply):
        return replace(GOOD, unsafe=len(reply.text) % 2 == 0)


def stage(team, judge, **options):
    settings = ReinforcementStage(
        kind="reinforcement",
        name="revisions",
        learns=("conversation",),
        reviewer="judge",
        objective="expert-iteration",
        steps=3,
        prompts_per_step=2,
        group_size=8,
        optimizer=OPTIMIZER,
        **options,
    )
    return Reinforcement(
        settings=settings,
        team=team,
        prompts=tiny_pair.prompts(),
        sampler=RankSampler(collaborators=Collaborators(team=team, judge=judge)),
        reward=paper_rewards,
        least_scored_share=0.5,
    )


def take_step(team, judge):
    learner = Learner(team.weights["conversation"], OPTIMIZER, 3)
    return asyncio.run(stage(team, judge).step(0, {"conversation": learner}))


@pytest.mark.promise(
    "Training",
    "A stage of expert iteration: the conversation agent imitates its accepted revisions and as "
    "many accepted drafts, the feedback agent the judge's reviews",
)
def test_a_step_makes_accepted_samples_likelier():
    team = tiny_pair.two_models()
    before = {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}
    rolled = []

    class Remembered(RankSampler):
        async def sample(self, request):
            outcomes = await super().sample(request)
            rolled.extend(Rollout(judged=outcome) for outcome in outcomes)
            return outcomes

    made = stage(team, EvenReplies())
    made = replace(made, sampler=Remembered(collaborators=made.sampler.collaborators))
    learner = Learner(team.weights["conversation"], OPTIMIZER, 3)
    measured = asyncio.run(made.step(0, {"conversation": learner}))
    accepted = accepted_samples(rolled, made._choose_prompts(0)[1])
    assert measured["tokens/conversation"] == sum(len(sample.tokens.ids) for sample in accepted) > 0
    after = {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}
    assert (after["feedback"], after["conversation"] == before["conversation"]) == (
        before["feedback"],
        False,
    )
    scores = learner.scorer.score(accepted)
    old = [sum(sample.tokens.logprobs) for sample in accepted]
    assert sum(map(sum, scores)) > sum(old)


@pytest.mark.promise("Training", "A stage of expert iteration resumes bit by bit after a kill")
@pytest.mark.parametrize(
    ("layout", "kill_after"), [(tiny_pair.two_models, 1), (tiny_pair.adapters, 4)]
)
def test_a_stage_that_is_killed_goes_on_bit_by_bit(tmp_path, layout, kill_after):
    def trained(folder, kill_after=None):
        def end(progress):
            if progress.step == kill_after:
                raise KeyboardInterrupt

        team = layout()
        made = stage(team, EvenReplies())
        reviews = replace(made.settings, name="reviews", learns=("feedback",), reviewer="feedback")
        parts = [made, replace(made, settings=reviews)]
        keeping = CheckpointSettings(checkpoint_every=1, keep_last=1)
        folder.mkdir(exist_ok=True)
        with suppress(KeyboardInterrupt):
            asyncio.run(Trainer(team.weights, parts, folder, keeping).train(end))
        return {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}

    start = {role: weights_digest(own.causal_lm.model) for role, own in layout().weights.items()}
    whole = trained(tmp_path / "whole")
    assert all(whole[role] != start[role] for role in start)
    assert trained(tmp_path / "cut", kill_after) != whole
    assert trained(tmp_path / "cut") == whole


def test_the_feedback_agent_imitates_the_reviews_that_the_verdicts_give():
    team = tiny_pair.two_models()
    learning = replace(stage(team, EvenReplies()).settings, learns=("feedback",))
    made = replace(stage(team, EvenReplies()), settings=learning)
    refused = replace(GOOD, refuses=True, overrefuses=True)
    rollouts = [rollout(UNSAFE, GOOD), rollout(UNSCORED, GOOD), rollout(refused), rollout(GOOD)]
    samples = made.take_samples("feedback", rollouts, random.Random(0))
    policy = team.feedback.policy
    expected = [
        write_feedback(reasoning="", unsafe=True, overrefuse=False, text=UNSAFE_ADVICE),
        write_feedback(reasoning="", unsafe=False, overrefuse=True, text=OVERREFUSAL_ADVICE),
        write_feedback(reasoning="", unsafe=False, overrefuse=False, text=""),
    ]
    shown = policy.render(team.feedback.review_messages(ASKED, reply(0)))
    assert [sample.tokens.prompt_ids for sample in samples] == [shown] * 3
    assert [sample.tokens.ids[:-1] for sample in samples] == [
        tuple(policy.text_ids(text)) for text in expected
    ]

    learner = Learner(team.weights["feedback"], OPTIMIZER, 3)
    before = sum(map(sum, learner.scorer.score(samples)))
    imitate("feedback", learner, samples, by_reply=True)
    assert sum(map(sum, learner.scorer.score(samples))) > before


def test_a_short_reply_weighs_as_much_as_a_long_one():
    team = tiny_pair.two_models()
    policy = team.conversation.policy
    shown = [Message(role="user", content="Hi?")]
    samples = [make_imitated_sample(policy, shown, text) for text in ("Sorry,", "Sure, use kill.")]
    learner = Learner(team.weights["conversation"], OPTIMIZER, 3)
    means = [fmean(logprobs) for logprobs in learner.scorer.score(samples)]
    lengths = [len(sample.tokens.ids) for sample in samples]
    assert lengths[0] < lengths[1]
    measured = imitate("conversation", learner, samples, by_reply=True)
    assert measured["loss/conversation"] == pytest.approx(-fmean(means), rel=1e-4)
    assert measured["tokens/conversation"] == sum(lengths)


def test_where_nothing_is_accepted_nothing_is_learnt():
    class Unsafe(EvenReplies):
        async def judge(self, prompt, reply):
            return UNSAFE

    team = tiny_pair.two_models()
    before = weights_digest(team.weights["conversation"].causal_lm.model)
    measured = take_step(team, Unsafe())
    assert "tokens/conversation" not in measured
    assert measured["rate/unsafe_fixed"] == 0.0
    assert "rate/label_accuracy" not in measured  # the judge reviewed
    assert weights_digest(team.weights["conversation"].causal_lm.model) == before


def test_the_judge_reviews_with_the_demonstrated_advice():
    def shown(feedback):
        said = Collaboration(prompt=ASKED, draft=reply(0), rounds=(Round(feedback=feedback),))
        return Demonstration(collaboration=said)

    advice = Advice.demonstrated(
        [
            shown(Feedback(unsafe=False, overrefuse=False, text="Not advice.")),
            shown(Feedback(unsafe=True, overrefuse=False, text="Decline.")),
            shown(Feedback(unsafe=True, overrefuse=False, text="Warn.")),
            shown(Feedback(unsafe=True, overrefuse=False, text="Decline.")),
        ]
    )
    assert advice == Advice(unsafe=("Decline.", "Warn."), overrefuse=(OVERREFUSAL_ADVICE,))
    chosen = {advice.advise(reply(n), unsafe=True, overrefuse=False).text for n in range(20)}
    assert chosen == {"Decline.", "Warn."}
    assert advice.advise(reply(1), unsafe=False, overrefuse=False).text == ""

    harmful = replace(ASKED, label="unsafe")
    reviewer = OracleReviewer(LabelRefusalJudge(), advice)
    feedback = asyncio.run(reviewer.review(harmful, Reply(text="Sure, here is how.")))
    assert (feedback.unsafe, feedback.text in advice.unsafe) == (True, True)
    default = OracleReviewer(LabelRefusalJudge())
    feedback = asyncio.run(default.review(harmful, Reply(text="Sure, here is how.")))
    assert feedback.text == UNSAFE_ADVICE


def test_the_request_says_who_reviews():
    team = tiny_pair.two_models()
    made = stage(team, LabelRefusalJudge())
    request, _ = made._choose_prompts(0)
    assert request.advice == Advice()
    by_agent = replace(made, settings=replace(made.settings, reviewer="feedback"))
    assert by_agent._choose_prompts(0)[0].advice is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"learns": ["feedback"], "reviewer": "judge"}, "the judge reviews"),
        (
            {
                "learns": ["conversation"],
                "objective": "expert-iteration",
                "pattern": "draft-only",
            },
            "imitates revisions",
        ),
    ],
)
@pytest.mark.promise("Bad input", "A stage in which no role has anything to learn from")
def test_a_stage_without_anything_to_learn_from_is_refused(options, named):
    table = {
        "kind": "reinforcement",
        "name": "revisions",
        "steps": 1,
        "optimizer": {"learning_rate": 1e-3},
        **options,
    }
    with pytest.raises(RecipeError, match=named):
        validate_table(ReinforcementStage, table, "recipe.toml")
