"""What a specialist learns from: rows of prompt and completion, and held-out scenarios.

The fifteen sets in `data` are ours. A set of one's own is a file of JSON Lines; with
NAME.scenarios.jsonl beside NAME.jsonl it can be evaluated as well.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.data import near_duplicates, require_disjoint, write_lines
from waltzrl.foundation.jsonl import read_objects
from waltzrl.records import Message, Prompt

DATA = Path(str(files("waltzrl_specialists") / "data"))
ADVISED, LEAST = 100, 10
"""The number of rows that a set should have, and that below which it is refused."""
NAME = re.compile("[a-z][a-z0-9_-]{0,31}")
Row = TypeVar("Row", "Example", "HeldOutScenario")

logger = logging.getLogger("waltzrl.specialists")


class Specialist(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent for requests of one kind."""

    title: str
    purpose: str
    """A description of what it does, for people."""
    task: str
    """The beginning of its system prompt."""
    fields: dict[str, tuple[str, ...]]
    """The lines that its replies begin with: each field and its values."""

    @property
    def system(self) -> str:
        """The system prompt, the same in training, evaluation and serving."""
        if not self.fields:
            return self.task
        lines = ", then ".join(
            f'a line "{field}: " with {", ".join(values[:-1])} or {values[-1]}'
            for field, values in self.fields.items()
        )
        return f"{self.task} Write {lines}, then one or two sentences of advice."


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A row to learn from."""

    prompt: str
    completion: str


class HeldOutScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is never learnt from, and the lines that its reply must have."""

    prompt: str
    expected: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialistDataset:
    """What one specialist learns from, checked."""

    name: str
    source: str
    """The name of a specialist that comes with the package, or the path of a file."""
    specialist: Specialist
    examples: Sequence[Example]
    scenarios: Sequence[HeldOutScenario]
    """The held-out requests, none of which is, nearly word for word, among the examples."""
    left_out: int
    """The number of rows that nearly repeat an earlier one."""

    @property
    def digest(self) -> str:
        """A SHA-256 over the system prompt and the examples, in order."""
        contents = (self.specialist.system, self.examples)
        return hashlib.sha256(msgspec.json.encode(contents)).hexdigest()


@cache
def specialists() -> Mapping[str, Specialist]:
    """Return the specialists whose data comes with the package, by name."""
    catalogue = files("waltzrl_specialists") / "catalogue.toml"
    return msgspec.toml.decode(catalogue.read_bytes(), type=dict[str, Specialist])


def prepare_dataset(name: str, task: str = "You are a helpful assistant.") -> SpecialistDataset:
    """Read and check a set; rows that nearly repeat an earlier one are left out.

    Args:
        name: of a specialist that comes with the package, or a file of JSON Lines with `prompt`
            and `completion`, whose name becomes the specialist's.
        task: the system prompt of a set of one's own.

    Raises:
        InputError: there is no such set, a row lacks a column or a label, there are too few rows,
            or a scenario is among the examples; names file and line.
    """
    known = specialists().get(name)
    path = DATA / f"{name}.jsonl" if known else Path(name)
    if not known and not path.is_file():
        raise InputError(
            f"{name}: no specialist and no file; name a file of JSON Lines with prompt and "
            f"completion, or one of {', '.join(specialists())}"
        )
    if not NAME.fullmatch(path.stem):
        raise InputError(
            f"{path}: the file's name becomes the specialist's; need small letters, digits, - and "
            "_, such as invoices.jsonl"
        )
    own = Specialist(title=path.stem, purpose=f"learnt from {path}", task=task, fields={})
    specialist = known or own
    rows = _read_rows(path, Example)
    for where, example in rows.items():
        _check_labels(where, read_labels(example.completion), specialist)
    prompts = {where: _make_prompt(where, example.prompt) for where, example in rows.items()}
    repeated = near_duplicates(prompts.values())
    for leak in repeated:
        logger.warning("%s nearly repeats %s and is left out", leak.test.id, leak.train.id)
    for leak in repeated:
        del rows[leak.test.id], prompts[leak.test.id]
    _check_count(path, len(rows), least=ADVISED if known else LEAST)
    scenarios = scenarios_of(name)
    asked = [
        _make_prompt(f"scenario {n}", held_out.prompt) for n, held_out in enumerate(scenarios, 1)
    ]
    require_disjoint(list(prompts.values()), asked)
    return SpecialistDataset(
        name=path.stem,
        source=name if known else str(path.resolve()),
        specialist=specialist,
        examples=list(rows.values()),
        scenarios=scenarios,
        left_out=len(repeated),
    )


