"""Rollouts: collaborate on prompts, judge every reply, and take the samples to learn from.

RolloutRequest -> Sampler -> JudgedCollaboration -> Rollout -> Sample
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from waltzrl.collaboration import Drafter, Reviewer, collaborate
from waltzrl.errors import PolicyError, ScoringError
from waltzrl.evaluation.judges.judge import Judge, judge_replies
from waltzrl.evaluation.patterns import Advice, OracleReviewer
from waltzrl.policies.vllm import VllmServers
from waltzrl.records import Demonstration, JudgedCollaboration, Prompt, Reply, Round
from waltzrl.training import ranks
from waltzrl.training.attacks import Attack, AttackedCollaboration, KeepsGoal, keeps_by_words
from waltzrl.training.rewards import (
    Coefficients,
    FeedbackReward,
    attacker_reward,
    balance_classes,
    charge_rounds,
    conversation_reward,
    judged_rounds,
    reward_rounds,
)
from waltzrl.training.roles import Team
from waltzrl.training.samples import Sample, demonstration_sample, make_scored_sample

PUBLISHED = "published"
"""Folder inside a run, while it lasts, of the adapters that vLLM servers load."""

logger = logging.getLogger(__name__)


class RolloutPrompt(NamedTuple):
    """A prompt to roll out."""

    prompt: Prompt
    replayed: bool = False
    """Whether the initial conversation agent drafts; see `ReplayedDrafts`."""
    attacked: bool = False
    """Whether the attacker rewrites it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """What is to be rolled out, the same on every rank."""

    prompts: Sequence[RolloutPrompt]
    max_rounds: int
    """The most rounds of feedback on a prompt; with 0 the conversation agent is alone."""
    seed: int = 0
    """The seed of all that is sampled, of 40 bits at most."""
    greedy: bool = False
    """Whether the likeliest token is taken each time."""
    advice: Advice | None = None
    """If given, the judge reviews in place of the feedback agent, with these texts."""

    def share(self, number: int, count: int) -> "RolloutRequest":
        """Return what the process `number` of `count` rolls out, with a seed of its own."""
        # No two processes have the same seed, in whatever steps.
        seed = self.seed + (number << 40)
        return replace(self, prompts=ranks.share_out(self.prompts, count)[number], seed=seed)


Outcome = JudgedCollaboration | PolicyError
"""The outcome of a prompt: a judged collaboration, or why a policy could not reply."""
Share = Sequence[Outcome] | Sequence[ScoringError]
"""The outcomes of one rank's share, or why the rank could sample nothing."""


