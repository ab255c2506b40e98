"""The tables of a study: means over seeds with intervals, paired tests, effects of the factors.

A seed is one observation: it draws its own world, prompts and weights, and all prompts within it
depend on these. So intervals and tests count seeds, never prompts. Intervals are Student's; tests
are paired by seed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from statistics import fmean

from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import render_percent, render_plain
from waltzrl.evaluation.paired import (
    SeedDifference,
    compare_seeds,
    joint_sign_tests,
    mean_over_seeds,
)
from waltzrl.evaluation.study import Study, StudyClaim

COLUMNS = {
    "asr": "ASR",
    "orr": "ORR",
    "non_answer": "no answer",
    "f1": "F1",
    "draft_asr": "draft ASR",
    "draft_orr": "draft ORR",
    "ftr_sensitive": "FTR sensitive",
    "ftr_general": "FTR general",
    "label_accuracy": "labels right",
    "capability": "capability",
    "harm": "harm",
    "tokens": "tokens",
}
TESTED = ("f1", "asr", "orr")
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """A table as text, for a terminal, a page or a document."""

    name: str
    """Name of the place in a document that it fills."""
    title: str
    note: str
    headings: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """The reference against another row."""

    row: str
    changes: Mapping[str, SeedDifference]
    """Reference minus row, of each metric in TESTED."""
    p_value: float
    """The test of random signs of F1, adjusted for the other rows."""

    @property
    def resolved(self) -> bool:
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTest:
    """A claim and what the study says of it."""

    claim: StudyClaim
    difference: SeedDifference
    p_value: float
    """The test of random signs, adjusted for the other claims."""

    @property
    def verdict(self) -> str:
        """Return whether the difference is resolved, and for or against the claim."""
        change = self.difference.change.value
        if self.p_value >= SIGNIFICANT or change is None:
            return "no"
        # A claim that the metric stays, whose `rises` is None, has any resolved change against it.
        return "for" if self.claim.rises is (change > 0) else "against"


def study_tables(study: Study) -> list[StudyTable]:
    """Return the tables of a study, each over the seeds that have all its rows.

    Tests and effects need two seeds.
    """
    main = study.having(next(iter(study.identity.tables.values())))
    cells = study.having(study.identity.cells)
    tables = list(_tabulate_means(study))
    if len(main.categories) > 1:
        tables.append(_tabulate_categories(main))
    if study.identity.reference and len(main.seeds) > 1:
        tables.append(_tabulate_tests(main))
    if claims := claim_tests(study):
        tables.append(_tabulate_claims(claims))
    if study.identity.cells and len(cells.seeds) > 1:
        tables.append(_tabulate_effects(cells))
    tables.append(_tabulate_trainings(study))
    return tables


def run_paired_tests(study: Study) -> list[PairedTest]:
    """Test the reference against every other row of the main table, seed by seed."""
    reference = study.identity.reference
    others = [row for row in next(iter(study.identity.tables.values())) if row != reference]
    changes = [
        {
            metric: compare_seeds(study.values(row, metric), study.values(reference, metric))
            for metric in TESTED
        }
        for row in others
    ]
    best = study.values(reference, "f1")
    adjusted = joint_sign_tests(
        [_subtract_pairwise(best, study.values(row, "f1")) for row in others]
    )
    return [
        PairedTest(row=row, changes=change, p_value=p_value)
        for row, change, p_value in zip(others, changes, adjusted, strict=True)
    ]


def claim_tests(study: Study) -> list[ClaimTest]:
    """Test every claim that two seeds or more have the rows and numbers of."""
    tested: list[tuple[StudyClaim, SeedDifference]] = []
    by_seed: list[list[float]] = []
    for claim in study.identity.claims:
        both = study.having([claim.before, claim.after])
        before, after = (_values_of_claim(both, claim, row) for row in (claim.before, claim.after))
        # `values` is empty unless every seed has the number, so each is none or one of every seed.
        if min(len(before), len(after)) > 1:
            tested.append((claim, compare_seeds(before, after)))
            changes = dict(zip(both.seeds, _subtract_pairwise(after, before), strict=True))
            # No sign changes 0, so a seed without these rows has no part in the test.
            by_seed.append([changes.get(seed, 0.0) for seed in study.seeds])
    adjusted = joint_sign_tests(by_seed)
    return [
        ClaimTest(claim=claim, difference=difference, p_value=p_value)
        for (claim, difference), p_value in zip(tested, adjusted, strict=True)
    ]


def _values_of_claim(study: Study, claim: StudyClaim, row: str) -> list[float]:
    values = study.values(row, claim.metric)
    if not claim.minus:
        return values
    return _subtract_pairwise(values, study.values(row, claim.minus))


def _subtract_pairwise(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(first, second, strict=True)]


def factor_effects(study: Study, metric: str) -> dict[str, SeedDifference]:
    """Return the effect of each factor and of each pair of factors on a metric.

    The effect of a factor is the mean over the cells at its second level minus that at its first.
    Of a pair it is the mean of the cells at equal levels minus that of the others: half of how much
    the effect of one grows from the first to the second level of the other.
    """
    cells, factors = study.identity.cells, study.identity.factors
    values = {row: study.values(row, metric) for row in cells}

    def side(row: str, names: Sequence[str]) -> int:
        levels = dict(zip(factors, cells[row], strict=True))
        # Of two factors the product is the contrast of their interaction.
        return prod(1 if levels[name] == factors[name][1] else -1 for name in names)

    effects: dict[str, SeedDifference] = {}
    for names in [*((name,) for name in factors), *combinations(factors, 2)]:
        after, before = (
            [
                fmean(column)
                for column in zip(
                    *(values[row] for row in cells if side(row, names) == sign), strict=True
                )
            ]
            for sign in (1, -1)
        )
        effects[" x ".join(names)] = compare_seeds(before, after)
    return effects


def render_markdown(table: StudyTable) -> str:
    """Return a table as Markdown, without its title."""
    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (table.headings, rule, *table.lines)]
    return "\n".join([*lines, "", table.note]) + "\n"


def _tabulate_means(study: Study) -> Iterator[StudyTable]:
    for place, (title, rows) in enumerate(study.identity.tables.items()):
        whole = study.having(rows)
        if not whole.seeds:
            continue
        values = {(row, metric): whole.values(row, metric) for row in rows for metric in COLUMNS}
        shown = [metric for metric in COLUMNS if any(values[row, metric] for row in rows)]
        yield StudyTable(
            name="main" if place == 0 else f"table-{place + 1}",
            title=title,
            note=f"Mean over {_count_seeds(whole)}, with 95 % intervals over seeds; rates in "
            "percent.",
            headings=("", *(COLUMNS[metric] for metric in shown)),
            lines=[
                (
                    row,
                    *(
                        render_cell(
                            _average_over_seeds(values[row, m], m),
                            render_plain if m == "tokens" else render_percent,
                        )
                        for m in shown
                    ),
                )
                for row in rows
            ],
        )


def _tabulate_categories(study: Study) -> StudyTable:
    names = study.categories
    rows = next(iter(study.identity.tables.values()))
    return StudyTable(
        name="categories",
        title="F1 of the main rows by category",
        note=f"Mean over {_count_seeds(study)}, percent, with 95 % intervals over seeds.",
        headings=("", *names),
        lines=[
            (
                row,
                *(
                    render_cell(
                        _average_over_seeds(study.values(row, "f1", name), "f1"), render_percent
                    )
                    for name in names
                ),
            )
            for row in rows
        ],
    )


def _tabulate_tests(study: Study) -> StudyTable:
    reference = study.identity.reference
    tests = run_paired_tests(study)
    return StudyTable(
        name="tests",
        title=f"{reference} against each other row",
        note=f"{reference} minus the row, paired over {_count_seeds(study)}, points of percent "
        "with 95 % intervals. p: test of random signs of F1, exact, two-sided; adjusted: for "
        f"{len(tests)} rows, after Westfall and Young. A difference is resolved where the adjusted "
        "p is below 0.05.",
        headings=("", "F1", "ASR", "ORR", "p", "t test", "adjusted p", "resolved"),
        lines=[
            (
                test.row,
                *(
                    render_cell(_bound_interval(test.changes[metric].change, 1.0), render_points)
                    for metric in TESTED
                ),
                render_p_value(test.changes["f1"].sign_p_value),
                render_p_value(test.changes["f1"].t_p_value),
                render_p_value(test.p_value),
                "yes" if test.resolved else "no",
            )
            for test in tests
        ],
    )


def _tabulate_claims(tests: Sequence[ClaimTest]) -> StudyTable:
    def measured(claim: StudyClaim) -> str:
        metric = COLUMNS[claim.metric] + (f" - {COLUMNS[claim.minus]}" if claim.minus else "")
        return f"{metric}, {claim.before} to {claim.after}"

    return StudyTable(
        name="claims",
        title="What the paper reports, in kind",
        note="Change from the first row to the second, paired over the seeds that have both; points"
        " of percent with 95 % intervals. p: exact test of random signs, two-sided; adjusted: for"
        f" {len(tests)} claims, after Westfall and Young. Resolved where the adjusted p is below"
        " 0.05.",
        headings=("", "measured by", "change", "seeds", "p", "adjusted p", "resolved"),
        lines=[
            (
                test.claim.text,
                measured(test.claim),
                render_cell(
                    # A difference of two differences of shares lies between -2 and 2.
                    _bound_interval(test.difference.change, 2.0 if test.claim.minus else 1.0),
                    render_points,
                ),
                str(test.difference.change.n),
                render_p_value(test.difference.sign_p_value),
                render_p_value(test.p_value),
                test.verdict,
            )
            for test in tests
        ],
    )


def _tabulate_effects(study: Study) -> StudyTable:
    metrics = ("f1", "asr", "orr", "ftr_general")
    shown = [m for m in metrics if all(study.values(row, m) for row in study.identity.cells)]
    effects = {metric: factor_effects(study, metric) for metric in shown}
    levels = "; ".join(f"{n}: {low} to {high}" for n, (low, high) in study.identity.factors.items())
    return StudyTable(
        name="effects",
        title="Effects of reward, label and replay",
        note=f"Points of percent over {_count_seeds(study)}, with 95 % intervals; p: test of "
        f"random signs of F1. {levels}. Of a pair: half of how much the effect of one grows from "
        "the first to the second level of the other.",
        headings=("", *(COLUMNS[metric] for metric in shown), "p"),
        lines=[
            (
                name,
                *(
                    render_cell(_bound_interval(effects[metric][name].change, 1.0), render_points)
                    for metric in shown
                ),
                render_p_value(effects["f1"][name].sign_p_value),
            )
            for name in effects["f1"]
        ],
    )


def _tabulate_trainings(study: Study) -> StudyTable:
    return StudyTable(
        name="trainings",
        title="What each training took",
        note="Means over the seeds that have it. Tokens are those that both agents sampled in "
        "rollouts; minutes are wall-clock time of a process "
        "with one thread, beside others.",
        headings=("", "thousand tokens", "minutes"),
        lines=[
            (
                name,
                f"{fmean(cost.tokens for cost in costs) / 1000:.0f}",
                f"{fmean(cost.seconds for cost in costs) / 60:.1f}",
            )
            for name, costs in study.costs.items()
        ],
    )


def _average_over_seeds(values: Sequence[float], metric: str) -> Estimate:
    estimate = mean_over_seeds(values)
    return estimate if metric == "tokens" else _bound_interval(estimate, 1.0, least=0.0)


def _bound_interval(estimate: Estimate, most: float, least: float | None = None) -> Estimate:
    """End the interval where the number does: a share at 0 and 1, a difference at -1 and 1."""
    if estimate.low is None or estimate.high is None:
        return estimate
    low = max(-most if least is None else least, estimate.low)
    return replace(estimate, low=low, high=min(most, estimate.high))


def _count_seeds(study: Study) -> str:
    count = len(study.seeds)
    return "one seed" if count == 1 else f"{count} seeds"


def render_cell(estimate: Estimate, show: Callable[[float | None], str] = render_percent) -> str:
    """`27.3 (20.8 to 35.0)`: a value and its interval, where it has one."""
    if estimate.value is None or estimate.low is None:
        return show(estimate.value)
    return f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)})"


def render_points(value: float | None) -> str:
    """`-0.037` as `-3.7`, with its sign."""
    return "-" if value is None else f"{100 * value:+.1f}"


def render_p_value(value: float) -> str:
    """Return a probability with four places."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
