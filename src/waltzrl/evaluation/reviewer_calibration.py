"""Measures the feedback model of a gateway on labelled replies."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.agents.calibration import CALIBRATION, ReviewerCalibration, load_calibration
from waltzrl.agents.identity import reviewer_name
from waltzrl.agents.opening import REVIEWER, open_reviewer, reviewer_folder
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.collaboration import Reviewer
from waltzrl.errors import InputError
from waltzrl.evaluation.calibration import JudgedReply, calibrate
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.guard_model_reviewer import GuardModelReviewer
from waltzrl.evaluation.judges.saved import read_saved_verdicts
from waltzrl.policies import GuardPolicy, Sampling
from waltzrl.policies.opening import open_policy
from waltzrl.records import Message, Prompt, Reply, Verdict


async def measure_reviewer(
    config: FeedbackConfig, development: Sequence[JudgedReply], held_out: Sequence[JudgedReply]
) -> ReviewerCalibration:
    """Measure a feedback model as a gateway asks it; see `calibrate`.

    Raises:
        InputError: weights or a URL are invalid, or there are too few right refusals.
        PolicyError: the model failed.
    """
    async with AsyncExitStack() as stack:
        agent = await _open_agent(config, stack)
        name = reviewer_name(config.model, config.server, config.wording, config.guard)
        measured = await calibrate(agent, name, development, held_out)
        return replace(measured, rules_weight=_find_rules_weight(config.model))


def _find_rules_weight(model: str) -> float | None:
    """Return what the rules add beside a packaged classifier: it was fitted with its curve."""
    folder = reviewer_folder(model)
    if folder is None or not (file := folder / CALIBRATION).exists():
        return None
    return load_calibration(file).rules_weight


async def _open_agent(config: FeedbackConfig, connections: AsyncExitStack) -> Reviewer:
    if config.model.startswith(REVIEWER):
        return open_reviewer(config.model.removeprefix(REVIEWER), config.false_alarms)
    policy = await open_policy(config.model, config.server, connections, key_env=config.api_key_env)
    if config.guard is not None:
        return GuardModelReviewer(FORMATS[config.guard], cast("GuardPolicy", policy))
    sampling = Sampling(max_new_tokens=config.max_new_tokens)
    return FeedbackAgent(policy, load_wording(config.wording), sampling, formatted=True)


def read_judged(path: Path) -> list[JudgedReply]:
    """Read replies and their labels, as `waltzrl judge` writes them.

    Raises:
        InputError: a line cannot be read, or none is labelled.
    """
    judged = [
        JudgedReply(
            prompt=Prompt(id=f"{path}:{n}", messages=(Message(role="user", content=prompt),)),
            reply=Reply(text=text),
            verdict=Verdict(
                judge=str(path),
                unsafe=saved.unsafe,
                refuses=saved.refuses,
                overrefuses=saved.overrefuses,
            ),
        )
        for n, ((prompt, text), saved) in enumerate(read_saved_verdicts(path).items(), start=1)
    ]
    if not any(reply.verdict.refuses is not None for reply in judged):
        raise InputError(f"{path} holds no labels; add them with waltzrl judge")
    return judged
