"""A teacher that is shown questions with their solutions, and learns to explain them to a student.

Reinforcement-Learned Teachers (arXiv 2506.08388): the reward of an explanation is what a frozen
student makes of it, `explanation_reward`, and no verdict is needed. The student replies with an
explanation, then the solution: an agent that thinks, between <think> marks, or the feedback agent,
in the field `reasoning` of its JSON.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from waltzrl.agents import FeedbackAgent, Wording
from waltzrl.agents.conversation import system_messages
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.errors import PolicyError, ScoringError
from waltzrl.evaluation.data.solutions import CLOSING, OPENING, SolvedQuestion
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import Weights
from waltzrl.records import Demonstration, Message, Prompt, Reply, Tokens, Usage
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.reinforce import reinforce
from waltzrl.training.rewards import ScoredExplanation, explanation_reward
from waltzrl.training.samples import Sample, make_imitated_sample, make_scored_sample
from waltzrl.training.settings import TeacherStage
from waltzrl.training.stages import Learners, shuffle_positions, update_metrics

TEACHER = "teacher"
"""Name of the role, and of its adapter."""
EXPLAIN = (
    "{question}\n\nSolution: {solution}\n\n"
    "Explain step by step how to get from the question to the solution."
)
"""The text that the teacher is shown in the place of the question."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A question with its solution, and how the student replies: an explanation, then the solution.

    Example of a reply: `<think>` explanation `</think>` 42.
    """

    messages: tuple[Message, ...]
    """The turns that the student is shown; the last one holds the question."""
    solution: str
    """The solution as the teacher is shown it."""
    trace: str = ""
    """An explanation that the data has."""
    opening: str = OPENING
    """The beginning of the student's reply."""
    closing: str = CLOSING
    """The text between explanation and ending."""
    ending: str
    """The end of the student's reply: the solution, in the student's format."""
    barred: tuple[str, ...] = ("<think>", "</think>")
    """Texts that would end an explanation early, so that the reply could not be read."""

    def for_teacher(self) -> list[Message]:
        """Return what the teacher is shown."""
        *before, last = self.messages
        content = EXPLAIN.format(question=last.content, solution=self.solution)
        return [*before, replace(last, content=content)]

    def holds(self, explanation: str) -> bool:
        """Return whether the student's reply with this explanation can be read."""
        return bool(explanation.strip()) and not any(mark in explanation for mark in self.barred)


def make_solved_exercise(row: SolvedQuestion, wording: Wording) -> Exercise:
    """Return what the conversation agent is asked, to think about before it replies."""
    prompt = Prompt(id=TEACHER, messages=(Message(role="user", content=row.question),))
    return Exercise(
        messages=(*system_messages(prompt, wording), *prompt.messages),
        solution=row.solution,
        trace=row.reasoning_trace,
        ending=row.solution,
    )


def is_review(demonstration: Demonstration) -> bool:
    """Return whether the turn that is demonstrated is a feedback."""
    rounds = demonstration.collaboration.rounds
    return bool(rounds) and rounds[-1].revision is None