def scenarios_of(name: str) -> list[HeldOutScenario]:
    """Return the held-out scenarios of a specialist or a file; none where a file has none.

    Raises:
        InputError: a row lacks a column or, of a specialist of ours, a label.
    """
    known = specialists().get(name)
    path = DATA / f"{name}.jsonl" if known else Path(name)
    path = path.with_suffix(".scenarios.jsonl")
    if not path.is_file():
        return []
    rows = _read_rows(path, HeldOutScenario)
    for where, scenario in rows.items():
        if known:
            _check_labels(where, scenario.expected, known)
        elif not scenario.expected:
            raise InputError(f"{where}: expected is empty; name the lines that a reply must have")
    return list(rows.values())


def read_labels(text: str) -> dict[str, str]:
    """Return the `Field: value` lines of a reply; of several for one field the first counts."""
    labels: dict[str, str] = {}
    for line in text.splitlines():
        field, colon, value = line.partition(":")
        if colon:
            labels.setdefault(field.strip(), value.strip().casefold())
    return labels


def write_examples(dataset: SpecialistDataset, path: Path) -> None:
    """Write the rows that are learnt from as JSON Lines.

    Raises:
        InputError: the file cannot be written.
    """
    write_lines(path, dataset.examples)


def write_nanochat(dataset: SpecialistDataset, path: Path) -> None:
    """Write conversations for nanochat's `CustomJSON` task: one array of messages a line.

    That format has no system role, so the system prompt opens the user's turn, which is also where
    nanochat's tokenizer puts one.

    Raises:
        InputError: the file cannot be written.
    """
    system = dataset.specialist.system
    write_lines(
        path,
        (
            [
                {"role": "user", "content": f"{system}\n\n{example.prompt}"},
                {"role": "assistant", "content": example.completion},
            ]
            for example in dataset.examples
        ),
    )


def _read_rows(path: Path, kind: type[Row]) -> dict[str, Row]:
    """Return the rows by `file:line`."""
    rows = {}
    for number, fields in read_objects(path):
        where = f"{path}:{number}"
        try:
            rows[where] = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            columns = " and ".join(kind.__struct_fields__)
            raise InputError(f"{where}: {error}; every row needs {columns}") from None
        blank = [
            name for name, text in fields.items() if isinstance(text, str) and not text.strip()
        ]
        if blank:
            raise InputError(f"{where}: {blank[0]} is blank; fill it in or delete the row")
    return rows


def _check_labels(where: str, labels: Mapping[str, str], specialist: Specialist) -> None:
    for field, values in specialist.fields.items():
        if labels.get(field) not in values:
            raise InputError(
                f"{where}: {field} is {labels.get(field)!r}; need one of {', '.join(values)}"
            )


def _check_count(path: Path, count: int, least: int) -> None:
    if count < least:
        raise InputError(
            f"{path} has {count} rows to learn from; need {least} or more, better {ADVISED}"
        )
    if count < ADVISED:
        logger.warning("%s has %d rows; %d or more are advised", path, count, ADVISED)


def _make_prompt(where: str, text: str) -> Prompt:
    return Prompt(id=where, messages=(Message(role="user", content=text),))
