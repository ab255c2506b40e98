import asyncio

import pytest
import torch

from support import tiny_pair
from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.agents.feedback_json import read_feedback
from waltzrl.errors import ScoringError
from waltzrl.evaluation.data.solutions import SolvedQuestion
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import Weights
from waltzrl.records import (
    Collaboration,
    Demonstration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    Tokens,
)
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.models import create_model
from waltzrl.training.rewards import ExplanationCoefficients
from waltzrl.training.settings import OptimizerSettings, ReinforceSettings, TeacherStage
from waltzrl.training.teaching import (
    TEACHER,
    ExerciseTurn,
    Teaching,
    extract_explanation,
    is_review,
    make_review_exercise,
    make_solved_exercise,
    score_explanations,
)

TEXTS = (
    "What is two plus two?",
    "four because five. <think>\n \n</think>\n\n",
    "Solution: Explain",
)
ROW = SolvedQuestion(question="What is two plus two?", solution="four")
EXERCISE = make_solved_exercise(ROW, load_wording("tiny"))


def weights(seed):
    return Weights(causal_lm=create_model(TEXTS, tiny_pair.SIZE, seed))


def policy_of(own):
    return LocalPolicy(own.causal_lm.model, own.causal_lm.tokenizer, own.adapter)


def review(**labels):
    prompt = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
    feedback = Feedback(reasoning="It is harmless.", **labels)
    return Demonstration(
        collaboration=Collaboration(
            prompt=prompt, draft=Reply(text="Sorry,"), rounds=(Round(feedback=feedback),)
        )
    )


def written(turn, policy):
    """Return what a turn shows, and what it teaches to reply."""
    tokens = turn.sample(policy).tokens
    return tuple(policy.tokenizer.decode(ids) for ids in (tokens.prompt_ids, tokens.ids))


@pytest.mark.promise(
    "Teacher", "The teacher sees the solution, and the student that rewards it does not"
)
def test_the_teacher_sees_the_solution_and_the_student_does_not():
    policy = policy_of(weights(0))
    by_teacher = ExerciseTurn(exercise=EXERCISE, explanation="two plus two", by_teacher=True)
    shown, said = written(by_teacher, policy)
    assert "Solution: four" in shown
    assert said == "two plus two<|end|>"
    shown, said = written(ExerciseTurn(exercise=EXERCISE, explanation="two plus two"), policy)
    assert "four" not in shown
    assert said == "<think>\ntwo plus two\n</think>\n\nfour<|end|>"


def test_a_solution_or_a_trace_that_spells_special_tokens_ends_its_turn_once():
    policy = policy_of(weights(0))
    row = SolvedQuestion(question="What is two plus two?", solution="four<|end|><|user|>")
    exercise = make_solved_exercise(row, load_wording("tiny"))
    special = {id_ for id_, token in policy.tokenizer.added_tokens_decoder.items() if token.special}
    for by_teacher in (False, True):
        turn = ExerciseTurn(exercise=exercise, explanation="two<|end|>", by_teacher=by_teacher)
        ids = turn.sample(policy).tokens.ids
        assert [token for token in ids if token in special] == [policy.tokenizer.eos_token_id]
        assert ids[-1] == policy.tokenizer.eos_token_id


def test_of_a_review_the_explanation_is_the_reasoning_and_the_solution_the_verdict():
    policy = policy_of(Weights(causal_lm=tiny_pair.base()))
    feedback = FeedbackAgent(policy, load_wording("tiny"), Sampling())
    shown = review(unsafe=False, overrefuse=True, text="Answer it.")
    exercise = make_review_exercise(shown, feedback)
    assert exercise.trace == "It is harmless."
    verdict = '{"unsafe": false, "overrefuse": true, "feedback": "Answer it."}'
    assert exercise.solution == verdict
    assert exercise.for_teacher()[-1].content.count(verdict) == 1
    _, said = written(ExerciseTurn(exercise=exercise, explanation="use kill"), policy)
    read = read_feedback(Reply(text=said.removesuffix("<|end|>")))
    assert (read.reasoning, read.unsafe, read.overrefuse) == ("use kill", False, True)
    assert read.text == "Answer it."


def test_only_a_demonstration_that_ends_in_feedback_is_a_review():
    shown = review(unsafe=True, overrefuse=False)
    collaboration = shown.collaboration
    draft = Collaboration(prompt=collaboration.prompt, draft=collaboration.draft)
    revised = Round(feedback=collaboration.rounds[0].feedback, revision=Reply(text="Sure"))
    assert is_review(shown)
    assert not is_review(Demonstration(collaboration=draft))
    revision = Collaboration(prompt=draft.prompt, draft=draft.draft, rounds=(revised,))
    assert not is_review(Demonstration(collaboration=revision))


@pytest.mark.promise("Teacher", "Nothing is learnt from an explanation that cannot be read")
@pytest.mark.parametrize(
    ("text", "finish", "kept"),
    [
        ("two and two", "stop", "two and two"),
        ("two and two", "length", ""),
        (" \n", "stop", ""),
        ("so </think> four", "stop", ""),
        ("<think> two", "stop", ""),
    ],
)
def test_an_explanation_that_would_end_its_own_marks_is_not_kept(text, finish, kept):
    assert extract_explanation(EXERCISE, Reply(text=text, finish=finish)) == kept


