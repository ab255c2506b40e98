"""Measures specialists on scenarios that they did not learn from.

Each is compared with the bare base, and with one adapter that learnt from all sets, both with the
specialist's system prompt.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzrl.agents import ConversationAgent
from waltzrl.errors import InputError
from waltzrl.evaluation.intervals import Estimate, Pairs, difference, share
from waltzrl.foundation.background import gather_all
from waltzrl.records import Message, Prompt
from waltzrl_specialists.agents import open_specialists
from waltzrl_specialists.checks import find_problems, read_lines
from waltzrl_specialists.datasets import HeldOutScenario, scenarios_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedReply:
    """A reply to a scenario, and what is wrong with it."""

    text: str
    problems: Mapping[str, str]
    """What each check that was not passed said, by its name."""

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialistResult:
    """The checked replies to the scenarios of a specialist, in one order."""

    name: str
    base: Sequence[CheckedReply]
    """Replies of the base with the specialist's system prompt."""
    together: Sequence[CheckedReply]
    """Those of the adapter that learnt from several sets; none if there is no such adapter."""
    specialist: Sequence[CheckedReply]

    @property
    def gain(self) -> Estimate:
        """The specialist's share of passed scenarios minus the base's."""
        return _compare(self.base, self.specialist)

    @property
    def gain_over_together(self) -> Estimate | None:
        """The specialist's share minus that of the adapter that learnt from several sets."""
        return _compare(self.together, self.specialist) if self.together else None

    @property
    def failures(self) -> dict[str, int]:
        """How many of the specialist's replies each check refused, most first."""
        names = [name for reply in self.specialist for name in reply.problems]
        return {name: names.count(name) for name in sorted(set(names), key=names.count)[::-1]}


def share_passed(replies: Sequence[CheckedReply]) -> Estimate:
    """Return the share of the replies that passed all checks."""
    return share(sum(reply.passed for reply in replies), len(replies))


async def evaluate(
    folder: Path, names: Sequence[str], report: Callable[[str], None]
) -> list[SpecialistResult]:
    """Let each specialist, and what it is compared with, reply to its scenarios, greedily.

    Args:
        folder: of `finetune`.
        names: of the specialists; none is all that are trained.
        report: called with the name of each specialist that was measured.

    Returns:
        One result for each specialist, in order.

    Raises:
        InputError: a specialist is not trained, or has no scenarios, or a check cannot be made.
        CheckpointError: the base or an adapter is missing or damaged.
    """
    opened = open_specialists(folder, names, together=True)
    held_out = {name: scenarios_of(trained.source) for name, trained in opened.trained.items()}
    if missing := [name for name, scenarios in held_out.items() if not scenarios]:
        raise InputError(
            f"{opened.trained[missing[0]].source} has no scenarios; write them beside it, as"
            f" {missing[0]}.scenarios.jsonl with prompt and checks"
        )
    results = []
    for name, scenarios in held_out.items():
        together = opened.together.get(name)
        results.append(
            SpecialistResult(
                name=name,
                base=await _check_replies(opened.bare[name], scenarios),
                together=await _check_replies(together, scenarios) if together else (),
                specialist=await _check_replies(opened.agents[name], scenarios),
            )
        )
        report(name)
    return results


def add_results(results: Sequence[SpecialistResult]) -> SpecialistResult:
    """Return the result of all scenarios together."""
    compared = all(result.together for result in results)
    return SpecialistResult(
        name="all",
        base=[reply for result in results for reply in result.base],
        together=[reply for result in results for reply in result.together] if compared else (),
        specialist=[reply for result in results for reply in result.specialist],
    )


def _compare(first: Sequence[CheckedReply], second: Sequence[CheckedReply]) -> Estimate:
    """Return the share of the second minus that of the first, on the same scenarios."""
    pairs = zip(first, second, strict=True)
    return difference(Pairs.of((one.passed, other.passed) for one, other in pairs))


async def _check_replies(
    agent: ConversationAgent, scenarios: Sequence[HeldOutScenario]
) -> list[CheckedReply]:
    prompts = [
        Prompt(id=str(number), messages=(Message(role="user", content=scenario.prompt),))
        for number, scenario in enumerate(scenarios)
    ]
    agents = [_stop_after_lines(agent, scenario) for scenario in scenarios]
    replies = await gather_all(
        each.draft(prompt) for each, prompt in zip(agents, prompts, strict=True)
    )
    # In a thread, because a check may run a program, in an event loop of its own.
    return [
        CheckedReply(
            text=reply.text,
            problems=await asyncio.to_thread(find_problems, reply.text, scenario.checks),
        )
        for scenario, reply in zip(scenarios, replies, strict=True)
    ]


def _stop_after_lines(agent: ConversationAgent, scenario: HeldOutScenario) -> ConversationAgent:
    """Return the agent; where only lines are checked, its replies end with the last of them."""
    lines = scenario.checks.get("lines")
    if len(scenario.checks) > 1 or not isinstance(lines, dict):
        return agent

    def enough(text: str) -> bool:
        # The last line may go on, so its value counts only when the line has ended.
        complete, _newline, _begun = text.rpartition("\n")
        return lines.keys() <= read_lines(complete).keys()

    sampling = replace(agent.sampling, enough=enough)
    return ConversationAgent(agent.policy, agent.wording, sampling)
