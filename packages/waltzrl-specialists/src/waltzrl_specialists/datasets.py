"""What a specialist learns from: tasks, each a prompt, a reference and checks; some are held out.

The fifteen sets in `data` are ours. A set of one's own is a file of JSON Lines; with
NAME.scenarios.jsonl beside NAME.jsonl it can be evaluated as well, and NAME.toml is its entry of
the catalogue.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.data.duplicates import near_duplicates, require_disjoint
from waltzrl.foundation.jsonl import read_objects, read_text, write_lines
from waltzrl.records import Message, Prompt
from waltzrl_specialists.checks import bind_check, read_lines

DATA = Path(str(files("waltzrl_specialists") / "data"))
ADVISED, LEAST = 100, 10
"""The number of rows that a set should have, and that below which it is refused."""
NAME = re.compile("[a-z][a-z0-9_-]{0,31}")
TOGETHER = "together"
"""The name of the adapter that learns from several sets, with which specialists are compared."""
Checks: TypeAlias = dict[str, object]
"""What each check, by name, is called with."""
Row = TypeVar("Row", "Example", "HeldOutScenario")

logger = logging.getLogger("waltzrl.specialists")


class Specialist(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent for requests of one kind."""

    title: str = ""
    purpose: str = ""
    """A description of what it does, for people."""
    task: str
    """The beginning of its system prompt."""
    checks: tuple[str, ...] = ()
    """The checks that each of its scenarios has, by name or `module:function`; none is any."""
    fields: dict[str, Annotated[tuple[str, ...], msgspec.Meta(min_length=2)]] = {}
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


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row to learn from."""

    prompt: str
    completion: str
    """The reference, which passes the checks."""
    checks: Checks = {}
    system: str = ""
    """Its own system prompt; empty is the specialist's."""


class HeldOutScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is never learnt from, and the checks that its reply must pass."""

    prompt: str
    checks: Checks
    completion: str | None = None
    """The reference, where there is one."""


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
        """A SHA-256 over the system prompt and what is learnt from, in order."""
        # Without the checks, which change nothing of what is learnt.
        rows = [(row.system, row.prompt, row.completion) for row in self.examples]
        contents = (self.specialist.system, rows)
        return hashlib.sha256(msgspec.json.encode(contents)).hexdigest()


@cache
def specialists() -> Mapping[str, Specialist]:
    """Return the specialists whose data comes with the package, by name."""
    catalogue = files("waltzrl_specialists") / "catalogue.toml"
    return msgspec.toml.decode(catalogue.read_bytes(), type=dict[str, Specialist])


def prepare_datasets(names: Iterable[str], task: str) -> list[SpecialistDataset]:
    """Check the data of several specialists; see `prepare_dataset`.

    Raises:
        InputError: as there, or two are called the same.
    """
    datasets = [prepare_dataset(name, task) for name in names]
    called, times = Counter(dataset.name for dataset in datasets).most_common(1)[0]
    if times > 1:
        raise InputError(f"{times} sets are called {called!r}; names must be unique, rename a file")
    return datasets


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
    if not NAME.fullmatch(path.stem) or path.stem == TOGETHER:
        raise InputError(
            f"{path}: the file's name becomes the specialist's; need small letters, digits, - and "
            f"_, such as invoices.jsonl, and not {TOGETHER}"
        )
    specialist = known or _read_entry(path, task)
    rows = _read_rows(path, Example)
    for where, example in rows.items():
        _check_labels(where, read_lines(example.completion), specialist)
        if example.checks:
            _check_arguments(where, example.checks, specialist)
    prompts = {where: _make_prompt(where, example.prompt) for where, example in rows.items()}
    repeated = near_duplicates(prompts.values())
    for leak in repeated:
        logger.warning("%s nearly repeats %s and is left out", leak.test.id, leak.train.id)
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


def join_datasets(datasets: Sequence[SpecialistDataset]) -> SpecialistDataset:
    """Return the rows of several sets as one, each with the system prompt of its specialist."""
    names = ", ".join(dataset.name for dataset in datasets)
    return SpecialistDataset(
        name=TOGETHER,
        source=names,
        specialist=Specialist(title="Together", purpose=f"learnt from {names}", task=""),
        examples=[
            msgspec.structs.replace(example, system=example.system or dataset.specialist.system)
            for dataset in datasets
            for example in dataset.examples
        ],
        scenarios=(),
        left_out=0,
    )


def scenarios_of(name: str) -> list[HeldOutScenario]:
    """Return the held-out scenarios of a specialist or a file; none where a file has none.

    Raises:
        InputError: a row lacks a column or, of a specialist of ours, a label.
    """
    known = specialists().get(name)
    path = DATA / f"{name}.jsonl" if known else Path(name)
    specialist = known or _read_entry(path, task="")
    path = path.with_suffix(".scenarios.jsonl")
    if not path.is_file():
        return []
    rows = _read_rows(path, HeldOutScenario)
    for where, scenario in rows.items():
        _check_arguments(where, scenario.checks, specialist)
        if specialist.fields:
            lines = msgspec.convert(scenario.checks.get("lines", {}), dict[str, str])
            _check_labels(where, lines, specialist)
    return list(rows.values())


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


def _read_entry(path: Path, task: str) -> Specialist:
    """Return the catalogue entry beside a set of one's own, or one made of its name and task."""
    entry = path.with_suffix(".toml")
    if not entry.is_file():
        return Specialist(title=path.stem, purpose=f"learnt from {path}", task=task)
    try:
        return msgspec.toml.decode(read_text(entry), type=Specialist)
    except msgspec.DecodeError as error:
        raise InputError(f"{entry}: {error}") from None


def _check_arguments(where: str, checks: Checks, specialist: Specialist) -> None:
    wanted = specialist.checks or tuple(checks)
    if not checks or set(checks) != set(wanted):
        raise InputError(
            f"{where}: checks are {', '.join(checks) or 'empty'}; need"
            f" {', '.join(wanted) or 'at least one'}"
        )
    for name, argument in checks.items():
        try:
            bind_check(name, argument)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _check_labels(where: str, lines: Mapping[str, str], specialist: Specialist) -> None:
    for field, values in specialist.fields.items():
        if lines.get(field, "").casefold() not in map(str.casefold, values):
            raise InputError(
                f"{where}: {field} is {lines.get(field)!r}; need one of {', '.join(values)}"
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
