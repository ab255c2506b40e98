"""A card of an evaluation, to be published: its sets with licences, leaks, agents and results.

It quotes no prompt and no reply, because several licences forbid to pass them on, and no address of
a server or a memory.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from waltzrl import __version__
from waltzrl.evaluation.correction import MeasuredJudge
from waltzrl.evaluation.data.duplicates import NEAR, leaks, text_of
from waltzrl.evaluation.data.importers.sets import find_set
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import Metrics, measure, render_percent, render_plain, table_row
from waltzrl.evaluation.rates import ClusterField
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.evaluation.study_tables import StudyTable, render_markdown
from waltzrl.evaluation.terminal import list_headings
from waltzrl.foundation.files import Json, write_bytes, write_json
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.records import Prompt

MARKDOWN, JSON = "card.md", "card.json"
UNKNOWN = "unknown"
NO_LABEL = "no label"
_ADDRESS = re.compile(r" at [^\s,]+(?=,|$)|(?<=\bexamples) of .+?(?= for )")
"""Of a server, as `identify_agent` names it, or of the memory that examples are from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSheet:
    """The data sheet of one set of an evaluation."""

    name: str
    prompts: int
    labels: dict[str, int]
    categories: int
    clusters: int
    """Goals or topics that prompts share; 0 where the set names none."""
    digest: str
    """SHA-256 of the prompts' texts, sorted: others can tell whether they have the same ones."""
    licence: str
    """As the authors state it; `unknown` for a set that waltzrl does not know."""
    page: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakCheck:
    """What was found of the evaluated prompts among training prompts."""

    trained_on: str
    """The name of the file of training prompts."""
    training_prompts: int
    similarity: float
    """The least Jaccard similarity that counts as a leak."""
    leaked: tuple[str, ...]
    """The ids of the evaluated prompts that are, nearly word for word, among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCard:
    """What is published of an evaluation."""

    title: str
    sets: Sequence[SetSheet]
    leak_checks: Sequence[LeakCheck]
    metrics: Sequence[Metrics]
    agents: dict[str, str]
    """Pattern -> the agents that took part, and how, without addresses."""
    judges: Sequence[str]
    """The judge, with the revisions of its model as its answers name them."""


def make_card(
    title: str,
    rows: Sequence[EvaluationRow],
    trained_on: Sequence[Path] = (),
    by: ClusterField = "cluster",
    judge: MeasuredJudge | None = None,
) -> EvaluationCard:
    """Describe an evaluation.

    Args:
        title: of the card.
        rows: of all patterns.
        trained_on: files of prompts that the agents learned from; none is recorded as unchecked.
        by: the field of the prompts that makes clusters.
        judge: how often the judge errs; then rates are corrected too.

    Raises:
        InputError: a file of training prompts cannot be read, or the rows were judged by another
            judge than the measured one.
    """
    said = [row.judged.collaboration if row.judged else row.unjudged for row in rows]
    prompts = list({each.prompt.id: each.prompt for each in said if each is not None}.values())
    by_set: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_set.setdefault(prompt.source or UNKNOWN, []).append(prompt)
    revisions = sorted({revision for row in rows for revision in row.revisions if revision})
    return EvaluationCard(
        title=title,
        sets=[_describe_set(name, its_prompts) for name, its_prompts in by_set.items()],
        leak_checks=[_check_leaks(path, prompts) for path in trained_on],
        metrics=measure(rows, by, judge),
        agents={row.pattern: _ADDRESS.sub("", row.agents) for row in rows},
        judges=[*dict.fromkeys(row.judge for row in rows), *revisions],
    )


def write_card(folder: Path, card: EvaluationCard) -> list[Path]:
    """Write the card as Markdown and as JSON; return the paths.

    Raises:
        InputError: the folder cannot be written to, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / MARKDOWN, card_as_markdown(card).encode())
    write_json(folder / JSON, _card_as_json(card))
    return [folder / MARKDOWN, folder / JSON]


def card_as_markdown(card: EvaluationCard) -> str:
    """Return the card for people."""
    parts = [
        f"# {card.title}\n",
        f"## Results\n\n{render_markdown(_tabulate_results(card.metrics))}",
        f"## Sets\n\n{render_markdown(_tabulate_sets(card.sets))}",
        f"## Leaks\n\n{_describe_leaks(card)}",
        f"## Made with\n\n{_describe_making(card)}",
    ]
    return "\n".join(parts)


