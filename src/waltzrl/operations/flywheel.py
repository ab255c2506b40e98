"""One turn of the flywheel, for a calendar: collect, train, evaluate, and propose a release.

Each step is a command of ours, which a process of its own runs and people can run by hand.
"""

import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from waltzrl.agents import pair_wording
from waltzrl.agents.exports import CONVERSATION, EXPORT_MANIFEST, FEEDBACK, export_limits
from waltzrl.errors import InputError, RecipeError
from waltzrl.foundation.jsonl import read_text
from waltzrl.foundation.validation import validate_table, with_overrides
from waltzrl.gateway.pairs import pair_settings
from waltzrl.gateway.settings import BundleRecipe
from waltzrl.records import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """What a turn learns from, how it trains, and what the gate compares."""

    memory: str
    """URL of the gateways' memory."""
    train: Path
    """Recipe of the training; its `models.pair` is replaced, and the prompts that are collected
    come before its own."""
    train_settings: tuple[str, ...] = ()
    """Changes of that recipe, `KEY=VALUE`."""
    pair: Path | None = None
    """Export to train on; None is the one whose feedback agent serves."""
    sets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Held-out sets that both bundles are evaluated on, as of `waltzrl evaluate`."""
    judge: str = "refusal"
    """Judge of these evaluations."""
    fewest_prompts: Annotated[int, Field(ge=1)] = 500
    """Labelled prompts that a turn needs; with fewer it ends before it trains."""
    plan: str = "seven_days"
    """Plan of the release."""
    propose: bool = True
    """False ends after the trained pair's evaluation: where a server must load the weights before
    a bundle can name them, a person proposes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlywheelTurn:
    """The steps of a turn, in one folder."""

    settings: TurnSettings
    folder: Path
    pair: Path
    """The export that is trained on."""
    serving: BundleRecipe | None
    """The bundle that serves; None where no release is proposed."""
    steps: tuple[tuple[str, ...], ...]
    """Arguments of `waltzrl`, in order."""

    @property
    def agents(self) -> Path:
        return self.folder / "agents"

    @property
    def candidate(self) -> Path:
        """The differences from the serving bundle, which `run_turn` writes."""
        return self.folder / "candidate.toml"


def load_turn_settings(path: Path, overrides: Sequence[str]) -> TurnSettings:
    """Read the recipe of a turn.

    Raises:
        RecipeError: it is not TOML, or a key is unknown, missing or of the wrong type.
    """
    try:
        table: dict[str, object] = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None
    return validate_table(TurnSettings, with_overrides(table, overrides), str(path))


def plan_turn(settings: TurnSettings, folder: Path, serving: BundleRecipe | None) -> FlywheelTurn:
    """Work out the commands of a turn; nothing is written.

    Args:
        settings: of the turn.
        folder: of all its files; a turn that was interrupted continues in the same one.
        serving: the bundle that serves; None where no release is proposed.

    Raises:
        InputError: there is no pair to train on, or the serving reviewer is on a server.
    """
    pair = settings.pair or _find_serving_pair(serving)
    if not (pair / EXPORT_MANIFEST).exists():
        raise InputError(f"{pair} is no export of a pair; name one: --set pair=FOLDER")
    turn = FlywheelTurn(settings=settings, folder=folder, pair=pair, serving=serving, steps=())
    steps = [_train(turn)]
    if serving is None:
        new = str(turn.agents / CONVERSATION)
        steps.append(_evaluate(turn, new, str(turn.agents / FEEDBACK), "candidate"))
    else:
        steps += _compare_and_propose(turn, serving)
    return FlywheelTurn(
        settings=settings, folder=folder, pair=pair, serving=serving, steps=tuple(steps)
    )


def run_turn(turn: FlywheelTurn, say: Callable[[str], None]) -> int:
    """Run the steps one after another, until one fails.

    Args:
        turn: of `plan_turn`.
        say: is told each command before it runs.

    Returns:
        The exit status of the step that failed; 0 if none did.
    """
    turn.folder.mkdir(parents=True, exist_ok=True)
    for step in turn.steps:
        if step[0] == "release":
            _write_candidate(turn)
        say(render_step(step))
        command = (sys.executable, "-m", "waltzrl", *step)
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


def count_labelled(prompts: Sequence[Prompt]) -> int:
    return sum(prompt.label is not None for prompt in prompts)


def render_step(step: Sequence[str]) -> str:
    """Write a step as a command for a shell."""
    return shlex.join(("waltzrl", *step))


def _find_serving_pair(serving: BundleRecipe | None) -> Path:
    reviewer = None if serving is None or serving.stage == 1 else serving.feedback
    if reviewer is None or reviewer.server is not None:
        raise InputError(
            "no exported pair serves, so that there is none to train on; name one: --set "
            "pair=FOLDER, an export of waltzrl train"
        )
    return Path(reviewer.model).parent


def _train(turn: FlywheelTurn) -> tuple[str, ...]:
    """Return the training, which copies the memory's prompts into its folder once."""
    settings = turn.settings
    changes = (f"models.pair={turn.pair}", *settings.train_settings)
    options = [word for change in changes for word in ("--set", change)]
    places = ("--out", str(turn.folder / "run"), "--export", str(turn.agents))
    return ("train", str(settings.train), "--from", settings.memory, *options, *places)


def _compare_and_propose(turn: FlywheelTurn, serving: BundleRecipe) -> list[tuple[str, ...]]:
    """Return the evaluations of both bundles, and the proposal that the gate decides on."""
    if serving.feedback is not None and serving.feedback.server is not None:
        raise InputError(
            "the bundle that serves reviews by a model on a server, which must load new weights "
            "before a bundle can name them; use --set propose=false and propose it yourself"
        )
    old = serving.upstream.folder or str(turn.pair / CONVERSATION)
    new = old if serving.upstream.folder is None else str(turn.agents / CONVERSATION)
    reviews = serving.feedback if serving.stage == 2 else None
    reviewer = "rules" if reviews is None else reviews.model
    before, after = str(turn.folder / "serving"), str(turn.folder / "candidate")
    runs = ("--before", before, "--after", after, "--plan", turn.settings.plan)
    memory = ("--memory", turn.settings.memory)
    return [
        _evaluate(turn, old, reviewer, "serving"),
        _evaluate(turn, new, str(turn.agents / FEEDBACK), "candidate"),
        ("release", "propose", str(turn.candidate), *runs, *memory),
    ]


def _evaluate(turn: FlywheelTurn, conversation: str, feedback: str, name: str) -> tuple[str, ...]:
    settings = [f"wording={pair_wording(turn.pair)}"]
    if limits := export_limits(turn.pair):
        settings.append(f"max_new_tokens={max(limits.values())}")
    options = [word for change in settings for word in ("--set", change)]
    agents = ("--conversation", conversation, "--feedback", feedback, "--pattern", "guarded")
    places = ("--judge", turn.settings.judge, "--out", str(turn.folder / name))
    return ("evaluate", *turn.settings.sets, *agents, *options, *places)


def _write_candidate(turn: FlywheelTurn) -> None:
    assert turn.serving is not None, "only then a release is proposed"
    with_upstream = turn.serving.upstream.folder is not None
    lines = []
    for key, value in pair_settings(turn.agents, with_upstream=with_upstream).items():
        if isinstance(value, dict):
            lines += [f"{key}.{name} = {json.dumps(each)}" for name, each in value.items()]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    turn.candidate.write_text("\n".join(lines) + "\n")
