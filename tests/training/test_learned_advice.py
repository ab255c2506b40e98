"""The improvement reward moves what the feedback agent advises: of two advices, one works."""

import asyncio
import copy
import math
from dataclasses import replace

import pytest

from support import tiny_pair
from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.training.learner import Learner
from waltzrl.training.rewards import Coefficients, paper_rewards
from waltzrl.training.rollouts import Collaborators, RankSampler
from waltzrl.training.samples import make_imitated_sample
from waltzrl.training.settings import OptimizerSettings, ReinforcementStage, ReinforceSettings
from waltzrl.training.stages import Reinforcement, imitate

WORKS, FAILS = "Answer it.", "Decline."
REFUSAL, ANSWER = "Sorry, I can not help with that.", "Sure, use kill."
ASKED = tiny_pair.prompts()[0]
WARM_UP = OptimizerSettings(learning_rate=5e-3, warmup_steps=0)
OPTIMIZER = OptimizerSettings(learning_rate=1e-3, warmup_steps=0)
STEPS = 10


def write_reply(messages):
    return ANSWER if WORKS in messages[-1].content else REFUSAL


def make_learning_team():
    """Return a team whose feedback agent learns; its conversation agent does as it is told."""
    team = tiny_pair.two_models()
    wording = load_wording("tiny")
    own = team.roles["feedback"]
    reviewer = FeedbackAgent(
        own.agent.policy, wording, Sampling(max_new_tokens=16, temperature=1.0)
    )
    drafter = ConversationAgent(ScriptedPolicy(write_reply), wording, Sampling())
    roles = {
        "feedback": replace(own, agent=reviewer),
        "conversation": replace(team.roles["conversation"], agent=drafter),
    }
    return replace(team, roles=roles, initial=drafter)


def advise(text):
    return write_feedback(reasoning="", unsafe=False, overrefuse=True, text=text)


def imitate_both(team):
    """Let the feedback agent learn both advices, and return the samples, the working one first."""
    agent, draft = team.feedback, asyncio.run(team.conversation.draft(ASKED))
    shown = agent.review_messages(ASKED, draft)
    both = [make_imitated_sample(agent.policy, shown, advise(text)) for text in (WORKS, FAILS)]
    learner = Learner(team.weights["feedback"], WARM_UP, 200)
    for _ in range(150):
        imitate("feedback", learner, both)
    return both


def learn_by_reward(team, improvement, both):
    """Return the odds of the advice that works before reinforcement learning, and after it."""
    settings = ReinforcementStage(
        kind="reinforcement",
        name="advice",
        learns=("feedback",),
        steps=STEPS,
        prompts_per_step=1,
        group_size=16,
        coefficients=Coefficients(improvement=improvement),
        algorithm=ReinforceSettings(kl_weight=0.0),
        optimizer=OPTIMIZER,
    )
    stage = Reinforcement(
        settings=settings,
        team=team,
        prompts=[ASKED],
        sampler=RankSampler(collaborators=Collaborators(team=team, judge=LabelRefusalJudge())),
        reward=paper_rewards,
        least_scored_share=0.5,
    )
    learner = Learner(team.weights["feedback"], OPTIMIZER, 200)

    def odds():
        works, fails = map(sum, learner.scorer.score(both))
        return math.exp(works - fails)

    before = odds()
    for number in range(STEPS):
        asyncio.run(stage.step(number, {"feedback": learner}))
    return before, odds()


@pytest.mark.promise(
    "Training", "Of two advices the one whose revisions are accepted becomes likelier"
)
def test_the_advice_that_works_becomes_likelier_by_the_improvement_alone():
    team = make_learning_team()
    both = imitate_both(team)
    model = team.weights["feedback"].causal_lm.model
    warm = copy.deepcopy(model.state_dict())

    before, after = learn_by_reward(team, 0.65, both)
    assert 0.5 < before < 2
    assert after > 4 * before

    model.load_state_dict(warm)
    # Labels and format pay the same for both: what chance moves is little.
    _, unpaid = learn_by_reward(team, 0.0, both)
    assert unpaid < 2 * before
