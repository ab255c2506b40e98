"""The prompts and demonstrations that a training run learns from, and that it holds out."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.collecting.selection import REMEMBERED, Selection
from waltzrl.evaluation.data.duplicates import leaks, require_disjoint
from waltzrl.evaluation.data.generator.generate import demonstrations as generated_demonstrations
from waltzrl.evaluation.data.generator.generate import read_dataset
from waltzrl.evaluation.data.opening import (
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
    prompts = _without_unfit(read, held_out, need_labels=need_labels)[: data.limit]
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
    read = list(chain.from_iterable(map(_read_demonstrations, data.demonstrations)))
    demonstrations = _without_touching(read, (*data.held_out, *data.validation))[: data.limit]
    if data.demonstrations and not demonstrations:
        raise InputError(
            f"{', '.join(data.demonstrations)} holds no demonstrations; give one per line"
        )
    return demonstrations


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


def _without_unfit(
    prompts: Sequence[Prompt], held_out: Sequence[Prompt], *, need_labels: bool
) -> list[Prompt]:
    """Leave out remembered prompts that touch held-out ones or lack a label that is needed."""
    remembered = [prompt for prompt in prompts if prompt.source == REMEMBERED]
    if not remembered:
        return list(prompts)
    # The held-out prompts stand for `train`, so that the leaks name the remembered ones.
    touching = {leak.test.id for leak in leaks(held_out, remembered)}
    unlabelled = {p.id for p in remembered if need_labels and p.label is None} - touching
    for count, reason in (
        (len(touching), "touch held-out ones"),
        (len(unlabelled), "have no label, which the judge needs; label them at the desk"),
    ):
        if count:
            text = "%d of %d remembered prompts are left out: they %s"
            logger.warning(text, count, len(remembered), reason)
    unfit = touching | unlabelled
    return [p for p in prompts if p.source != REMEMBERED or p.id not in unfit]


def _without_touching(
    demonstrations: list[Demonstration], held_out: Sequence[str]
) -> list[Demonstration]:
    """Leave out remembered demonstrations whose prompt touches one of these sets."""
    prompts = [demonstration.collaboration.prompt for demonstration in demonstrations]
    remembered = [prompt for prompt in prompts if prompt.source == REMEMBERED]
    if not remembered or not held_out:
        return demonstrations
    touching = {leak.test.id for leak in leaks(read_sets(held_out), remembered)}
    if touching:
        text = "%d of %d remembered demonstrations are left out: they touch held-out prompts"
        logger.warning(text, len(touching), len(remembered))
    return [
        demonstration
        for demonstration, prompt in zip(demonstrations, prompts, strict=True)
        if prompt.source != REMEMBERED or prompt.id not in touching
    ]


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


def _read_demonstrations(name: str) -> Iterator[Demonstration]:
    if name.startswith(GENERATOR):
        yield from generated_demonstrations(generate_split(name))
        return
    for number, fields in read_objects(Path(name)):
        if "suggested_response" in fields:  # a file of `waltzrl generate`
            yield from generated_demonstrations(read_dataset(Path(name)))
            return
        try:
            yield msgspec.convert(fields, Demonstration)
        except msgspec.ValidationError as error:
            raise InputError(f"{name}:{number}: not a demonstration: {error}") from None
