"""Measures specialists on scenarios that they did not learn from, against the bare base."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzrl.agents import ConversationAgent
from waltzrl.errors import InputError
from waltzrl.evaluation.intervals import Estimate, Pairs, difference, share
from waltzrl.records import Message, Prompt
from waltzrl_specialists.agents import open_specialists
from waltzrl_specialists.datasets import HeldOutScenario, read_labels, scenarios_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialistResult:
    """How often the labelled lines of the replies were all there and right."""

    name: str
    pairs: Pairs
    """The passes of the base with the specialist's system prompt, which is first, and of the
    specialist."""

    @property
    def base(self) -> Estimate:
        return share(self.pairs.both + self.pairs.first_only, self.pairs.n)

    @property
    def specialist(self) -> Estimate:
        return share(self.pairs.both + self.pairs.second_only, self.pairs.n)

    @property
    def gain(self) -> Estimate:
        """The specialist's share minus the base's, on the same scenarios."""
        return difference(self.pairs)


def passes_scenario(scenario: HeldOutScenario, reply: str) -> bool:
    """Return whether every expected line is in the reply, with the right value."""
    labels = read_labels(reply)
    return all(labels.get(field) == value.casefold() for field, value in scenario.expected.items())


async def evaluate(
    folder: Path, names: Sequence[str], report: Callable[[str], None]
) -> list[SpecialistResult]:
    """Let each specialist, and the bare base, reply to its scenarios, greedily.

    Args:
        folder: of `finetune`.
        names: of the specialists; none is all that are trained.
        report: called with the name of each specialist that was measured.

    Returns:
        One result for each specialist, in order.

    Raises:
        InputError: a specialist is not trained, or has no scenarios.
        CheckpointError: the base or an adapter is missing or damaged.
    """
    opened = open_specialists(folder, names)
    held_out = {name: scenarios_of(trained.source) for name, trained in opened.trained.items()}
    if missing := [name for name, scenarios in held_out.items() if not scenarios]:
        raise InputError(
            f"{opened.trained[missing[0]].source} has no scenarios; write them beside it, as"
            f" {missing[0]}.scenarios.jsonl with prompt and expected"
        )
    results = []
    for name, scenarios in held_out.items():
        base = await _check_replies(opened.bare[name], scenarios)
        specialist = await _check_replies(opened.agents[name], scenarios)
        results.append(
            SpecialistResult(name=name, pairs=Pairs.of(zip(base, specialist, strict=True)))
        )
        report(name)
    return results


def add_results(results: Sequence[SpecialistResult]) -> SpecialistResult:
    """Return the result of all scenarios together."""
    pairs = [result.pairs for result in results]
    counts = Pairs(
        both=sum(one.both for one in pairs),
        first_only=sum(one.first_only for one in pairs),
        second_only=sum(one.second_only for one in pairs),
        neither=sum(one.neither for one in pairs),
    )
    return SpecialistResult(name="all", pairs=counts)


async def _check_replies(
    agent: ConversationAgent, scenarios: Sequence[HeldOutScenario]
) -> list[bool]:
    prompts = [
        Prompt(id=str(number), messages=(Message(role="user", content=scenario.prompt),))
        for number, scenario in enumerate(scenarios)
    ]
    agents = [_stop_after_labels(agent, scenario) for scenario in scenarios]
    replies = await asyncio.gather(
        *(each.draft(prompt) for each, prompt in zip(agents, prompts, strict=True))
    )
    return [
        passes_scenario(scenario, reply.text)
        for scenario, reply in zip(scenarios, replies, strict=True)
    ]


def _stop_after_labels(agent: ConversationAgent, scenario: HeldOutScenario) -> ConversationAgent:
    """Return the agent with replies that end with the last line that is judged."""

    def enough(text: str) -> bool:
        # The last line may go on, so its value counts only when the line has ended.
        complete, _newline, _begun = text.rpartition("\n")
        return scenario.expected.keys() <= read_labels(complete).keys()

    sampling = replace(agent.sampling, enough=enough)
    return ConversationAgent(agent.policy, agent.wording, sampling)