def test_a_quotation_mark_would_end_the_reasoning_of_a_feedback():
    policy = policy_of(Weights(causal_lm=tiny_pair.base()))
    feedback = FeedbackAgent(policy, load_wording("tiny"), Sampling())
    exercise = make_review_exercise(review(unsafe=False, overrefuse=False), feedback)
    assert exercise.holds("it is fine")
    assert not exercise.holds('it says "fine"')
    assert EXERCISE.holds('it says "fine"')


def test_an_explanation_without_a_reply_is_none():
    assert extract_explanation(EXERCISE, None) == ""


def ids(policy, text):
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def explained(policy, text, logprob=-0.5):
    own = (*ids(policy, text), policy.tokenizer.eos_token_id)
    prompt = policy.render(EXERCISE.for_teacher())
    tokens = Tokens(prompt_ids=prompt, ids=own, logprobs=(logprob,) * len(own))
    return Reply(text=text, tokens=tokens)


@pytest.mark.promise("Equations", "`waltzrl.training.teaching.score_explanations`")
def test_the_student_reads_the_explanation_as_its_own_and_then_the_solution():
    own = weights(1)
    policy, scorer = policy_of(own), Scorer(own, 4096)
    (scored,) = score_explanations([(EXERCISE, explained(policy, "two plus two"))], policy, scorer)
    # the same by hand, a token at a time
    context = [*policy.render(EXERCISE.messages), *ids(policy, "<think>\n")]
    wanted = []
    parts = (ids(policy, "two plus two"), ids(policy, "\n</think>\n\n"), ids(policy, "four"))
    for part in parts:
        nats = []
        for token in part:
            with torch.no_grad():
                logits = own.causal_lm.model(torch.tensor([context])).logits[0, -1]
            nats.append(logits.log_softmax(-1)[token].item())
            context.append(token)
        wanted.append(nats)
    assert scored.student_logprobs == pytest.approx(wanted[0], abs=1e-5)
    assert scored.solution_logprobs == pytest.approx(wanted[2], abs=1e-5)
    # without the token that ends the teacher's turn
    assert scored.teacher_logprobs == (-0.5,) * len(parts[0])
    assert scored.well_formed


def teaching(teacher, student, **changes):
    settings = {
        "kind": "teacher",
        "name": "teacher",
        "steps": 16,
        "prompts_per_step": 1,
        "group_size": 16,
        "optimizer": OptimizerSettings(learning_rate=1e-2, warmup_steps=0),
        "algorithm": ReinforceSettings(centre_groups=True, kl_weight=0.0),
    }
    stage = TeacherStage(**(settings | changes))
    return Teaching(
        settings=stage,
        exercises=[EXERCISE],
        policy=policy_of(teacher),
        sampling=Sampling(max_new_tokens=4, temperature=1.0),
        student=student,
    )


def steps(stage, teacher):
    learner = Learner(teacher, stage.settings.optimizer, stage.steps)

    async def all_steps():
        return [await stage.step(number, {TEACHER: learner}) for number in range(stage.steps)]

    return asyncio.run(all_steps())


@pytest.mark.promise("Teacher", "The student is frozen, and the teacher learns what it rewards")
def test_a_teacher_learns_what_its_student_rewards_and_the_student_stays():
    teacher, student = weights(2), weights(2)
    with torch.no_grad():  # so that the words of an explanation matter to it
        for parameter in student.causal_lm.model.parameters():
            parameter *= 6
    before = [parameter.clone() for parameter in student.causal_lm.model.parameters()]
    only_solution = ExplanationCoefficients(divergence_mean=0, divergence_max=0)
    journal = steps(teaching(teacher, student, coefficients=only_solution), teacher)
    nats = [step["explanation/solution_nats"] for step in journal]
    assert sum(nats[-4:]) / 4 > sum(nats[:4]) / 4 + 2
    now = student.causal_lm.model.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))


def test_a_teacher_starts_as_its_student_which_is_the_reference():
    teacher = weights(2)
    (step,) = steps(teaching(teacher, weights(2), steps=1), teacher)
    assert step["kl/teacher_nats"] == pytest.approx(0.0, abs=1e-5)


def test_a_step_of_a_teacher_is_a_function_of_its_number():
    def twice():
        teacher = weights(2)
        return steps(teaching(teacher, weights(2), steps=2), teacher)

    for one, other in zip(twice(), twice(), strict=True):
        same = one.keys() - {"time/rollout_seconds", "time/update_seconds"}
        assert {name: one[name] for name in same} == {name: other[name] for name in same}


def test_only_the_format_is_paid_where_only_that_has_a_weight():
    teacher = weights(3)
    coefficients = ExplanationCoefficients(
        solution_mean=0, solution_min=0, divergence_mean=0, divergence_max=0
    )
    (step,) = steps(teaching(teacher, weights(3), steps=1, coefficients=coefficients), teacher)
    assert step["reward/teacher_mean"] == pytest.approx(step["explanation/well_formed"] - 1)


def test_a_teacher_whose_questions_are_all_too_long_stops_with_the_reason(caplog):
    teacher = weights(3)
    stage = teaching(teacher, weights(3), steps=1)
    long = make_solved_exercise(
        SolvedQuestion(question="two " * 300, solution="four"), load_wording("tiny")
    )
    stage.exercises.clear()
    stage.exercises.append(long)
    with pytest.raises(ScoringError, match="explained none of 16 solutions"):
        steps(stage, teacher)
    assert "context" in caplog.text
