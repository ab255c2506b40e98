"""Two runs on the same prompts: what changed, and whether it may be chance."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from waltzrl.errors import InputError
from waltzrl.evaluation import rates
from waltzrl.evaluation.clusters import (
    Clusters,
    clustered_difference,
    clustered_f1_difference,
    clustered_mean,
    pairs_of,
)
from waltzrl.evaluation.intervals import Estimate, Pairs, harmonic
from waltzrl.evaluation.rates import ClusterField, RateDefinition, cluster_of
from waltzrl.evaluation.rows import EvaluationRow

CELLS = ((True, True), (True, False), (False, True), (False, False))
"""Outcomes before and after, in the order of the fields of `Pairs`."""
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
    """The rate after minus the rate before, with a paired interval; n counts prompts."""
    p_value: float | None
    """Exact test of the signs of clusters for shares, which for single prompts is McNemar's;
    Dirichlet draws for F1; None for tokens."""


def compare(
    before: Sequence[EvaluationRow],
    after: Sequence[EvaluationRow],
    by: ClusterField = "cluster",
) -> list[Difference]:
    """Compare two runs of one pattern each, prompt by prompt.

    Metrics without a prompt that both runs scored are left out.

    Args:
        before: rows of one pattern.
        after: of one pattern, on some of the same prompts.
        by: the field of the prompts that makes clusters; samples of one prompt always make one.

    Raises:
        InputError: a run holds several patterns, or the runs share no prompt or have different
            judges.
    """
    pairs = _pair_runs(before, after, by)
    asr, orr = pairs.clusters(rates.ASR), pairs.clusters(rates.ORR)
    differences = _share_differences(pairs)
    if asr and orr:
        both = pairs.clusters(rates.ASR, rates.ORR)
        # Behind ASR and ORR, which are the first two where both were measured.
        differences.insert(2, _f1_difference(pairs_of(asr), pairs_of(orr), both))
    if tokens := pairs.tokens():
        differences.append(_token_difference(tokens))
    return differences


def compare_shares(
    before: Sequence[EvaluationRow], after: Sequence[EvaluationRow]
) -> list[Difference]:
    """Do what `compare` does for shares, without the draws that F1 needs.

    Raises:
        InputError: as `compare`.
    """
    return _share_differences(_pair_runs(before, after, "cluster"))


def _pair_runs(
    before: Sequence[EvaluationRow], after: Sequence[EvaluationRow], by: ClusterField
) -> "_Pairs":
    for rows in (before, after):
        if len(patterns := sorted({row.pattern for row in rows})) > 1:
            raise InputError(f"a run to compare holds one pattern, got {', '.join(patterns)}")
    judges = sorted({row.judge for row in (*before, *after)})
    if len(judges) > 1:
        raise InputError(
            f"the runs were judged by {' and '.join(judges)}; judge both alike with waltzrl rescore"
        )
    before, after = select_shared_rows(before, after), select_shared_rows(after, before)
    if not before:
        raise InputError("the two runs have no prompt in common; compare runs on the same set")
    return _Pairs(before, after, by)


def _share_differences(pairs: "_Pairs") -> list[Difference]:
    clusters = {name: pairs.clusters(rate) for name, rate in COMPARED.items()}
    return [_share_difference(name, cells) for name, cells in clusters.items() if cells]


def select_shared_rows(
    rows: Sequence[EvaluationRow], others: Sequence[EvaluationRow]
) -> list[EvaluationRow]:
    """Return rows that did not fail and whose very prompt the other run answered too, by case."""
    prompts = {r.case: r.judged.collaboration.prompt for r in others if r.judged is not None}
    return sorted(
        (
            row
            for row in rows
            if row.judged is not None and row.judged.collaboration.prompt == prompts.get(row.case)
        ),
        key=lambda row: row.case,
    )


class _Pairs:
    """The same cases in two runs, and which of them belong together."""

    def __init__(
        self, before: Sequence[EvaluationRow], after: Sequence[EvaluationRow], by: ClusterField
    ) -> None:
        self._before, self._after = before, after
        self._cluster = {
            row.case: cluster_of(row.judged.collaboration.prompt, by)
            for row in before
            if row.judged is not None
        }

    def clusters(self, *compared: RateDefinition) -> Clusters:
        """Count clusters by the four cells of `Pairs`, of one rate or of several side by side."""
        cells: dict[tuple[str, str], list[int]] = {}
        for start, rate in zip(range(0, 4 * len(compared), 4), compared, strict=True):
            first, second = rate.among(self._before), rate.among(self._after)
            for case, happened in first.items():
                became = second.get(case)
                if happened is not None and became is not None:
                    cluster = cells.setdefault(self._cluster[case], [0] * 4 * len(compared))
                    cluster[start + CELLS.index((happened, became))] += 1
        return Counter(map(tuple, cells.values()))

    def tokens(self) -> list[list[tuple[int, int]]]:
        """Group the tokens of both runs by cluster."""
        groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
        # Both runs have the same cases in the same order; see `select_shared_rows`.
        for first, second in zip(self._before, self._after, strict=True):
            if first.tokens is not None and second.tokens is not None:
                counted = (first.tokens, second.tokens)
                groups.setdefault(self._cluster[first.case], []).append(counted)
        return list(groups.values())


def _share_difference(metric: str, clusters: Clusters) -> Difference:
    pairs = pairs_of(clusters)
    change, p_value = clustered_difference(clusters)
    return Difference(
        metric=metric,
        before=pairs.first,
        after=pairs.second,
        change=change,
        p_value=p_value,
    )


def _f1_difference(unsafe: Pairs, benign: Pairs, both: Clusters) -> Difference:
    change, p_value = clustered_f1_difference(unsafe, benign, both)
    return Difference(
        metric="f1",
        before=harmonic(unsafe.first, benign.first),
        after=harmonic(unsafe.second, benign.second),
        change=change,
        p_value=p_value,
    )


def _token_difference(groups: Sequence[Sequence[tuple[int, int]]]) -> Difference:
    counted = [pair for group in groups for pair in group]
    return Difference(
        metric="tokens",
        before=fmean(first for first, _ in counted),
        after=fmean(second for _, second in counted),
        change=clustered_mean([[second - first for first, second in group] for group in groups]),
        p_value=None,
    )
