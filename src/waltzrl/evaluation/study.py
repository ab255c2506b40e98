"""A study on disk: what every row of its table was with every seed, prompt by prompt.

    study.json          what the study is of: its rows, and digests of its world and recipes
    seed-7.jsonl.gz     a line about the prompts of seed 7, then a line for each finished row

The files are small enough to be committed: verdicts, numbers and ids, no texts.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation import rates
from waltzrl.evaluation.intervals import harmonic
from waltzrl.evaluation.rates import RateDefinition
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.foundation.files import write_bytes, write_json

STUDY = "study.json"
HAPPENED, DID_NOT, UNSCORED, NOT_COUNTED = "1", "0", "?", "-"
"""Codes of an outcome; the last is of a prompt that the rate does not count."""
RATES: Mapping[str, RateDefinition] = {
    "asr": rates.ASR,
    "orr": rates.ORR,
    "non_answer": rates.NON_ANSWER,
    "draft_asr": replace(rates.ASR, happened=lambda judged: judged.verdicts[0].unsafe),
    "draft_orr": replace(rates.ORR, happened=lambda judged: judged.verdicts[0].overrefuses),
    "ftr_sensitive": rates.FTR_SENSITIVE,
    "ftr_general": rates.FTR_GENERAL,
    "label_accuracy": rates.LABEL_ACCURACY,
    "capability": rates.CAPABILITY,
}
"""The rates that are kept of every prompt. The drafts' rates say what the feedback was worth."""


class TrainingCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one training of a row's agents took."""

    tokens: int
    """Tokens sampled in its rollouts, by both agents."""
    seconds: float
    """Wall time of all its steps."""


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table with one seed."""

    row: str
    judge: str
    trained: dict[str, TrainingCost]
    """The trainings of its agents by name, without the initial model."""
    outcomes: dict[str, str]
    """[P] codes, one for each prompt, of every rate in RATES."""
    tokens: list[int | None]
    """[P] tokens written by all policies together."""
    harm: list[float | None]
    """[P] harm of the final reply; None where the judge does not grade."""


class SeedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts that all rows of one seed were measured on."""

    seed: int
    ids: list[str]
    categories: list[str]
    """The category of each prompt."""
    clusters: list[str]
    """The subject of each prompt: prompts of one cluster are not independent."""


class SeedResults:
    """The results of one seed."""

    def __init__(self, prompts: SeedPrompts, rows: Mapping[str, StudyRow] | None = None) -> None:
        self.prompts = prompts
        self.rows = dict(rows or {})
        """The rows, by their names."""

    def values(self, row: str, category: str | None = None) -> dict[str, float]:
        """Return every number of a row that its prompts allow: the rates, F1, tokens, harm.

        Args:
            row: its name.
            category: count only prompts of this category.
        """
        kept, result = self._places(category), self.rows[row]
        values: dict[str, float] = {}
        for name, codes in result.outcomes.items():
            outcomes = [codes[place] for place in kept]
            scored = outcomes.count(HAPPENED) + outcomes.count(DID_NOT)
            if scored:
                values[name] = outcomes.count(HAPPENED) / scored
        if "asr" in values and "orr" in values:
            values["f1"] = harmonic(values["asr"], values["orr"])
        for name, numbers in (("tokens", result.tokens), ("harm", result.harm)):
            known = [number for place in kept if (number := numbers[place]) is not None]
            if known:
                values[name] = fmean(known)
        return values

    def _places(self, category: str | None) -> Sequence[int]:
        categories = self.prompts.categories
        return [n for n, own in enumerate(categories) if category is None or own == category]

    def add(
        self, row: str, rows: Sequence[EvaluationRow], trained: dict[str, TrainingCost]
    ) -> None:
        """Add a row of the table, from its rows of an evaluation.

        Raises:
            InputError: a prompt was not answered, or is not one of the seed's.
        """
        by_prompt = {each.prompt_id: each for each in rows if each.judged is not None}
        if by_prompt.keys() != set(self.prompts.ids):
            raise InputError(
                f"the row {row!r} of seed {self.prompts.seed} was measured on {len(by_prompt)} "
                f"prompts and not on the {len(self.prompts.ids)} of the study; evaluate it again"
            )
        ordered = [by_prompt[name] for name in self.prompts.ids]
        verdicts = [each.judged.verdicts[-1] for each in ordered if each.judged is not None]
        self.rows[row] = StudyRow(
            row=row,
            judge=", ".join(sorted({each.judge for each in rows})),
            trained=trained,
            outcomes={name: _encode_outcomes(rate, ordered) for name, rate in RATES.items()},
            tokens=[each.tokens for each in ordered],
            harm=[verdict.harm and round(verdict.harm, 3) for verdict in verdicts],
        )


def _encode_outcomes(rate: RateDefinition, rows: Sequence[EvaluationRow]) -> str:
    known = {True: HAPPENED, False: DID_NOT, None: UNSCORED}
    outcomes = rate.among(rows)
    return "".join(
        known[outcomes[row.case]] if row.case in outcomes else NOT_COUNTED for row in rows
    )


def seed_file(folder: Path, seed: int) -> Path:
    """Return where the results of a seed are."""
    return folder / f"seed-{seed}.jsonl.gz"


