"""The prompts and demonstrations that a training run learns from, and that it holds out."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.collecting.selection import REMEMBERED, Selection
from waltzrl.evaluation.data.duplicates import leaks, require_disjoint
from waltzrl.evaluation.data.generator.generate import demonstrations as generated_demonstrations
from waltzrl.evaluation.data.generator.generate import read_dataset
from waltzrl.evaluation.data.opening import (
    AUDIT,
    GENERATOR,
    MEMORY,
    UserSplit,
    generate_split,
    read_set,
    read_sets,
)
from waltzrl.evaluation.data.solutions import SolvedQuestion, questions_of, read_solutions
from waltzrl.foundation.jsonl import read_objects
from waltzrl.records import Demonstration, Prompt
from waltzrl.training.recipe import DataSettings, Recipe

logger = logging.getLogger(__name__)


def rollout_prompts(
    recipe: Recipe, data: DataSettings, demonstrations: Sequence[Demonstration]
) -> list[Prompt]:
    """Read the prompts that the agents of a recipe roll out; a run of imitation alone has none.

    Args:
        recipe: names the stages and the judge.
        data: of the recipe, with memories as files.
        demonstrations: of the same data.

    Raises:
        InputError: as in `training_prompts`, or a demonstration touches a held-out prompt.
    """
    prompts = (
        training_prompts(data, need_labels=recipe.needs_labels) if recipe.reinforcements else []
    )
    learned = {prompt.messages for prompt in prompts}  # these were checked
    shown = {
        each.collaboration.prompt.messages: each.collaboration.prompt for each in demonstrations
    }
    unchecked = [prompt for messages, prompt in shown.items() if messages not in learned]
    if unchecked:
        require_disjoint(unchecked, read_sets((*data.held_out, *data.validation)))
    return prompts


def training_prompts(data: DataSettings, *, need_labels: bool = False) -> list[Prompt]:
    """Read a recipe's prompts, and check that none touches a held-out or a validation one.

    Prompts from a memory that do, or that lack a label which the judge needs, are left out with a
    warning.

    Raises:
        InputError: no set is named, a file is missing or damaged, or the two sets touch.
    """
    if not data.prompts:
        raise InputError("data.prompts names no set; name a file, or generator:train")
    held_out = read_sets((*data.held_out, *data.validation))
    read = [prompt for name in data.prompts for prompt in read_set(name, "learning")]
    unfit = _find_unfit(read, held_out, "prompts", need_labels=need_labels)
    prompts = [prompt for prompt in read if prompt not in unfit][: data.limit]
    if not prompts:
        raise InputError(f"no prompt of {', '.join(data.prompts)} is left to learn from; add a set")
    if held_out:
        require_disjoint(prompts, held_out)
    return prompts


def validation_prompts(data: DataSettings) -> list[Prompt]:
    """Read a recipe's validation prompts; none if it names no set.

    Raises:
        InputError: a file is missing or damaged, there are no unsafe or no benign prompts, or one
            touches a held-out prompt.
    """
    read = read_sets(data.validation)
    count = min(len(read), data.validation_limit)
    # At equal distances, label by label: a limit would else leave out the sets that are named last,
    # or every second label.
    order = sorted(range(len(read)), key=lambda place: read[place].label or "", reverse=True)
    chosen = sorted(order[position * len(read) // count] for position in range(count))
    prompts = [read[place] for place in chosen]
    labels = Counter(prompt.label for prompt in prompts)
    if data.validation and not (labels["unsafe"] and labels["benign"]):
        raise InputError(
            f"data.validation has {labels['unsafe']} unsafe and {labels['benign']} benign prompts; "
            "ASR and ORR need both: add a set, or labels"
        )
    if prompts and data.held_out:
        require_disjoint(prompts, read_sets(data.held_out))
    return prompts


def keep_remembered(data: DataSettings, folder: Path) -> DataSettings:
    """Copy the prompts of memories into files of a run, once, and name the files instead.

    A memory changes every minute, and a resumed run must use the prompts that it started with.

    Raises:
        InputError: there is no such memory, or it is empty.
    """
    return replace(
        data,
        prompts=_copy_remembered(data.prompts, folder, "learning"),
        held_out=_copy_remembered(data.held_out, folder, "held-out"),
    )


def reads_what_grows(data: DataSettings) -> bool:
    """Return whether a set grows while a run learns: a log, or a memory of which none is a copy.

    Held-out and validation sets count too, because remembered prompts that touch them are left out.
    """
    names = (*data.prompts, *data.held_out, *data.validation)
    return any(name.startswith((AUDIT, MEMORY)) for name in names)


def forget_remembered(folder: Path) -> None:
    """Delete the files of `keep_remembered`, so that they are written again."""
    for path in folder.glob("remembered-*.jsonl"):
        path.unlink()


def training_demonstrations(data: DataSettings) -> list[Demonstration]:
    """Read a recipe's demonstrations.

    Those of users that touch a held-out or a validation prompt are left out with a warning.

    Raises:
        InputError: a file is missing or damaged, or there is no demonstration in any.
    """
    read = [each for name in data.demonstrations for _, each in _read_demonstrations(name)]
    shown = [demonstration.collaboration.prompt for demonstration in read]
    held_out = read_sets((*data.held_out, *data.validation)) if read else []
    unfit = _find_unfit(shown, held_out, "demonstrations", need_labels=False)
    demonstrations = [each for each in read if each.collaboration.prompt not in unfit][: data.limit]
    if data.demonstrations and not demonstrations:
        raise InputError(
            f"{', '.join(data.demonstrations)} holds no demonstrations; give one per line"
        )
    return demonstrations


def find_demonstration(data: DataSettings, demonstration: Demonstration) -> str:
    """Return the file of a demonstration, and its line where it has one."""
    places = (
        place
        for name in data.demonstrations
        for place, each in _read_demonstrations(name)
        if each == demonstration
    )
    return next(places)


def find_prompt(data: DataSettings, prompt: Prompt) -> str:
    """Return the file and the line of a prompt, or its set and its id where that is no file."""
    name, prompts = next(
        (name, prompts)
        for name in data.prompts
        if prompt in (prompts := read_set(name, "learning"))
    )
    if not Path(name).is_file():
        return f"{name}, {prompt.id}"
    lines = [number for number, _ in read_objects(Path(name))]
    return f"{name}:{lines[prompts.index(prompt)]}"


def training_solutions(data: DataSettings) -> list[SolvedQuestion]:
    """Read a recipe's solved questions; none if it names no file.

    Raises:
        InputError: a file is missing or damaged, a row lacks a column, or a question touches a
            held-out or a validation prompt.
    """
    rows = {
        where: row for name in data.solutions for where, row in read_solutions(Path(name)).items()
    }
    if rows and (held_out := read_sets((*data.held_out, *data.validation))):
        require_disjoint(questions_of(rows), held_out)
    return list(rows.values())[: data.limit]


def _find_unfit(
    prompts: Sequence[Prompt], held_out: Sequence[Prompt], what: str, *, need_labels: bool
) -> set[Prompt]:
    """Warn of remembered prompts that touch held-out ones, or lack a label; return these."""
    remembered = [prompt for prompt in prompts if prompt.source == REMEMBERED]
    # The held-out prompts stand for `train`, so that the leaks name the remembered ones.
    touching = {leak.test for leak in leaks(held_out, remembered)} if remembered else set()
    unlabelled = {p for p in remembered if need_labels and p.label is None} - touching
    for count, reason in (
        (len(touching), "touch held-out ones"),
        (len(unlabelled), "have no label, which the judge needs; label them at the desk"),
    ):
        if count:
            text = "%d of %d remembered %s are left out: they %s"
            logger.warning(text, count, len(remembered), what, reason)
    return touching | unlabelled


def _copy_remembered(names: Sequence[str], folder: Path, users: UserSplit) -> tuple[str, ...]:
    copied = []
    for number, name in enumerate(names):
        # By its place in the recipe, which is the same one when the run goes on.
        path = folder / f"remembered-{users}-{number}.jsonl"
        if name.startswith(MEMORY) and not path.exists():
            # Imported for memories alone, which need a database.
            from waltzrl.evaluation.collecting.opening import export_prompts

            export_prompts(name.removeprefix(MEMORY), path, Selection(users=users))
        copied.append(str(path) if name.startswith(MEMORY) else name)
    return tuple(copied)


def _read_demonstrations(name: str) -> Iterator[tuple[str, Demonstration]]:
    """Yield the demonstrations of a set, each with its place."""
    if name.startswith(GENERATOR):
        yield from ((name, each) for each in generated_demonstrations(generate_split(name)))
        return
    for number, fields in read_objects(Path(name)):
        if "suggested_response" in fields:  # a file of `waltzrl generate`
            made = generated_demonstrations(read_dataset(Path(name)))
            yield from ((name, each) for each in made)
            return
        try:
            yield f"{name}:{number}", msgspec.convert(fields, Demonstration)
        except msgspec.ValidationError as error:
            raise InputError(f"{name}:{number}: not a demonstration: {error}") from None