def make_review_exercise(demonstration: Demonstration, feedback: FeedbackAgent) -> Exercise:
    """Return what the feedback agent is asked; the solution is the verdict, with its advice."""
    collaboration = demonstration.collaboration
    example = collaboration.rounds[-1].feedback
    written = write_feedback(
        reasoning="", unsafe=example.unsafe, overrefuse=example.overrefuse, text=example.text
    )
    opening, quote, rest = written.partition('", ')
    return Exercise(
        messages=tuple(feedback.review_messages(collaboration.prompt, collaboration.replies[-1])),
        solution="{" + rest,
        trace=example.reasoning,
        opening=opening,
        closing="",  # the quotation mark and the first label are one token of our small models
        ending=quote + rest,
        barred=('"', "\\", "\n", "\r", "\t"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExerciseTurn:
    """A turn about an exercise, to imitate."""

    exercise: Exercise
    explanation: str
    """The explanation; empty for the bare solution."""
    by_teacher: bool = False
    """Whether it is the teacher's turn, which writes the explanation, and not the student's."""

    def sample(self, policy: LocalPolicy) -> Sample:
        """Return what would be shown, and should be replied."""
        exercise = self.exercise
        if self.by_teacher:
            return make_imitated_sample(policy, exercise.for_teacher(), self.explanation)
        # Part by part, as when it is scored: the tokens of a part never reach into the next.
        ids = (
            *_mark_ids(policy, exercise.opening),
            *policy.text_ids(self.explanation),
            *_mark_ids(policy, exercise.closing),
            *policy.text_ids(exercise.ending),
            policy.end_id,
        )
        prompt_ids = policy.render(exercise.messages)
        return Sample(tokens=Tokens(prompt_ids=prompt_ids, ids=ids, logprobs=()))


def score_explanations(
    explained: Sequence[tuple[Exercise, Reply]], policy: LocalPolicy, student: Scorer
) -> list[ScoredExplanation]:
    """Let the frozen student read explanations as its own, and then the solutions.

    One forward pass gives both: how likely the explanation was, and the solution after it.

    Args:
        explained: exercises, each with the teacher's reply.
        policy: of the teacher; its tokenizer is the student's.
        student: computes the student's log-probabilities.
    """
    own = [_own_tokens(reply) for _, reply in explained]
    closings = [_mark_ids(policy, exercise.closing) for exercise, _ in explained]
    samples = [
        Sample(
            tokens=Tokens(
                prompt_ids=(
                    *policy.render(exercise.messages),
                    *_mark_ids(policy, exercise.opening),
                ),
                ids=(*tokens.ids, *closing, *policy.text_ids(exercise.ending)),
                logprobs=(),
            )
        )
        for (exercise, _), tokens, closing in zip(explained, own, closings, strict=True)
    ]
    return [
        ScoredExplanation(
            solution_logprobs=logprobs[len(tokens.ids) + len(closing) :],
            teacher_logprobs=tokens.logprobs,
            student_logprobs=logprobs[: len(tokens.ids)],
            well_formed=_is_well_formed(exercise, reply),
        )
        for (exercise, reply), tokens, closing, logprobs in zip(
            explained, own, closings, student.score(samples), strict=True
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """The stage in which a teacher learns from its student's reward."""

    settings: TeacherStage
    exercises: Sequence[Exercise]
    policy: LocalPolicy
    """The policy over the weights that learn."""
    sampling: Sampling
    student: Weights
    """The frozen weights that the teacher started from, too, and so the reference of its KL."""
    seed: int = 0
    count: Callable[[Sequence[Usage | None]], None] | None = None
    """A function that is given the usages of a step, to count what they cost."""

    @property
    def steps(self) -> int:
        return self.settings.steps

    @property
    def learns(self) -> tuple[str, ...]:
        return (TEACHER,)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.exercises) / self.settings.prompts_per_step)

    async def step(self, number: int, learners: Learners, ahead: bool = False) -> dict[str, float]:
        draw = random.Random(f"{self.settings.name}/{self.seed}/{number}")
        self.policy.seed(draw.getrandbits(40))
        started = time.perf_counter()
        size, seed = self.settings.prompts_per_step, f"exercises/{self.seed}"
        positions = shuffle_positions(len(self.exercises), size, number, seed)
        # The position of a question also is the group of its explanations.
        asked = [p for p in positions for _ in range(self.settings.group_size)]
        replies = await explain_exercises(
            self.policy, [self.exercises[p] for p in asked], self.sampling
        )
        explained = [(p, reply) for p, reply in zip(asked, replies, strict=True) if reply]
        if self.count is not None:
            self.count([reply.usage for _, reply in explained])
        sampled = time.perf_counter()
        metrics = self._learn(explained, learners[TEACHER])
        metrics["time/rollout_seconds"] = sampled - started
        metrics["time/update_seconds"] = time.perf_counter() - sampled
        return metrics

    def _learn(self, explained: Sequence[tuple[int, Reply]], learner: Learner) -> dict[str, float]:
        student = learner.scorer.with_weights(self.student)
        pairs = [(self.exercises[position], reply) for position, reply in explained]
        scored = score_explanations(pairs, self.policy, student)
        samples = [
            make_scored_sample(
                reply, explanation_reward(explanation, self.settings.coefficients), position
            )
            for (position, reply), explanation in zip(explained, scored, strict=True)
        ]
        count = len(scored)
        divergences = [nats for explanation in scored for nats in explanation.divergences]
        result = reinforce(learner, samples, student, self.settings.algorithm)
        return update_metrics(TEACHER, result) | {
            "explanation/solution_nats": sum(one.solution for one in scored) / count,
            "explanation/divergence_nats": sum(divergences) / len(divergences),
            "explanation/well_formed": sum(one.well_formed for one in scored) / count,
            "tokens/sampled": float(sum(len(sample.tokens.ids) for sample in samples)),
        }


async def explain_exercises(
    policy: LocalPolicy, exercises: Sequence[Exercise], sampling: Sampling
) -> list[Reply | None]:
    """Ask the teacher for an explanation of each exercise; None where it could not reply.

    Raises:
        ScoringError: it could reply to none.
    """

    async def explanation(exercise: Exercise) -> Reply | None:
        try:
            return await policy.reply(exercise.for_teacher(), sampling)
        except PolicyError as error:
            question = exercise.messages[-1].content
            logger.warning("no explanation of %r: %s", question[:60], error)
            return None

    replies = await asyncio.gather(*map(explanation, exercises))
    if not any(replies):
        raise ScoringError(
            f"the teacher explained none of {len(exercises)} solutions (see the warnings above);"
            " shorten the questions, or lower agents.max_new_tokens"
        )
    return replies


def extract_explanation(exercise: Exercise, reply: Reply | None) -> str:
    """Return the explanation in a reply; empty if the student's reply with it cannot be read."""
    return reply.text if reply is not None and _is_well_formed(exercise, reply) else ""


def _is_well_formed(exercise: Exercise, reply: Reply) -> bool:
    return reply.finish == "stop" and exercise.holds(reply.text)


def _own_tokens(reply: Reply) -> Tokens:
    """Return the tokens of a reply without the one that ends the turn, which no student writes."""
    tokens = reply.tokens
    assert tokens is not None, "a policy that learns keeps the tokens it sampled"
    count = len(tokens.ids) - (reply.finish == "stop")
    return replace(tokens, ids=tokens.ids[:count], logprobs=tokens.logprobs[:count])


def _mark_ids(policy: LocalPolicy, mark: str) -> tuple[int, ...]:
    """Return the tokens of a mark of ours, which may be special tokens of the model, as <think>."""
    return tuple(policy.tokenizer(mark, add_special_tokens=False)["input_ids"])
