"""The prompts and demonstrations that a recipe names: files, generator splits, or a memory."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from waltzrl.errors import InputError
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.evaluation.data.generator.generate import GeneratedPrompt, generate
from waltzrl.evaluation.data.generator.texts import Split
from waltzrl.evaluation.data.importers.sets import find_set, import_set
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.records import Collaboration, Prompt
from waltzrl.store.audit.contents import read_collaborations

GENERATOR, AUDIT, MEMORY = "generator:", "audit:", "memory:"
"""Prefixes of the names of sets that are no files."""

UserSplit = Literal["learning", "held-out"]

logger = logging.getLogger(__name__)


def read_sets(names: Sequence[str]) -> list[Prompt]:
    """Read the prompts of sets, in order; see `read_each_set`."""
    return [prompt for prompts in read_each_set(names) for prompt in prompts]


def read_each_set(names: Sequence[str]) -> list[list[Prompt]]:
    """Read the prompts of each set, in order.

    Of sets that share an id, such as the two files of JailbreakBench, the file's name comes before
    the id.

    Args:
        names: files, `generator:<split>`, `<public set>:<file>`, `audit:<folder>`: the prompts
            whose contents an audit log holds, or `memory:<url>`: those of the users who are
            reserved for evaluation.

    Raises:
        InputError: a file is missing or damaged, or there is no such set.
    """
    sets = {name: read_set(name, "held-out") for name in names}
    # Once in each set: an id that one set repeats is refused later, and gets no file's name.
    times = Counter(one for prompts in sets.values() for one in {prompt.id for prompt in prompts})
    files = {
        name: Path(name.partition(":")[2] or name).with_suffix("")
        for name, prompts in sets.items()
        if any(times[prompt.id] > 1 for prompt in prompts)
    }
    same = Counter(file.name for file in files.values())
    for name, file in files.items():
        # Files of one name are told apart by their folders.
        named = file.name if same[file.name] == 1 else "/".join(file.parts[-2:])
        sets[name] = [replace(prompt, id=f"{named}/{prompt.id}") for prompt in sets[name]]
    return [sets[name] for name in names]


def read_audited_collaborations(name: str) -> Iterator[Collaboration]:
    """Yield the collaborations of `audit:<folder>`, each with a prompt id of its own.

    If a request asked for several choices, the second is `ID/2`, and so on.

    Raises:
        InputError: the log holds no contents, or they are damaged.
    """
    choices: Counter[str] = Counter()
    for request, collaboration in read_collaborations(Path(name.removeprefix(AUDIT))):
        choices[request] += 1
        if choices[request] > 1:
            prompt = replace(collaboration.prompt, id=f"{request}/{choices[request]}")
            collaboration = replace(collaboration, prompt=prompt)
        yield collaboration


def read_set(name: str, users: UserSplit) -> list[Prompt]:
    """Read one set; of a memory, only the prompts of `users`."""
    if name.startswith(MEMORY):
        from waltzrl.evaluation.collecting.opening import read_remembered_prompts

        return read_remembered_prompts(name.removeprefix(MEMORY), Selection(users=users))
    if name.startswith(GENERATOR):
        return [record.to_prompt() for record in generate_split(name)]
    if name.startswith(AUDIT):
        return [collaboration.prompt for collaboration in read_audited_collaborations(name)]
    public, colon, path = name.partition(":")
    if colon and find_set(public):
        return import_set(public, Path(path))
    return read_prompts(Path(name))


def generate_split(name: str) -> list[GeneratedPrompt]:
    split = name.removeprefix(GENERATOR)
    if split not in get_args(Split):
        raise InputError(f"{name}: the generator has the splits {', '.join(get_args(Split))}")
    return [record for record in _generate_records() if record.split == split]


@cache
def _generate_records() -> list[GeneratedPrompt]:
    return generate()