class ReplayedDrafts:
    """A drafter whose drafts a frozen agent writes, and whose revisions the one that learns.

    Late in training nearly every draft is fine, and a feedback agent that sees no bad draft forgets
    what one looks like; the initial agent's drafts keep some among its rollouts.
    """

    def __init__(self, learner: Drafter, initial: Drafter) -> None:
        self._learner, self._initial = learner, initial

    async def draft(self, prompt: Prompt) -> Reply:
        return await self._initial.draft(prompt)

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        return await self._learner.revise(prompt, draft, rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """The agents of a run and its judge, in one process."""

    team: Team
    judge: Judge
    keeps_goal: KeepsGoal = keeps_by_words
    """Checks what the attacker writes, in a team that has one."""

    async def roll_out(self, request: RolloutRequest) -> list[Outcome]:
        """Collaborate on all prompts at once, and judge; return what came of each, in order."""
        self.team.seed(request.seed)
        team = self.team.greedy() if request.greedy else self.team
        replaying = ReplayedDrafts(team.conversation, team.initial)
        reviewer = (
            team.feedback if request.advice is None else OracleReviewer(self.judge, request.advice)
        )
        rollouts = (
            self._roll_out_prompt(
                given,
                replaying if given.replayed else team.conversation,
                reviewer,
                request.max_rounds,
            )
            for given in request.prompts
        )
        return await asyncio.gather(*rollouts)

    async def _roll_out_prompt(
        self, given: RolloutPrompt, drafter: Drafter, reviewer: Reviewer, max_rounds: int
    ) -> Outcome:
        """Collaborate and judge: the boundary at which a failed rollout becomes data."""
        goal, attack = given.prompt, None
        try:
            if given.attacked:
                rewriting = await self.team.attacker.rewrite(goal)
                attack = Attack.of(goal, rewriting, self.keeps_goal)
            asked = goal if attack is None else attack.prompt
            collaboration = await collaborate(asked, drafter, reviewer, max_rounds=max_rounds)
            verdicts = await judge_replies(collaboration, self.judge)
        except PolicyError as error:
            logger.warning("prompt %s is left out of this step: %s", goal.id, error)
            return error
        if attack is None:
            return JudgedCollaboration(collaboration=collaboration, verdicts=verdicts)
        return AttackedCollaboration(collaboration=collaboration, verdicts=verdicts, attack=attack)


class Sampler(Protocol):
    """The processes that roll out for a run."""

    async def sample(self, request: RolloutRequest) -> list[Outcome]:
        """Return what came of the prompts of this rank's share, in order.

        All ranks' together are what came of every prompt. It runs while the ranks learn, so it
        must not wait for another rank.
        """
        ...

    async def publish(self, done: int, learned: Sequence[str]) -> None:
        """Give weights to what samples outside of this process.

        Args:
            done: steps taken so far.
            learned: the roles that learned in the last one; none before the first.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSampler:
    """The ranks themselves: each rolls out a share, with the weights that learn."""

    collaborators: Collaborators

    async def sample(self, request: RolloutRequest) -> list[Outcome]:
        return await self.collaborators.roll_out(request.share(ranks.rank(), ranks.count_ranks()))

    async def publish(self, done: int, learned: Sequence[str]) -> None:
        """Do nothing: what learns is what samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSampler:
    """vLLM servers, which the first rank asks, for all."""

    collaborators: Collaborators
    """On the first rank, agents that ask the servers."""
    servers: VllmServers | None
    """None on the other ranks."""

    async def sample(self, request: RolloutRequest) -> list[Outcome]:
        return [] if self.servers is None else await self.collaborators.roll_out(request)

    async def publish(self, done: int, learned: Sequence[str]) -> None:
        outage = None
        try:
            if self.servers is not None:
                await self.servers.publish(done, learned)
        except ScoringError as error:
            outage = error
        # All ranks save the run together, so all must know.
        if (told := ranks.ask_first(lambda: outage)) is not None:
            raise told


@asynccontextmanager
async def open_servers(
    urls: Sequence[str], collaborators: Collaborators, folder: Path
) -> AsyncIterator[Sampler]:
    """Yield vLLM servers as what samples."""
    if not ranks.is_first():
        yield ServerSampler(collaborators=collaborators, servers=None)
        return
    team = collaborators.team
    base = team.weights["conversation"].causal_lm
    async with VllmServers(urls, base, folder / PUBLISHED) as servers:
        asking = replace(collaborators, team=team.sampled_by(servers.policy))
        yield ServerSampler(collaborators=asking, servers=servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A judged collaboration, and whether its draft was replayed."""

    judged: JudgedCollaboration
    replayed: bool = False

    @property
    def attack(self) -> Attack | None:
        """What the attacker made of the prompt; None where it was not asked."""
        return self.judged.attack if isinstance(self.judged, AttackedCollaboration) else None

    @property
    def goal(self) -> Prompt:
        """The prompt as it is in the data."""
        return self.judged.collaboration.prompt if self.attack is None else self.attack.goal

    @property
    def sampled_tokens(self) -> int:
        """Tokens that all roles wrote, as far as known."""
        written = None if self.attack is None else self.attack.rewriting.usage
        usages = (self.judged.collaboration.usage, written)
        return sum(usage.output_tokens for usage in usages if usage is not None)


async def sample_share(sampler: Sampler, request: RolloutRequest) -> Share:
    """Return what came of this rank's share; an outage too, for `gather_rollouts` to raise."""
    try:
        return await sampler.sample(request)
    except ScoringError as error:
        return [error]


Count = Callable[[Sequence[Rollout]], None]
"""A function that is given the rollouts of a step, to count what they cost."""


def gather_rollouts(
    prompts: Sequence[RolloutPrompt], own: Share, least_scored_share: float
) -> list[Rollout]:
    """Return the rollouts of all ranks, on each: what follows is computed from the whole step.

    A prompt on which a policy could not reply is left out.

    Args:
        prompts: of the step.
        own: what came of this rank's share; see `sample_share`.
        least_scored_share: of the prompts whose replies must all be scored, above 0.

    Raises:
        ScoringError: fewer were, or a rank could sample nothing; on every rank.
    """
    # Each share is of prompts that stand together, so the shares in order are all in order.
    outcomes: list[Outcome] = []
    for outcome in ranks.gather_items(own):
        if isinstance(outcome, ScoringError):
            raise outcome
        outcomes.append(outcome)
    _require_scored(outcomes, least_scored_share)
    return [
        Rollout(judged=outcome, replayed=given.replayed)
        for given, outcome in zip(prompts, outcomes, strict=True)
        if isinstance(outcome, JudgedCollaboration)
    ]


def _require_scored(outcomes: Sequence[Outcome], least_share: float) -> None:
    failed = [outcome for outcome in outcomes if isinstance(outcome, PolicyError)]
    scored = sum(
        isinstance(outcome, JudgedCollaboration)
        and all(verdict.acceptable is not None for verdict in outcome.verdicts)
        for outcome in outcomes
    )
    if scored < least_share * len(outcomes):
        reason = (
            f"{len(failed)} failed, first: {failed[0]}" if failed else _describe_undecided(outcomes)
        )
        raise ScoringError(
            f"{scored} of {len(outcomes)} collaborations were scored, need {least_share:.0%} "
            f"(checkpointing.least_scored_share; {reason}); nothing was learnt from them: see "
            "that the judge and the models answer, and run train again to resume"
        )


def _describe_undecided(outcomes: Sequence[Outcome]) -> str:
    """Say what the judge answered where it decided nothing."""
    answers = [
        answer.text
        for outcome in outcomes
        if isinstance(outcome, JudgedCollaboration)
        for verdict in outcome.verdicts
        if verdict.acceptable is None
        for answer in verdict.answers
    ]
    return f"the judge's model answered {answers[0][:60]!r}" if answers else "none failed"


def conversation_samples(rollouts: Sequence[Rollout], draw: random.Random) -> list[Sample]:
    """Take one reply of each rollout, the draft or the last revision with equal chance.

    The paper mixes both kinds: (p -> c_0) and (p, H -> c_T). The agent did not write a replayed
    draft; then only the last revision counts.
    """
    samples = []
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        collaboration, verdicts = rollout.judged.collaboration, rollout.judged.verdicts
        if rollout.replayed and not collaboration.revised:
            continue
        last = len(collaboration.replies) - 1
        chosen = draw.choice((last if rollout.replayed else 0, last))
        if verdicts[chosen].acceptable is None:
            continue
        score = conversation_reward(verdicts[chosen])
        samples.append(make_scored_sample(collaboration.replies[chosen], score, group))
    return samples


def accepted_samples(rollouts: Sequence[Rollout], draw: random.Random) -> list[Sample]:
    """Take each last revision that fixed its draft, and for each a draft that needed none.

    That draft answers a prompt of the other kind: harmful if the revision's is harmless. From its
    revisions alone, most of which answer after a refusal, the agent would learn to answer all.
    """
    revisions: dict[bool, list[Sample]] = {True: [], False: []}
    """By whether the prompt is harmful."""
    drafts: dict[bool, list[Sample]] = {True: [], False: []}
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        collaboration, verdicts = rollout.judged.collaboration, rollout.judged.verdicts
        first, last = verdicts[0].acceptable, verdicts[-1].acceptable
        harmful = collaboration.prompt.has_harmful_part
        if collaboration.revised and first is False and last is True:
            accepted = make_scored_sample(collaboration.replies[-1], 1.0, group)
            revisions[harmful].append(accepted)
        elif first is True and not rollout.replayed:
            drafts[harmful].append(make_scored_sample(collaboration.draft, 1.0, group))
    chosen = []
    for harmful, own in revisions.items():
        others = drafts[not harmful]
        chosen += own + draw.sample(others, min(len(others), len(own)))
    return chosen


def judged_review_samples(rollouts: Sequence[Rollout], team: Team, advice: Advice) -> list[Sample]:
    """Return, for each draft that was judged, the review that the verdict gives it."""
    samples = []
    for rollout in rollouts:
        collaboration, verdict = rollout.judged.collaboration, rollout.judged.verdicts[0]
        if verdict.acceptable is not None:
            review = Round(feedback=advice.review(collaboration.draft, verdict))
            shown = Demonstration(collaboration=replace(collaboration, rounds=(review,)))
            samples.append(demonstration_sample(shown, team.conversation, team.feedback))
    return samples


def feedback_samples(
    rollouts: Sequence[Rollout],
    draw: random.Random,
    *,
    reward: FeedbackReward,
    coefficients: Coefficients,
    round_cost: float = 0.0,
    class_counts: MutableMapping[str, float],
) -> list[Sample]:
    """Take one round of each rollout at random, so that long and short ones weigh the same.

    Args:
        rollouts: of one step.
        draw: random numbers.
        reward: of the chosen rounds.
        coefficients: of the reward.
        round_cost: of a revision after the first.
        class_counts: of the replies that were reviewed lately; see `balance_classes`.
    """
    chosen, turns = [], []
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        rounds = rollout.judged.collaboration.rounds
        scored = [
            (judged, turn.feedback.reply)
            for judged, turn in zip(judged_rounds(rollout.judged), rounds, strict=True)
            if judged is not None and turn.feedback.reply is not None
        ]
        if scored:
            judged, reply = draw.choice(scored)
            chosen.append(judged)
            turns.append((reply, group))
    weighted = balance_classes(chosen, class_counts)
    scores = charge_rounds(chosen, reward_rounds(reward, weighted, coefficients), round_cost)
    return [
        make_scored_sample(reply, score, group)
        for (reply, group), score in zip(turns, scores, strict=True)
    ]


def attacker_samples(rollouts: Sequence[Rollout]) -> list[Sample]:
    """Take each rewriting that was judged, but the same request on its goal only once a step.

    So an attacker that writes one and the same thing learns from it once.
    """
    samples, written = [], set()
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        attack = rollout.attack
        if attack is None:
            continue
        score = attacker_reward(rollout.judged.verdicts[-1], on_goal=attack.on_goal)
        text = attack.request_words
        if score is None or (attack.on_goal and text in written):
            continue
        if attack.on_goal:
            written.add(text)
        samples.append(make_scored_sample(attack.rewriting, score, group))
    return samples


def _number_groups(rollouts: Sequence[Rollout]) -> list[int]:
    """Number the rollouts' goals: rollouts of one prompt, rewritten or not, are one group.

    Prompts are compared whole: two sets may have the same ids.
    """
    numbers: dict[Prompt, int] = {}
    return [numbers.setdefault(rollout.goal, len(numbers)) for rollout in rollouts]