def write_seed(folder: Path, results: SeedResults) -> None:
    """Replace the results of a seed in one step.

    Raises:
        InputError: the folder cannot be written.
    """
    lines = [results.prompts, *results.rows.values()]
    text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    # Without a time in its header, equal results are equal bytes.
    write_bytes(seed_file(folder, results.prompts.seed), gzip.compress(text, mtime=0))


def read_seed(folder: Path, seed: int) -> SeedResults | None:
    """Read the results of a seed; None if there are none yet.

    Raises:
        InputError: the file is damaged.
    """
    path = seed_file(folder, seed)
    try:
        first, *others = gzip.decompress(path.read_bytes()).splitlines()
        prompts = msgspec.json.decode(first, type=SeedPrompts)
        rows = [msgspec.json.decode(line, type=StudyRow) for line in others]
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path}: not the results of a seed ({error}); delete it to run the seed again"
        ) from error
    return SeedResults(prompts, {row.row: row for row in rows})


class StudyClaim(msgspec.Struct, frozen=True):
    """What others report, to be tested by a study: how a number of one row lies to another's."""

    text: str
    before: str
    after: str
    """Rows, by name: the metric in `after` is compared with that in `before`."""
    metric: str
    rises: bool | None
    """Whether the metric rises from `before` to `after`; None if it is said to stay."""
    minus: str = ""
    """Another metric that is subtracted; empty for none."""


class StudyIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a study is of. Folders of different studies are never mixed."""

    world: str
    """Digest of prompts and demonstrations."""
    recipes: str
    """Digest of all that its trainings are told."""
    tables: dict[str, tuple[str, ...]]
    """Rows of each table, by its title; the first is the main one."""
    reference: str = ""
    """The row that the others of the main table are tested against; empty for no tests."""
    factors: dict[str, tuple[str, str]] = {}
    """The factors of a factorial design, by name, each with its two levels."""
    cells: dict[str, tuple[str, ...]] = {}
    """The rows of the design, with their levels in the order of `factors`."""
    claims: tuple[StudyClaim, ...] = ()

    @property
    def rows(self) -> list[str]:
        """Every row once."""
        return list(dict.fromkeys(row for rows in self.tables.values() for row in rows))


def open_study(folder: Path, identity: StudyIdentity) -> None:
    """Write what the study is of, or check that the folder is of the same study.

    Raises:
        InputError: it is of another study, or cannot be written.
    """
    try:
        before = read_identity(folder)
    except FileNotFoundError:
        write_json(folder / STUDY, msgspec.to_builtins(identity))
        return
    differing = [
        name
        for name in identity.__struct_fields__
        if getattr(before, name) != getattr(identity, name)
    ]
    if differing:
        raise InputError(
            f"{folder} is a study of another version (other {', '.join(differing)}); choose "
            "another folder, or go back to that version"
        )


def read_identity(folder: Path) -> StudyIdentity:
    """Read what the study in a folder is of.

    Raises:
        FileNotFoundError: it holds no study.
        InputError: the file is damaged.
    """
    path = folder / STUDY
    try:
        return msgspec.json.decode(path.read_bytes(), type=StudyIdentity)
    except ValueError as error:
        raise InputError(
            f"{path}: damaged: {error}; restore it, or choose another folder"
        ) from None


class Study:
    """The seeds of a study, of which some may lack rows."""

    def __init__(self, identity: StudyIdentity, seeds: Sequence[SeedResults]) -> None:
        self.identity = identity
        self.seeds = seeds

    def having(self, rows: Iterable[str]) -> "Study":
        """Return the study of the seeds that have all of these rows, to compare them."""
        wanted = {*rows}
        return Study(self.identity, [seed for seed in self.seeds if wanted <= seed.rows.keys()])

    @property
    def categories(self) -> list[str]:
        """Categories of the sensitive prompts, in order of appearance."""
        names = dict.fromkeys(name for seed in self.seeds for name in seed.prompts.categories)
        row = self.identity.rows[0]
        # Only sensitive prompts, which alone enter ASR and ORR, have an F1.
        return [name for name in names if self.values(row, "f1", name)]

    def values(self, row: str, metric: str, category: str | None = None) -> list[float]:
        """Return [S] a number of a row, seed by seed; empty if a seed does not have it.

        Every seed must have the row.
        """
        values = [seed.values(row, category).get(metric) for seed in self.seeds]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []

    @property
    def costs(self) -> dict[str, list[TrainingCost]]:
        """Return [S] what each training took, by its name, seed by seed."""
        costs: dict[str, list[TrainingCost]] = {}
        for seed in self.seeds:
            trained = {name: c for row in seed.rows.values() for name, c in row.trained.items()}
            for name, cost in trained.items():
                costs.setdefault(name, []).append(cost)
        return costs


def read_study(folder: Path) -> Study:
    """Read a study.

    Raises:
        InputError: the folder holds none, no table has a whole seed, or a file is damaged.
    """
    try:
        identity = read_identity(folder)
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no study; give a folder that `waltzrl study` wrote"
        ) from None
    names = [re.fullmatch(r"seed-(\d+)\.jsonl\.gz", path.name) for path in folder.iterdir()]
    numbers = [int(name[1]) for name in names if name]
    seeds = [read_seed(folder, number) for number in sorted(numbers)]
    study = Study(identity, [seed for seed in seeds if seed is not None])
    if not any(study.having(rows).seeds for rows in identity.tables.values()):
        raise InputError(
            f"no table of the study in {folder} has all rows of a seed yet; run `waltzrl study` "
            "again, to go on"
        )
    return study
