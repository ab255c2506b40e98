import asyncio
import json

import pytest

from support import tiny_pair
from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.errors import ScoringError
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Message, Prompt, Verdict
from waltzrl.training.roles import Best
from waltzrl.training.rollouts import Collaborators, RankSampler
from waltzrl.training.validation import Validation, best_validation

SAMPLING = Sampling(max_new_tokens=8)


def prompt(text, label):
    return Prompt(id=text, messages=(Message(role="user", content=text),), label=label)


PROMPTS = [
    *(prompt(f"poison {number}", "unsafe") for number in range(4)),
    *(prompt(f"bread {number}", "benign") for number in range(4)),
]


def measured(draft, judge=None):
    """Validate a pair that drafts as a function says, and revises nothing."""
    wording = load_wording("plain")
    conversation = ConversationAgent(
        ScriptedPolicy(lambda messages: draft(messages[-1].content)), wording, SAMPLING
    )
    approving = ScriptedPolicy(lambda _: '{"unsafe": false, "overrefuse": false, "feedback": ""}')
    team = tiny_pair.scripted(conversation, FeedbackAgent(approving, wording, SAMPLING))
    validation = validate(PROMPTS, team, judge or LabelRefusalJudge(), max_rounds=1)
    return asyncio.run(validation.measure())


def validate(prompts, team, judge, max_rounds):
    return Validation(
        prompts=prompts,
        sampler=RankSampler(collaborators=Collaborators(team=team, judge=judge)),
        max_rounds=max_rounds,
        least_scored_share=0.5,
    )


@pytest.mark.promise(
    "Evaluation",
    "Rates on a validation set are in the journal; the best checkpoint by F1 is kept and "
    "exported, and the export names it",
)
def test_rates_and_f1_are_the_hand_counted_ones():
    refused = {"poison 0", "poison 1", "poison 2", "bread 0", "bread 1"}
    rates = measured(lambda asked: "I can't help with that." if asked in refused else "Sure.")
    assert (rates["validation/asr"], rates["validation/orr"]) == (0.25, 0.5)
    assert rates["validation/f1"] == pytest.approx(2 * 0.75 * 0.5 / (0.75 + 0.5))
    assert rates["validation/feedback_trigger"] == 0.0
    assert measured(lambda _: "Sure.")["validation/f1"] == 0.0  # safe with none, helpful with all


def test_a_judge_that_does_not_decide_is_no_rate():
    class Undecided:
        name = "undecided"

        async def judge(self, prompt, reply):
            return Verdict(judge=self.name)

    with pytest.raises(ScoringError, match="0 of 8"):
        measured(lambda _: "Sure.", Undecided())


@pytest.mark.promise(
    "Evaluation",
    "Validation changes no step: the same weights are measured alike, and a killed run goes on "
    "bit by bit",
)
def test_the_same_weights_are_always_measured_alike_and_sampling_goes_on_unchanged():
    team = tiny_pair.two_models()
    greedy = team.greedy()
    validation = validate(tiny_pair.prompts() * 3, team, LabelRefusalJudge(), max_rounds=0)

    async def sampled():
        team.seed(1)
        return (await team.conversation.draft(tiny_pair.prompts()[0])).text

    before = asyncio.run(sampled())
    assert asyncio.run(validation.measure()) == asyncio.run(validation.measure())
    assert asyncio.run(sampled()) == before
    assert greedy.conversation.sampling.temperature == greedy.feedback.sampling.temperature == 0
    assert team.conversation.sampling.temperature == 1


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({}, None),
        ({0: 0.5, 10: 0.7, 20: 0.7, 30: 0.6}, Best(20, 0.7)),  # the latest of several
        ({0: None, 10: 0.0}, Best(10, 0.0)),
    ],
)
def test_the_best_step_is_read_from_the_journal(tmp_path, scores, best):
    lines = [{"step": step, "validation/f1": scores.get(step)} for step in range(40)]
    lines = [{k: v for k, v in line.items() if v is not None or k == "step"} for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert best_validation(tmp_path) == best


def test_a_run_that_has_not_begun_has_no_best_step(tmp_path):
    assert best_validation(tmp_path) is None
