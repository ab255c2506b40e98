import asyncio
import random
from dataclasses import replace

import pytest

from support import tiny_pair
from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.errors import InputError, PolicyError, ScoringError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import (
    Collaboration,
    Feedback,
    JudgedCollaboration,
    Message,
    Prompt,
    Reply,
    Round,
    Tokens,
    Usage,
    Verdict,
)
from waltzrl.training.rewards import STAGE_1
from waltzrl.training.rollouts import (
    Collaborators,
    Rollout,
    RolloutPrompt,
    RolloutRequest,
    conversation_samples,
    feedback_samples,
    gather_rollouts,
)
from waltzrl.training.validation import length_metrics, rollout_rates

GOOD = Verdict(judge="j", unsafe=False, refuses=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, refuses=False, overrefuses=False)
OPEN = Verdict(judge="j")
SAMPLING = Sampling(max_new_tokens=8)
REVISE = '{"unsafe": false, "overrefuse": true, "feedback": "Answer."}'


def asked(name="p", label="unsafe"):
    return Prompt(id=name, messages=(Message(role="user", content="How?"),), label=label)


def said(text, token):
    tokens = Tokens(prompt_ids=(1,), ids=(token,), logprobs=(-1.0,))
    return Reply(text=text, tokens=tokens, usage=Usage(input_tokens=0, output_tokens=1))


def feedback(unsafe=False, well_formed=True, token=9):
    reply = said("{}", token)
    return Feedback(unsafe=unsafe, overrefuse=False, well_formed=well_formed, reply=reply)


def rollout(verdicts, *, unsafe_label=False, revised=False, replayed=False, name="p", well=True):
    turn = Round(
        feedback=feedback(unsafe_label, well), revision=said("revision", 2) if revised else None
    )
    collaboration = Collaboration(prompt=asked(name), draft=said("draft", 1), rounds=(turn,))
    judged = JudgedCollaboration(collaboration=collaboration, verdicts=tuple(verdicts))
    return Rollout(judged=judged, replayed=replayed)


def pay_nothing(rounds, coefficients):
    return [0.0 for _ in rounds]


def feedback_samples_of(batch, reward=pay_nothing, round_cost=0.0):
    return feedback_samples(
        batch,
        random.Random(0),
        reward=reward,
        coefficients=STAGE_1,
        round_cost=round_cost,
        class_counts={},
    )


@pytest.mark.promise("Equations", "`waltzrl.training.rollouts.conversation_samples`")
def test_drafts_and_revisions_are_learnt_with_equal_chance():
    batch = [rollout([UNSAFE, GOOD], unsafe_label=True, revised=True)] * 400
    samples = conversation_samples(batch, random.Random(0))
    revisions = [sample.score for sample in samples if sample.tokens.ids == (2,)]
    assert 160 < len(revisions) < 240
    assert set(revisions) == {1.0}
    assert {sample.score for sample in samples if sample.tokens.ids == (1,)} == {0.0}


def test_a_replayed_draft_is_nobodys_to_learn_but_its_revision_is():
    drafts = [rollout([UNSAFE], replayed=True)] * 20
    assert conversation_samples(drafts, random.Random(0)) == []
    revised = [rollout([UNSAFE, GOOD], unsafe_label=True, revised=True, replayed=True)] * 20
    learnt = conversation_samples(revised, random.Random(0))
    assert {sample.tokens.ids for sample in learnt} == {(2,)}


def test_of_several_revisions_of_a_replayed_draft_the_last_is_learnt():
    turns = tuple(
        Round(feedback=feedback(True), revision=said("revision", token)) for token in (2, 3)
    )
    collaboration = Collaboration(prompt=asked(), draft=said("draft", 1), rounds=turns)
    judged = JudgedCollaboration(collaboration=collaboration, verdicts=(UNSAFE, UNSAFE, GOOD))
    batch = [Rollout(judged=judged, replayed=True)] * 20
    samples = conversation_samples(batch, random.Random(0))
    assert {(sample.tokens.ids, sample.score) for sample in samples} == {((3,), 1.0)}


def test_of_several_rounds_one_is_learnt_each_with_equal_chance():
    turns = tuple(
        Round(feedback=feedback(True, token=token), revision=said("revision", 2))
        for token in (7, 8)
    )
    collaboration = Collaboration(prompt=asked(), draft=said("draft", 1), rounds=turns)
    judged = JudgedCollaboration(collaboration=collaboration, verdicts=(UNSAFE, UNSAFE, GOOD))
    batch = [Rollout(judged=judged)] * 400
    samples = feedback_samples_of(batch)
    assert len(samples) == 400
    assert 160 < sum(sample.tokens.ids == (7,) for sample in samples) < 240
    charged = feedback_samples_of(batch, round_cost=0.25)
    assert {(sample.tokens.ids, sample.score) for sample in charged} == {((7,), 0.0), ((8,), -0.25)}


def test_what_the_judge_left_open_teaches_nothing():
    assert conversation_samples([rollout([OPEN])], random.Random(0)) == []
    assert feedback_samples_of([rollout([OPEN])]) == []


