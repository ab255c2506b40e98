"""The prompts and lessons that a recipe names: JSON Lines files, or splits of the generator."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, get_args

import msgspec
from pydantic import Field

from waltzrl.audit import read_collaborations
from waltzrl.data import SETS, import_set, read_prompts, require_disjoint
from waltzrl.data.generator import Record, generate
from waltzrl.data.generator.lessons import lessons as generated_lessons
from waltzrl.data.generator.texts import Split
from waltzrl.data.jsonl import read_objects
from waltzrl.errors import InputError
from waltzrl.records import Collaboration, Lesson, Prompt

GENERATOR, AUDIT = "generator:", "audit:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where prompts and lessons come from: a JSON Lines file, or `generator:<split>`."""

    prompts: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    """Sets that no training prompt may touch; the run does not start when one does."""
    lessons: tuple[str, ...] = ()
    """Examples to imitate; only stages of kind `imitation` need them."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Take so many prompts, and lessons, at most; to try a recipe out."""


def training_prompts(data: Data) -> list[Prompt]:
    """Read a recipe's prompts, once they are known not to touch the held-out ones.

    Raises:
        InputError: no set is named, a file is missing or damaged, or the two sets touch.
    """
    if not data.prompts:
        raise InputError("data.prompts names no set; name a file, or generator:train")
    prompts = read_sets(data.prompts)[: data.limit]
    if data.held_out:
        require_disjoint(prompts, read_sets(data.held_out))
    return prompts


def training_lessons(data: Data) -> list[Lesson]:
    """Read a recipe's lessons.

    Raises:
        InputError: a file is missing or damaged, or there is no lesson in any.
    """
    lessons = list(islice((one for name in data.lessons for one in _lessons(name)), data.limit))
    if data.lessons and not lessons:
        raise InputError(f"{', '.join(data.lessons)} holds no lessons; give one per line")
    return lessons


def read_sets(names: Sequence[str]) -> list[Prompt]:
    """Read prompts, in order.

    Args:
        names: files, `generator:<split>`, `<public set>:<file>`, or `audit:<folder>`: the prompts
            whose contents an audit log kept.

    Raises:
        InputError: a file is missing or damaged, or there is no such set.
    """
    return [prompt for name in names for prompt in _prompts(name)]


def audited(name: str) -> Iterator[Collaboration]:
    """Yield what was said by `audit:<folder>`, each about a prompt with an id of its own.

    Of a request for several choices the second is `ID/2`, and so on.

    Raises:
        InputError: the log kept no contents, or they are damaged.
    """
    choices: Counter[str] = Counter()
    for request, said in read_collaborations(Path(name.removeprefix(AUDIT))):
        choices[request] += 1
        if choices[request] > 1:
            prompt = replace(said.prompt, id=f"{request}/{choices[request]}")
            said = replace(said, prompt=prompt)
        yield said


def _prompts(name: str) -> list[Prompt]:
    if name.startswith(GENERATOR):
        return [record.to_prompt() for record in _split(name)]
    if name.startswith(AUDIT):
        return [said.prompt for said in audited(name)]
    public, colon, path = name.partition(":")
    if colon and public in SETS:
        return import_set(public, Path(path))
    return read_prompts(Path(name))


def _lessons(name: str) -> Iterator[Lesson]:
    if name.startswith(GENERATOR):
        yield from generated_lessons(_split(name))
        return
    for number, found in read_objects(Path(name)):
        try:
            yield msgspec.convert(found, Lesson)
        except msgspec.ValidationError as error:
            raise InputError(f"{name}:{number}: not a lesson: {error}") from None


def _split(name: str) -> list[Record]:
    split = name.removeprefix(GENERATOR)
    if split not in get_args(Split):
        raise InputError(f"{name}: the generator has the splits {', '.join(get_args(Split))}")
    return [record for record in _records() if record.split == split]


@cache
def _records() -> list[Record]:
    return generate()