def _describe_set(name: str, prompts: Sequence[Prompt]) -> SetSheet:
    texts = "\0".join(sorted(text_of(prompt) for prompt in prompts))
    known = find_set(name)
    return SetSheet(
        name=name,
        prompts=len(prompts),
        labels=dict(sorted(Counter(each.label or NO_LABEL for each in prompts).items())),
        categories=len({prompt.category for prompt in prompts} - {""}),
        clusters=len({prompt.cluster for prompt in prompts} - {""}),
        digest=hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest(),
        licence=(known and known.licence) or UNKNOWN,
        page=(known and known.page) or "",
    )


def _check_leaks(path: Path, prompts: Sequence[Prompt]) -> LeakCheck:
    train = read_prompts(path)
    return LeakCheck(
        trained_on=path.name,
        training_prompts=len(train),
        similarity=NEAR,
        leaked=tuple(leak.test.id for leak in leaks(train, prompts)),
    )


def _card_as_json(card: EvaluationCard) -> Json:
    sets: list[Json] = [asdict(each) for each in card.sets]
    checks: list[Json] = [{**asdict(each), "leaked": [*each.leaked]} for each in card.leak_checks]
    results: list[Json] = [
        {**table_row(line.pattern, line), "rows": line.rows, "errors": line.errors}
        for line in card.metrics
    ]
    return {
        "title": card.title,
        "waltzrl": __version__,
        "judges": [*card.judges],
        "agents": {**card.agents},
        "sets": sets,
        "leak_checks": checks,
        "results": results,
        "clustered_by": card.metrics[0].clustered_by,
    }


def _tabulate_results(metrics: Sequence[Metrics]) -> StudyTable:
    columns = list_headings(metrics)
    return StudyTable(
        name="results",
        title="Results",
        note="Percent with 95 % intervals, but for tokens written per prompt; "
        + "; ".join(f"{line.pattern}: {line.errors} failed, {line.grouping}" for line in metrics),
        headings=("", *columns.values(), "tokens"),
        lines=[
            (
                line.pattern,
                *(_render_share(line.table[column]) for column in columns),
                render_plain(line.tokens_mean.value),
            )
            for line in metrics
        ],
    )


def _render_share(estimate: Estimate) -> str:
    value, low, high = map(render_percent, (estimate.value, estimate.low, estimate.high))
    text = value if estimate.low is None else f"{value} ({low} to {high})"
    return f"{text}, {estimate.unscored} unscored" if estimate.unscored else text


def _tabulate_sets(sets: Sequence[SetSheet]) -> StudyTable:
    return StudyTable(
        name="sets",
        title="Sets",
        note="SHA-256 is of the sorted texts. No prompt and no reply is in this card.",
        headings=("set", "prompts", "labels", "categories", "clusters", "licence", "SHA-256"),
        lines=[
            (
                f"[{each.name}]({each.page})" if each.page else each.name,
                str(each.prompts),
                ", ".join(f"{count} {label}" for label, count in each.labels.items()),
                str(each.categories),
                str(each.clusters),
                each.licence,
                each.digest[:16],
            )
            for each in sets
        ],
    )


def _describe_leaks(card: EvaluationCard) -> str:
    if not card.leak_checks:
        return "Not checked: no training prompts were given.\n"
    total = sum(each.prompts for each in card.sets)
    return "".join(
        f"- {len(check.leaked)} of {total} prompts are, nearly word for word (similarity "
        f"{check.similarity:g} or more), among the {check.training_prompts} of "
        f"{check.trained_on}{_list_some(check.leaked)}.\n"
        for check in card.leak_checks
    )


def _list_some(names: Sequence[str], most: int = 5) -> str:
    """Return the first names; card.json has all."""
    if not names:
        return ""
    return f": {', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def _describe_making(card: EvaluationCard) -> str:
    lines = [f"waltzrl {__version__}", f"judge {', '.join(card.judges)}"]
    lines += [f"{pattern}: {agents}" for pattern, agents in card.agents.items() if agents]
    return "".join(f"- {line}\n" for line in lines)