def test_rollouts_of_one_prompt_are_one_group():
    batch = [rollout([GOOD], name=name) for name in ("a", "b", "a", "c", "b")]
    groups = [sample.group for sample in conversation_samples(batch, random.Random(0))]
    assert groups == [0, 1, 0, 2, 1]
    groups = [sample.group for sample in feedback_samples_of(batch)]
    assert groups == [0, 1, 0, 2, 1]


def test_two_prompts_with_one_id_are_two_groups():
    one = rollout([GOOD])
    said = replace(one.judged.collaboration, prompt=asked(label="benign"))
    other = replace(one, judged=replace(one.judged, collaboration=said))
    samples = conversation_samples([one, other, one], random.Random(0))
    assert [sample.group for sample in samples] == [0, 1, 0]


@pytest.mark.promise("Equations", "`waltzrl.training.rollouts.feedback_samples`")
def test_the_feedback_reward_is_paid_for_the_feedbacks_own_tokens():
    batch = [rollout([UNSAFE], unsafe_label=True), rollout([GOOD])]

    def pay(rounds, coefficients):
        return [2.0 if said.feedback.unsafe else 1.0 for said in rounds]

    samples = feedback_samples_of(batch, pay)
    assert [(sample.tokens.ids, sample.score) for sample in samples] == [((9,), 2.0), ((9,), 1.0)]


def test_shares_count_what_the_pair_itself_said():
    # 4 own rollouts on unsafe prompts: finals are unsafe, unsafe, good, unscored -> ASR 2/3.
    # Labels, against the draft's verdict: right, wrong, right, not countable -> 2/3.
    shares = rollout_rates(
        [
            rollout([UNSAFE], unsafe_label=True),
            rollout([UNSAFE], unsafe_label=False),
            rollout([GOOD], unsafe_label=False),
            rollout([OPEN], unsafe_label=False),
            rollout([UNSAFE], replayed=True),
        ]
    )
    assert shares["rate/asr"] == pytest.approx(2 / 3)
    assert "rate/orr" not in shares
    assert shares["rate/feedback_trigger"] == 0.25
    assert shares["rate/label_accuracy"] == pytest.approx(2 / 3)
    assert shares["rate/well_formed"] == 1.0
    assert shares["rate/unscored"] == 0.25


@pytest.mark.promise("Training", "Every step measures all that the report draws")
def test_drafts_and_final_replies_have_rates_of_their_own_and_their_gain_is_the_improvement():
    # Unsafe prompts: a bad draft repaired, a bad draft left, a good draft spoiled, a good one left.
    measured = rollout_rates(
        [
            rollout([UNSAFE, GOOD], unsafe_label=True, revised=True),
            rollout([UNSAFE]),
            rollout([GOOD, UNSAFE], unsafe_label=True, revised=True),
            rollout([GOOD]),
            rollout([UNSAFE, GOOD], unsafe_label=True, revised=True, replayed=True),
        ]
    )
    assert (measured["rate/draft_asr"], measured["rate/asr"]) == (0.5, 0.5)
    assert measured["reward/improvement_mean"] == 0.0  # of +1, 0, -1 and 0
    assert "rate/draft_orr" not in measured


@pytest.mark.promise("Training", "Every step measures all that the report draws")
def test_replies_without_an_answer_have_rates_of_their_own_where_the_judge_looks():
    silent, answered = replace(GOOD, non_answer=True), replace(GOOD, non_answer=False)
    batch = [
        rollout([silent, answered], revised=True),
        rollout([silent]),
        rollout([answered]),
        rollout([GOOD]),  # not looked at
    ]
    benign = [
        replace(r, judged=replace(r.judged, collaboration=of(r, asked(label="benign"))))
        for r in batch
    ]
    measured = rollout_rates(benign)
    assert measured["rate/draft_non_answer"] == pytest.approx(2 / 3)
    assert measured["rate/non_answer"] == pytest.approx(1 / 3)
    assert "rate/non_answer" not in rollout_rates(batch)  # unsafe prompts
    assert "rate/non_answer" not in rollout_rates(benign[3:])


def of(judged_rollout, prompt):
    return replace(judged_rollout.judged.collaboration, prompt=prompt)


@pytest.mark.promise("Training", "Every step measures all that the report draws")
def test_lengths_are_those_of_each_role_without_replayed_drafts():
    long = Reply(
        text="", finish="length", usage=Usage(input_tokens=0, output_tokens=10), tokens=None
    )
    turn = Round(feedback=feedback(True), revision=long)
    collaboration = Collaboration(prompt=asked(), draft=said("draft", 1), rounds=(turn,))
    judged = JudgedCollaboration(collaboration=collaboration, verdicts=(UNSAFE, GOOD))
    replayed = Rollout(judged=judged, replayed=True)
    # Of 1, 10 and 10 tokens: the draft of the second rollout is not the learner's.
    assert length_metrics([Rollout(judged=judged), replayed]) == {
        "length/conversation_tokens": 7.0,
        "length/conversation_truncated_share": pytest.approx(2 / 3),
        "length/feedback_tokens": 1.0,
        "length/feedback_truncated_share": 0.0,
    }
    assert length_metrics([]) == {}


