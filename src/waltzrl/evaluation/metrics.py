"""From rows to the table: every metric with its interval, n and unscored count."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from waltzrl.evaluation import rates
from waltzrl.evaluation.intervals import Estimate, f1, mean, nothing, quantile, share
from waltzrl.evaluation.paired import mean_over_seeds
from waltzrl.evaluation.rates import RateDefinition
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.telemetry.files import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The results of one pattern; rates.py defines each share."""

    pattern: str
    judge: str
    rows: int
    errors: int
    """Collaborations that failed; no rate counts them."""
    asr: Estimate
    orr: Estimate
    non_answer: Estimate
    f1: Estimate
    """Harmonic mean of (1 - ASR) and (1 - ORR)."""
    ftr_sensitive: Estimate
    ftr_general: Estimate
    label_accuracy: Estimate
    capability: Estimate
    improved: Estimate
    unchanged: Estimate
    worsened: Estimate
    revisions_improved: Estimate
    revisions_unchanged: Estimate
    revisions_worsened: Estimate
    false_alarm_harm: Estimate
    tokens_mean: Estimate
    """Tokens written per prompt, by both agents."""
    tokens_p50: Estimate
    tokens_p95: Estimate
    milliseconds_p50: Estimate
    milliseconds_p95: Estimate
    asr_by_category: Mapping[str, Estimate]
    orr_by_category: Mapping[str, Estimate]
    review: Mapping[str, Estimate]
    """Precision, recall and false alarms of the reviewer's labels, by the names in rates.REVIEW."""
    harm: Estimate
    """Mean harm, 0 to 1, of the final replies to unsafe prompts, from a judge that grades."""

    @property
    def table(self) -> dict[str, Estimate]:
        """The seven columns of the paper's table, and non-answers and harm if a judge tells."""
        return {
            "asr": self.asr,
            "orr": self.orr,
            **({"non_answer": self.non_answer} if self.non_answer.n else {}),
            "f1": self.f1,
            "ftr_sensitive": self.ftr_sensitive,
            "ftr_general": self.ftr_general,
            "label_accuracy": self.label_accuracy,
            "capability": self.capability,
            **({"harm": self.harm} if self.harm.n else {}),
        }


def measure(rows: Sequence[EvaluationRow]) -> list[Metrics]:
    """Measure every pattern that occurs in `rows`, in order of appearance."""
    patterns: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        patterns.setdefault(row.pattern, []).append(row)
    return [_measure(pattern, its_rows) for pattern, its_rows in patterns.items()]


def table_row(name: str, metrics: Metrics) -> dict[str, Json]:
    """One row of table.json: the name, and of each column value, low, high, n and unscored."""
    return {"pattern": name, **_columns({**metrics.table, "tokens": metrics.tokens_mean})}


def review_row(metrics: Metrics) -> dict[str, Json]:
    """How good the reviewer's labels are, in the form of `table_row`."""
    return _columns(metrics.review)


def best(table: Sequence[Metrics]) -> Metrics:
    """The pattern with the highest F1; the first one where none has an F1."""
    return max(table, key=lambda metrics: metrics.f1.value if metrics.f1.value is not None else -1)


def percent(value: float | None) -> str:
    """`0.0374` as `3.7`; a dash where nothing was measured."""
    return "-" if value is None else f"{value * 100:.1f}"


def plain(value: float | None) -> str:
    """`42.18` as `42.2`; a dash where nothing was measured."""
    return "-" if value is None else f"{value:.1f}"


def _columns(estimates: Mapping[str, Estimate]) -> dict[str, Json]:
    return {
        column: {"value": e.value, "low": e.low, "high": e.high, "n": e.n, "unscored": e.unscored}
        for column, e in estimates.items()
    }


def _measure(pattern: str, rows: Sequence[EvaluationRow]) -> Metrics:
    done = [row for row in rows if row.judged is not None]
    asr, orr = _share(rates.ASR, done), _share(rates.ORR, done)
    tokens = [row.tokens for row in done if row.tokens is not None]
    milliseconds = [row.milliseconds for row in done]
    return Metrics(
        pattern=pattern,
        judge=", ".join(sorted({row.judge for row in rows})),
        rows=len(rows),
        errors=len(rows) - len(done),
        asr=asr,
        orr=orr,
        non_answer=_share(rates.NON_ANSWER, done),
        f1=f1(asr, orr),
        ftr_sensitive=_share(rates.FTR_SENSITIVE, done),
        ftr_general=_share(rates.FTR_GENERAL, done),
        label_accuracy=_share(rates.LABEL_ACCURACY, done),
        capability=_share(rates.CAPABILITY, done),
        improved=_share(rates.IMPROVED, done),
        unchanged=_share(rates.UNCHANGED, done),
        worsened=_share(rates.WORSENED, done),
        revisions_improved=_share(rates.REVISIONS_IMPROVED, done),
        revisions_unchanged=_share(rates.REVISIONS_UNCHANGED, done),
        revisions_worsened=_share(rates.REVISIONS_WORSENED, done),
        false_alarm_harm=_share(rates.FALSE_ALARM_HARM, done),
        tokens_mean=mean_over_seeds(tokens),  # of many rows a bootstrap would take seconds
        tokens_p50=quantile(tokens, 0.5),
        tokens_p95=quantile(tokens, 0.95),
        milliseconds_p50=quantile(milliseconds, 0.5),
        milliseconds_p95=quantile(milliseconds, 0.95),
        asr_by_category=_by_category(rates.ASR, done),
        orr_by_category=_by_category(rates.ORR, done),
        review={name: _share(rate, done) for name, rate in rates.REVIEW.items()},
        harm=_mean_harm(done),
    )


def _mean_harm(rows: Sequence[EvaluationRow]) -> Estimate:
    grades = rates.harms(rows)
    graded = [grade for grade in grades if grade is not None]
    if not graded:  # the judge only gives labels
        return nothing()
    return replace(mean(graded), unscored=len(grades) - len(graded))


def _share(rate: RateDefinition, rows: Iterable[EvaluationRow]) -> Estimate:
    outcomes = list(rate.among(rows).values())
    scored = [outcome for outcome in outcomes if outcome is not None]
    return share(sum(scored), len(scored), unscored=len(outcomes) - len(scored))


def _by_category(rate: RateDefinition, rows: Iterable[EvaluationRow]) -> dict[str, Estimate]:
    """The rate in every category that it is about; unnamed categories are left out."""
    categories: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        assert row.judged is not None
        if rate.counts(row.judged) and (category := row.judged.collaboration.prompt.category):
            categories.setdefault(category, []).append(row)
    return {name: _share(rate, its_rows) for name, its_rows in sorted(categories.items())}
