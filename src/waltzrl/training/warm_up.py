"""What trains the base before the roles start from it: imitation, and a teacher's explanations.

    warm-up/         the stages of imitation, those before a teacher if there is one
    teacher/         the teacher, a copy of what the warm-up left, which is its student
    distillation/    the stages of imitation after it, on what it wrote

Each is a folder of a run with steps and checkpoints of its own, and the last one is the base.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path

from peft import PeftModel

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.agents.exports import ROLES
from waltzrl.budget import CostMeter
from waltzrl.errors import InputError, RecipeError, TargetError
from waltzrl.evaluation.data.solutions import CLOSING, OPENING, SolvedQuestion
from waltzrl.foundation.journal import WandbProject, read_metrics
from waltzrl.foundation.jsonl import read_objects, write_lines
from waltzrl.policies import Sampling
from waltzrl.policies.compute import Compute
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import CausalLM, Weights, copy_adapter, map_causal_lm
from waltzrl.records import Demonstration, Prompt, Usage
from waltzrl.training import ranks
from waltzrl.training.copies import RunCopy
from waltzrl.training.data import find_demonstration, find_prompt
from waltzrl.training.learner import learner_on
from waltzrl.training.models import open_base, open_warm_up
from waltzrl.training.recipe import Recipe
from waltzrl.training.roles import decoding_copy, make_agents, require_context
from waltzrl.training.run_recipe import BASE, EXPLANATIONS
from waltzrl.training.samples import Sample, demonstration_sample
from waltzrl.training.settings import ImitationStage, ReinforcementStage, TeacherStage
from waltzrl.training.sharding import shard_models
from waltzrl.training.stages import Imitation, Stage
from waltzrl.training.targets import missed_loss
from waltzrl.training.teaching import (
    EXPLAIN,
    TEACHER,
    Exercise,
    ExerciseTurn,
    Teaching,
    explain_exercises,
    extract_explanation,
    is_review,
    make_review_exercise,
    make_solved_exercise,
)
from waltzrl.training.trainer import Report, Trainer

logger = logging.getLogger(__name__)

WARM_UP, DISTILLATION = "warm-up", "distillation"

NO_REVIEW = "data.demonstrations has no review to explain (use_rlt_optimization); add some"


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """The stages of a recipe that train the base."""

    recipe: Recipe
    folder: Path
    """The folder of the run."""
    compute: Compute
    prompts: Sequence[Prompt] = ()
    """The prompts that the roles will roll out; a base that is made knows their words."""
    demonstrations: Sequence[Demonstration] = ()
    solutions: Sequence[SolvedQuestion] = ()
    meter: CostMeter | None = None
    wandb: WandbProject | None = None
    copy: RunCopy | None = None

    def open_base(self) -> CausalLM:
        """Load the base as it is before any step, or make it first.

        Raises:
            InputError: it is not there, or is damaged.
        """
        recipe, made = self.recipe, self.folder / BASE
        return open_base(recipe.models, made, self._yield_texts(), self.compute, recipe.seed)

    def _yield_texts(self) -> Iterator[str]:
        """Yield every text whose words a tokenizer that is made for this run should know."""
        wording = load_wording(self.recipe.agents.wording)
        yield from (wording.conversation_system, wording.feedback_system, wording.review)
        yield wording.revise
        if self.recipe.teacher is not None or self.solutions:
            yield from (EXPLAIN, OPENING, CLOSING)
        for row in self.solutions:
            yield from (row.question, row.solution, row.reasoning_trace)
        collaborations = [demonstration.collaboration for demonstration in self.demonstrations]
        for prompt in (*self.prompts, *(each.prompt for each in collaborations)):
            yield from (message.content for message in prompt.messages)
            turns = [message for message in prompt.messages if message.role != "system"]
            if len(turns) > 1:
                # A review shows several turns as lines of JSON, and a draft the calls in them.
                yield from (text for turn in turns for text in (turn.full_text, turn.line))
        for collaboration in collaborations:
            yield from (reply.text for reply in collaboration.replies)
            for turn in collaboration.rounds:
                yield from (turn.feedback.text, turn.feedback.reasoning)

    async def run(self, base: CausalLM, report: Report) -> CausalLM:
        """Train the base, continuing where an earlier call was interrupted; return it.

        Raises:
            WaltzError: no prompt or no example fits the context, training diverged, nothing could
                be explained, or the loss misses its target.
        """
        require_context(
            make_agents(base, self.recipe.agents),
            self.prompts,
            self.recipe.agents.max_rounds,
            partial(find_prompt, self.recipe.data),
        )
        if not (self.recipe.imitations or self.recipe.teacher):
            return base
        weights = await self._imitate(WARM_UP, self._open(base), (), report)
        if self.recipe.teacher is not None:
            explanations = await self._explanations(weights, report)
            weights = await self._imitate(DISTILLATION, weights, explanations, report)
        self._require_target()
        return _as_base(weights)

    def restore(self, base: CausalLM) -> tuple[CausalLM, bool]:
        """Return the base as a finished warm-up left it, and whether there was a checkpoint."""
        weights = self._open(base)
        restored = self._trainer(self._last, weights, []).restore() > 0
        return _as_base(weights), restored

    @property
    def _last(self) -> str:
        """The folder of the last stages of imitation."""
        return DISTILLATION if self._stages(DISTILLATION) else WARM_UP

    def _require_target(self) -> None:
        target = self.recipe.targets.warm_up_loss
        if target is None:
            return
        folder = self.folder / self._last
        if missed := ranks.ask_first(lambda: missed_loss(read_metrics(folder), target)):
            raise TargetError(
                f"{missed}: no agent was trained or exported; give its stage more steps, in another"
                " run directory, or raise the target"
            )

    async def _imitate(
        self, name: str, weights: Weights, explanations: Sequence[str], report: Report
    ) -> Weights:
        if not self._stages(name):
            return weights
        # Without a copy, because nothing is decoded in a stage of imitation.
        learning = shard_models({ROLES[0]: weights}, None)[ROLES[0]]
        stages = self._imitations(name, learning, explanations)
        trainer = self._trainer(name, learning, stages)
        await trainer.train(report)
        if learning is weights:
            return weights
        # The parts stay parts; the last checkpoint has the base whole.
        saved = trainer.newest_checkpoint()
        assert saved is not None
        whole = map_causal_lm(str(saved / ROLES[0]))
        return Weights(causal_lm=replace(weights.causal_lm, model=whole.model))

    def _imitations(
        self, name: str, weights: Weights, explanations: Sequence[str]
    ) -> list[Imitation[Demonstration | ExerciseTurn]]:
        """Return the stages, each with the examples that fit the context.

        Raises:
            InputError: none does.
        """
        policy, conversation, feedback = self._agents(weights)

        def to_sample(example: Demonstration | ExerciseTurn) -> Sample:
            if isinstance(example, ExerciseTurn):
                return example.sample(policy)
            return demonstration_sample(example, conversation, feedback)

        exercises = self._exercises(feedback)
        return [
            Imitation(
                settings=stage,
                demonstrations=self._select_fitting(
                    stage,
                    self._examples(stage, exercises, explanations),
                    to_sample,
                    policy.context,
                ),
                to_sample=to_sample,
                seed=self.recipe.seed,
            )
            for stage in self._stages(name)
        ]

    def _select_fitting(
        self,
        stage: ImitationStage,
        examples: list[Demonstration | ExerciseTurn],
        to_sample: Callable[[Demonstration | ExerciseTurn], Sample],
        context: int | None,
    ) -> list[Demonstration | ExerciseTurn]:
        """Leave out, with a warning, what is longer than the context, if the model says its own.

        Raises:
            InputError: nothing fits.
        """
        tokens = [to_sample(example).tokens for example in examples]
        lengths = [len(turn.prompt_ids) + len(turn.ids) for turn in tokens]
        longest, example = max(zip(lengths, examples, strict=True), key=itemgetter(0))
        if context is None or longest <= context:
            return examples
        pairs = zip(lengths, examples, strict=True)
        fitting = [example for length, example in pairs if length <= context]
        place = ""
        if isinstance(example, Demonstration):
            place = f" ({find_demonstration(self.recipe.data, example)})"
        told = (
            f"stage {stage.name!r}: {len(examples) - len(fitting)} of {len(examples)} examples do "
            f"not fit the context of {context} tokens, and are left out; the longest has {longest}"
            f"{place}. Shorten them, or choose a base with a longer context"
        )
        if not fitting:
            raise InputError(told)
        logger.warning("%s", told)
        return fitting

    def _examples(
        self, stage: ImitationStage, exercises: Sequence[Exercise], explanations: Sequence[str]
    ) -> list[Demonstration | ExerciseTurn]:
        if stage.imitates == "demonstrations":
            return [*self.demonstrations]
        written: Sequence[str] = {
            "traces": [exercise.trace for exercise in exercises],
            "explanations": explanations,
            "solutions": [""] * len(exercises),
        }[stage.imitates]
        turns = [
            ExerciseTurn(exercise=exercise, explanation=explanation)
            for exercise, explanation in zip(exercises, written, strict=True)
            if explanation or stage.imitates == "solutions"
        ]
        if not turns:
            reason = {
                "traces": "no row has a reasoning_trace, and no review a reasoning",
                "explanations": f"the teacher wrote none that can be read, see {EXPLANATIONS}",
                "solutions": NO_REVIEW,
            }[stage.imitates]
            raise RecipeError(f"stage {stage.name!r} has no {stage.imitates} to imitate: {reason}")
        by_teacher = [replace(turn, by_teacher=True) for turn in turns]
        others = [each for each in self.demonstrations if not self._is_exercise(each)]
        return [*others, *turns, *(by_teacher if stage.imitates == "traces" else [])]

    async def _explanations(self, student: Weights, report: Report) -> list[str]:
        """Train the teacher, let it explain every exercise, and keep what it wrote.

        Returns:
            [exercises] explanations; empty where one cannot be read.
        """
        path = self.folder / EXPLANATIONS
        # Written after the last explanation, so a run that has it needs no teacher any more.
        if not path.exists():
            weights = _copy_teacher(student)
            policy, _, feedback = self._agents(weights, copied=True)
            exercises = self._exercises(feedback)
            if not exercises:
                raise RecipeError(f"{TEACHER}: {NO_REVIEW}")
            sampling = Sampling(max_new_tokens=self.recipe.agents.max_new_tokens, temperature=1.0)
            stage = self.recipe.teacher
            assert stage is not None
            teaching = Teaching(
                settings=stage,
                exercises=exercises,
                policy=policy,
                sampling=sampling,
                student=student,
                seed=self.recipe.seed,
                count=self._count,
            )
            await self._trainer(TEACHER, weights, [teaching], role=TEACHER).train(report)
            # A run that was stopped here explains alike when it resumes.
            policy.seed(self.recipe.seed)
            replies = await explain_exercises(policy, exercises, sampling)
            self._count([reply.usage for reply in replies if reply is not None])
            written = [
                extract_explanation(e, reply) for e, reply in zip(exercises, replies, strict=True)
            ]
            rows = (
                SolvedQuestion(
                    question=exercise.messages[-1].content,
                    solution=exercise.solution,
                    reasoning_trace=explanation,
                )
                for exercise, explanation in zip(exercises, written, strict=True)
            )
            write_lines(path, rows)
            if isinstance(weights.causal_lm.model, PeftModel):
                # The roles share the base without the teacher's adapter.
                weights.causal_lm.model.delete_adapter(TEACHER)
        written = [str(fields["reasoning_trace"]) for _, fields in read_objects(path)]
        count = len(self.solutions) + sum(map(self._is_exercise, self.demonstrations))
        if len(written) != count:
            raise RecipeError(
                f"{path} explains {len(written)} solutions, and the data has {count} now; restore"
                " the data that the run began with, or choose another run directory"
            )
        return written

    def _count(self, usages: Sequence[Usage | None]) -> None:
        if self.meter is not None:
            self.meter.count(TEACHER, usages, None)

    def _exercises(self, feedback: FeedbackAgent) -> list[Exercise]:
        wording = load_wording(self.recipe.agents.wording)
        reviews = [each for each in self.demonstrations if self._is_exercise(each)]
        return [
            *(make_review_exercise(demonstration, feedback) for demonstration in reviews),
            *(make_solved_exercise(row, wording) for row in self.solutions),
        ]

    def _is_exercise(self, demonstration: Demonstration) -> bool:
        return self.recipe.use_rlt_optimization and is_review(demonstration)

    def _agents(
        self, weights: Weights, *, copied: bool = False
    ) -> tuple[LocalPolicy, ConversationAgent, FeedbackAgent]:
        model, tokenizer = weights.causal_lm.model, weights.causal_lm.tokenizer
        decoding = decoding_copy(model, self.compute.dtype) if copied else None
        policy = LocalPolicy(model, tokenizer, weights.adapter, copy=decoding)
        wording = load_wording(self.recipe.agents.wording)
        sampling = Sampling(max_new_tokens=self.recipe.agents.max_new_tokens)
        conversation = ConversationAgent(policy, wording, sampling)
        return policy, conversation, FeedbackAgent(policy, wording, sampling)

    def _stages(self, name: str) -> list[ImitationStage]:
        """Return the stages of imitation before the teacher, or after it, that have steps."""
        shaping = [s for s in self.recipe.stages if not isinstance(s, ReinforcementStage)]
        before = list(takewhile(lambda stage: not isinstance(stage, TeacherStage), shaping))
        chosen = before if name == WARM_UP else shaping[len(before) :]
        return [stage for stage in chosen if isinstance(stage, ImitationStage) and stage.steps]

    def _trainer(
        self, name: str, weights: Weights, stages: Sequence[Stage], role: str = ROLES[0]
    ) -> Trainer:
        inside = self.folder / name
        inside.mkdir(exist_ok=True)
        return Trainer(
            {role: weights},
            stages,
            inside,
            self.recipe.checkpointing,
            make_learner=learner_on(self.compute),
            meter=self.meter,
            wandb=self.wandb,
            copy=self.copy,
        )

    def _open(self, base: CausalLM) -> Weights:
        return open_warm_up(self.recipe.models, base, self.compute, self.recipe.seed)


def _copy_teacher(weights: Weights) -> Weights:
    """Copy what will teach from what is taught: an adapter, or a whole model."""
    own = weights.causal_lm
    if weights.adapter is not None:
        shared = copy_adapter(own, weights.adapter, (TEACHER,))
        return Weights(causal_lm=shared, adapter=TEACHER)
    return Weights(causal_lm=replace(own, model=copy.deepcopy(own.model), source=None))


def _as_base(weights: Weights) -> CausalLM:
    """Return what the roles start from, without the place of a base that is another now."""
    learned = weights.causal_lm
    return learned if weights.adapter is not None else replace(learned, source=None)
