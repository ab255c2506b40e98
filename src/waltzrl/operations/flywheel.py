"""One turn of the flywheel, for a calendar: collect, train, evaluate, and propose a release.

Each step is a command of ours, which a process of its own runs and people can run by hand.
"""

import logging
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from waltzrl.agents import pair_wording
from waltzrl.agents.calibration import CALIBRATION
from waltzrl.agents.exports import CONVERSATION, EXPORT_MANIFEST, FEEDBACK, export_limits
from waltzrl.agents.opening import REVIEWER
from waltzrl.agents.rules import load_rulebook
from waltzrl.errors import InputError
from waltzrl.foundation.files import toml_value
from waltzrl.foundation.sources import merge_tables
from waltzrl.foundation.validation import Table, read_table, validate_table, with_overrides
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.pairs import pair_settings
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.records import Prompt

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a step gets too, so that it can end in order."""
PASSWORDS = frozenset({"password", "sslpassword"})
"""The parameters of a database URL that are passwords."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """What a turn learns from, how it trains, and what the gate compares."""

    memory: str
    """URL of the gateways' memory, without a password: it is printed, and an argument of the
    commands."""
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
    calibration: tuple[Path, Path] | None = None
    """Judged replies to calibrate the trained feedback agent on, as `waltzrl calibrate` takes them:
    those that choose its threshold, and those held out. None leaves it without a calibration, so
    that it challenges no refusal."""
    fewest_prompts: Annotated[int, Field(ge=1)] = 500
    """Labelled prompts that a turn needs; with fewer it ends before it trains."""
    plan: str = "seven_days"
    """Plan of the release."""
    propose: bool = True
    """False ends after the trained pair's evaluation: where a server must load the weights before
    a bundle can name them, a person proposes it."""

    def __post_init__(self) -> None:
        if _has_password(self.memory):
            raise ValueError(
                "memory: the URL has a password, which the commands would show; put it in "
                "PGPASSWORD or ~/.pgpass"
            )


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
        RecipeError: it is not TOML, a key is unknown, missing or of the wrong type, or the
            memory's URL has a password.
    """
    return validate_table(TurnSettings, with_overrides(read_table(path), overrides), str(path))


def plan_turn(settings: TurnSettings, folder: Path, serving: BundleRecipe | None) -> FlywheelTurn:
    """Work out the commands of a turn; nothing is written.

    Args:
        settings: of the turn.
        folder: of all its files; a turn that was interrupted continues in the same one.
        serving: the bundle that serves; None where no release is proposed.

    Raises:
        InputError: there is no pair to train on, there is no such plan, or the gate could not
            compare the trained pair with the bundle that serves.
    """
    pair = settings.pair or _find_serving_pair(serving)
    if not (pair / EXPORT_MANIFEST).exists():
        raise InputError(f"{pair} is no export of a pair; name one: --set pair=FOLDER")
    turn = FlywheelTurn(settings=settings, folder=folder, pair=pair, serving=serving, steps=())
    steps = [_train(turn)]
    if settings.calibration is not None:
        steps.append(_calibrate(turn, settings.calibration))
    elif (pair / FEEDBACK / CALIBRATION).exists():
        logger.warning(
            "%s is calibrated, and the pair trained on it would not be: it would challenge no "
            "refusal, and the gate compares the two as they serve; name judged replies: --set "
            'calibration=\'["development.jsonl", "held-out.jsonl"]\'',
            pair,
        )
    if serving is None:
        new = str(turn.agents / CONVERSATION)
        steps.append(_evaluate(turn, new, str(turn.agents / FEEDBACK), "candidate"))
    else:
        steps += _compare_and_propose(turn, serving)
    return replace(turn, steps=tuple(steps))


def run_turn(turn: FlywheelTurn, say: Callable[[str], None], book: ReleaseBook) -> int:
    """Run the steps one after another, until one fails.

    Args:
        turn: of `plan_turn`.
        say: is told each command before it runs.
        book: the memory's releases.

    Returns:
        The exit status of the step that failed; 0 if none did.

    Raises:
        InputError: a release of the trained pair was rolled back before.
        KeyboardInterrupt: a signal stopped the step, which has ended.
    """
    turn.folder.mkdir(parents=True, exist_ok=True)
    if turn.serving is not None and turn.candidate.exists():
        _refuse_rolled_back(turn, book)  # before a turn that was finished runs again
    for step in turn.steps:
        if step[0] == "release":
            _write_candidate(turn)
            _refuse_rolled_back(turn, book)
        say(render_step(step))
        if status := run_command((sys.executable, "-m", "waltzrl", *step)):
            return status
    return 0


def run_command(command: Sequence[str]) -> int:
    """Run a command until it ends; a signal that stops us goes to it, and we wait for its end.

    It has a process group of its own, because a terminal would send Ctrl-C to it a second time.

    Returns:
        Its exit status.

    Raises:
        KeyboardInterrupt: a signal came, and the command has ended.
    """
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    # A signal that is ignored, as under nohup, the command ignores too.
    handled = [one for one in STOPPING if signal.getsignal(one) is not signal.SIG_IGN]
    before = [(one, signal.signal(one, forward)) for one in handled]
    try:
        process = subprocess.Popen(command, process_group=0)
        for number in tuple(received):  # before there was a process
            process.send_signal(number)
        status = process.wait()
    finally:
        for one, handler in before:
            signal.signal(one, handler)
    if received:
        raise KeyboardInterrupt
    return status