def test_unreadable_feedback_has_no_right_label():
    assert rollout_rates([rollout([GOOD], well=False)])["rate/label_accuracy"] == 0.0


def agents(draft, revision="Sure, here is how."):
    wording = load_wording("plain")
    script = iter([draft, revision])
    conversation = ConversationAgent(ScriptedPolicy(lambda _: next(script)), wording, SAMPLING)
    return conversation, FeedbackAgent(ScriptedPolicy(lambda _: REVISE), wording, SAMPLING)


def roll_out(prompts, conversation, reviewer, initial=None, judge=None):
    team = tiny_pair.scripted(conversation, reviewer, initial)
    collaborators = Collaborators(team=team, judge=judge or LabelRefusalJudge())
    request = RolloutRequest(prompts=prompts, max_rounds=1)
    return gather_rollouts(prompts, asyncio.run(collaborators.roll_out(request)), 0.5)


def test_every_reply_of_a_rollout_has_its_verdict():
    prompts = [RolloutPrompt(asked(label="benign"))]
    (found,) = roll_out(prompts, *agents("I'm sorry, but I can't help with that."))
    assert [verdict.overrefuses for verdict in found.judged.verdicts] == [True, False]
    assert not found.replayed


def test_a_replayed_draft_comes_from_the_initial_agent_and_is_revised_by_the_learner():
    initial, reviewer = agents("I can't help with that.")
    learner, _ = agents("Sure.", "never")
    prompts = [RolloutPrompt(asked(label="benign"), replayed=True)]
    (found,) = roll_out(prompts, learner, reviewer, initial)
    assert found.replayed
    texts = [reply.text for reply in found.judged.collaboration.replies]
    assert texts == ["I can't help with that.", "Sure."]


class Refusing(ConversationAgent):
    """An agent that cannot answer some prompts."""

    def __init__(self, error, names):
        super().__init__(ScriptedPolicy(lambda _: "Sure."), load_wording("plain"), SAMPLING)
        self.error, self.names = error, names

    async def draft(self, prompt):
        if prompt.id in self.names:
            raise self.error
        return await super().draft(prompt)


def roll(conversation, *names, judge=None):
    approving = ScriptedPolicy(lambda _: '{"unsafe": false, "overrefuse": false, "feedback": ""}')
    reviewer = FeedbackAgent(approving, load_wording("plain"), SAMPLING)
    prompts = [RolloutPrompt(asked(name)) for name in names]
    return roll_out(prompts, conversation, reviewer, judge=judge)


def test_a_prompt_that_cannot_be_answered_is_left_out(caplog):
    found = roll(Refusing(PolicyError("too long"), {"b"}), "a", "b", "c")
    assert [one.judged.collaboration.prompt.id for one in found] == ["a", "c"]
    assert "prompt b is left out of this step: too long" in caplog.text


def test_with_too_few_answers_a_step_is_refused_in_one_line():
    down = Refusing(PolicyError("too long"), {"a", "b", "c"})
    assert len(roll(Refusing(PolicyError("too long"), {"a", "b"}), "a", "b", "c", "d")) == 2
    with pytest.raises(ScoringError) as refused:
        roll(down, "a", "b", "c", "d")
    assert str(refused.value) == (
        "1 of 4 collaborations were scored, need 50% (checkpointing.least_scored_share; 3 failed, "
        "first: too long); nothing was learnt from them: see that the judge and the models answer, "
        "and run train again to resume"
    )


def test_a_judge_that_fails_is_named_with_the_status_of_its_server():
    def fail(_):
        raise PolicyError("judges:8000: HTTP 503: no model (attempt 4)", reason="HTTP 503")

    judge = LLMJudge(FORMATS["wildguard"], JudgeModel(ScriptedPolicy(fail), "m", "m"))
    with pytest.raises(ScoringError) as refused:
        roll(Refusing(None, ()), "a", "b", judge=judge)
    assert (
        f"2 failed, first: the judge {judge.name} failed: judges:8000: HTTP 503: no model "
        "(attempt 4)"
    ) in str(refused.value)


def test_a_mistake_of_the_user_is_not_wrapped_in_a_group():
    with pytest.raises(InputError, match="no chat template"):
        roll(Refusing(InputError("no chat template"), {"a"}), "a", "b")


@pytest.mark.promise(
    "Evaluation",
    "A judge whose model decides on no reply ends the command in one line, and the replies are "
    "kept",
)
@pytest.mark.promise(
    "Bad input",
    "A judge's model that answers in no format: the last answer, after 20, or at the end if it "
    "decided on no reply; the replies are kept, in training the checkpoint",
)
def test_what_a_judge_said_that_decided_nothing_is_in_the_line():
    model = JudgeModel(ScriptedPolicy(lambda _: "As an AI model, I"), "m", "m")
    with pytest.raises(ScoringError, match=r"0 of 2 .*; the judge's model answered 'As an AI mod"):
        roll(Refusing(None, ()), "a", "b", judge=LLMJudge(FORMATS["wildguard"], model))
