"""Two runs on the same prompts: what changed, and whether it may be chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from waltzrl.errors import InputError
from waltzrl.evaluation import rates
from waltzrl.evaluation.intervals import (
    Estimate,
    Pairs,
    difference,
    f1_difference,
    harmonic,
    mcnemar,
    mean,
)
from waltzrl.evaluation.rates import RateDefinition
from waltzrl.evaluation.rows import EvaluationRow

COMPARED = {
    "asr": rates.ASR,
    "orr": rates.ORR,
    "ftr_sensitive": rates.FTR_SENSITIVE,
    "ftr_general": rates.FTR_GENERAL,
    "label_accuracy": rates.LABEL_ACCURACY,
    "capability": rates.CAPABILITY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric in two runs, on the prompts that both runs scored."""

    metric: str
    before: float
    after: float
    change: Estimate
    """After minus before, with a paired interval; n counts prompts."""
    p_value: float | None
    """McNemar's exact test for shares, Dirichlet draws for F1; None for tokens."""


def compare(before: Sequence[EvaluationRow], after: Sequence[EvaluationRow]) -> list[Difference]:
    """Compare two runs of one pattern each, prompt by prompt.

    Metrics without a prompt that both runs scored are left out.

    Raises:
        InputError: a run holds several patterns, or the runs share no prompt.
    """
    for rows in (before, after):
        if len(patterns := sorted({row.pattern for row in rows})) > 1:
            raise InputError(f"a run to compare holds one pattern, got {', '.join(patterns)}")
    before, after = _shared(before, after), _shared(after, before)
    if not before:
        raise InputError("the two runs have no prompt in common; compare runs on the same set")
    pairs = {name: _pair(rate, before, after) for name, rate in COMPARED.items()}
    differences = [_share_difference(name, pair) for name, pair in pairs.items() if pair.n]
    if pairs["asr"].n and pairs["orr"].n:
        differences.insert(2, _f1_difference(pairs["asr"], pairs["orr"]))
    counted = [
        (first.tokens, second.tokens)
        for first, second in zip(before, after, strict=True)
        if first.tokens is not None and second.tokens is not None
    ]
    return [*differences, _token_difference(counted)] if counted else differences


def _shared(rows: Sequence[EvaluationRow], others: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """Rows that did not fail and whose very prompt the other run answered too, by prompt id."""
    prompts = {r.prompt_id: r.judged.collaboration.prompt for r in others if r.judged is not None}
    return sorted(
        (
            row
            for row in rows
            if row.judged is not None
            and row.judged.collaboration.prompt == prompts.get(row.prompt_id)
        ),
        key=lambda row: row.prompt_id,
    )


def _pair(
    rate: RateDefinition, before: Sequence[EvaluationRow], after: Sequence[EvaluationRow]
) -> Pairs:
    first, second = rate.among(before), rate.among(after)
    outcomes = [
        (first[prompt], second[prompt])
        for prompt in first
        if first[prompt] is not None and second.get(prompt) is not None
    ]
    return Pairs(
        both=outcomes.count((True, True)),
        first_only=outcomes.count((True, False)),
        second_only=outcomes.count((False, True)),
        neither=outcomes.count((False, False)),
    )


def _share_difference(metric: str, pairs: Pairs) -> Difference:
    return Difference(
        metric=metric,
        before=pairs.first,
        after=pairs.second,
        change=difference(pairs),
        p_value=mcnemar(pairs),
    )


def _f1_difference(asr: Pairs, orr: Pairs) -> Difference:
    change, p_value = f1_difference(asr, orr)
    return Difference(
        metric="f1",
        before=harmonic(asr.first, orr.first),
        after=harmonic(asr.second, orr.second),
        change=change,
        p_value=p_value,
    )


def _token_difference(counted: Sequence[tuple[int, int]]) -> Difference:
    return Difference(
        metric="tokens",
        before=fmean(first for first, _ in counted),
        after=fmean(second for _, second in counted),
        change=mean([second - first for first, second in counted]),
        p_value=None,
    )