def count_labelled(prompts: Sequence[Prompt]) -> int:
    return sum(prompt.label is not None for prompt in prompts)


def render_step(step: Sequence[str]) -> str:
    """Write a step as a command for a shell."""
    return shlex.join(("waltzrl", *step))


def _find_serving_pair(serving: BundleRecipe | None) -> Path:
    reviewer = None if serving is None or serving.stage == 1 else serving.feedback
    if reviewer is None or reviewer.server is not None or reviewer.model.startswith(REVIEWER):
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


def _calibrate(turn: FlywheelTurn, replies: tuple[Path, Path]) -> tuple[str, ...]:
    """Return the measurement of the trained feedback agent, on which its threshold rests."""
    model = ("--model", str(turn.agents / FEEDBACK))
    return ("calibrate", *map(str, replies), *model, "--set", f"wording={pair_wording(turn.pair)}")


def _compare_and_propose(turn: FlywheelTurn, serving: BundleRecipe) -> list[tuple[str, ...]]:
    """Return the evaluations of both bundles, and the proposal that the gate decides on."""
    if serving.feedback is not None and serving.feedback.server is not None:
        raise InputError(
            "the bundle that serves reviews by a model on a server, which must load new weights "
            "before a bundle can name them; use --set propose=false and propose it yourself"
        )
    if obstacles := _list_obstacles(serving):
        raise InputError(
            f"a turn cannot evaluate the bundle that serves, or its successor: {obstacles}; use "
            "--set propose=false to train without proposing"
        )
    load_plan(turn.settings.plan)  # an unknown plan ends the turn before it trains
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


def _list_obstacles(serving: BundleRecipe) -> str:
    """Name what of a bundle `waltzrl evaluate` does not run, or a bundle of the pair cannot keep.

    The proposal would fail on each of them, after the training and both evaluations.
    """
    reviewer = serving.feedback
    # The evaluation knows our rules only. In stage 2 the gate asks for the reviewer, not for them.
    rulebook = load_rulebook(serving.rules, serving.rules_off)
    own_rules = serving.stage == 1 and rulebook.digest != load_rulebook().digest
    found = {
        "enabled = false": not serving.enabled,
        "upstream.program": serving.upstream.program is not None,
        "upstream.reviser": serving.upstream.reviser is not None,
        "its own rules": own_rules,
    }
    if reviewer is not None:
        packaged = serving.stage == 2 and reviewer.model.startswith(REVIEWER)
        found |= {
            f"the classifier {reviewer.model}": packaged,
            "feedback.false_alarms": reviewer.false_alarms is not None,
            "feedback.calibration": reviewer.calibration is not None,
        }
    return ", ".join(name for name, is_there in found.items() if is_there)


def _evaluate(turn: FlywheelTurn, conversation: str, feedback: str, name: str) -> tuple[str, ...]:
    settings = [f"wording={pair_wording(turn.pair)}"]
    if limits := export_limits(turn.pair):
        settings.append(f"max_new_tokens={max(limits.values())}")
    options = [word for change in settings for word in ("--set", change)]
    agents = ("--conversation", conversation, "--feedback", feedback, "--pattern", "guarded")
    places = ("--judge", turn.settings.judge, "--out", str(turn.folder / name))
    return ("evaluate", *turn.settings.sets, *agents, *options, *places)


def _candidate_settings(turn: FlywheelTurn) -> Table:
    """Return the settings in which the candidate differs from the bundle that serves."""
    assert turn.serving is not None, "only then a release is proposed"
    return pair_settings(turn.agents, with_upstream=turn.serving.upstream.folder is not None)


def _write_candidate(turn: FlywheelTurn) -> None:
    # Strings, numbers, booleans and lists are written alike in JSON and in TOML.
    lines = []
    for key, value in _candidate_settings(turn).items():
        if isinstance(value, dict):
            lines += [f"{key}.{name} = {toml_value(each)}" for name, each in value.items()]
        else:
            lines.append(f"{key} = {toml_value(value)}")
    turn.candidate.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _refuse_rolled_back(turn: FlywheelTurn, book: ReleaseBook) -> None:
    """Refuse a candidate whose last release was rolled back: a turn that is resumed has the same.

    Raises:
        InputError: it was; names the release.
    """
    assert turn.serving is not None, "only then a release is proposed"
    table = merge_tables(bundle_table(turn.serving), _candidate_settings(turn))
    candidate = bundle_id(validate_table(BundleRecipe, table, str(turn.candidate)))
    releases = [one for one, _ in book.moves_of(candidate) if one.candidate == candidate]
    if releases and releases[-1].state == "rolled_back":
        raise InputError(
            f"nothing was proposed: release {releases[-1].id} of this pair was rolled back; train "
            f"another with --out FOLDER, or try it again: {render_step(turn.steps[-1])}"
        )


def _has_password(url: str) -> bool:
    if "://" not in url:
        return False  # the path of a file
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(
            "memory: not a database URL; use sqlite:///runs/memory.db or postgresql://user@host/name"
        ) from None
    return address.password is not None or not PASSWORDS.isdisjoint(address.query)
