"""How far two judges agree beyond chance: Cohen's kappa with its interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from waltzrl.errors import InputError
from waltzrl.judges.saved import Labels

QUESTIONS = ("unsafe", "refuses", "overrefuses")
DRAWS = 2000
SEED = 20251


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two judges' answers to one question, compared."""

    scored: int
    """Replies that both judges labelled; only these are compared."""
    unscored: int
    """Replies that at least one judge left unscored."""
    observed: float | None
    """Share of equal answers; None if no reply was scored."""
    kappa: float | None
    """Cohen's kappa; None also if both judges always gave one and the same answer."""
    low: float | None = None
    high: float | None = None
    """Bounds of kappa's 95 % interval; None if kappa is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelComparison:
    """Two judges' labels of the same replies, compared."""

    shared: int
    """Replies that are in both files."""
    first_only: int
    second_only: int
    questions: Mapping[str, Agreement]
    """Agreement on `unsafe`, `refuses` and `overrefuses`."""


def agreement(first: Sequence[bool | None], second: Sequence[bool | None]) -> Agreement:
    """Compare answers: kappa = (p_observed - p_chance) / (1 - p_chance), Cohen (1960).

    The interval comes from draws of the four cell shares, Dirichlet(counts + 1/2). Unlike a
    bootstrap, they keep some uncertainty when the judges never disagree. The draws are seeded.

    Args:
        first: [N] one judge's answers, None where unscored; for example `Verdict.unsafe`.
        second: [N] the other's, in the same order.

    Raises:
        ValueError: the lists differ in length.
    """
    answers = Counter(pair for pair in zip(first, second, strict=True) if None not in pair)
    scored = answers.total()
    unscored = len(first) - scored
    if not scored:
        return Agreement(scored=0, unscored=unscored, observed=None, kappa=None)
    cells = [answers[a, b] for a in (True, False) for b in (True, False)]
    observed = (cells[0] + cells[3]) / scored
    kappa = _kappa([cell / scored for cell in cells])
    if kappa is None:
        return Agreement(scored=scored, unscored=unscored, observed=observed, kappa=None)
    low, high = _interval(cells)
    return Agreement(
        scored=scored,
        unscored=unscored,
        observed=observed,
        kappa=kappa,
        low=min(low, kappa),
        high=max(high, kappa),
    )


def compare_labels(
    first: Mapping[tuple[str, str], Labels], second: Mapping[tuple[str, str], Labels]
) -> LabelComparison:
    """Compare two judges' labels, question by question.

    Args:
        first: from a prompt and its reply to the labels by one judge.
        second: the same by the other; replies that only one has are counted and ignored.

    Raises:
        InputError: the two have no reply in common.
    """
    shared = [key for key in first if key in second]
    if not shared:
        raise InputError(
            "the two files have no reply in common; need lines with the same prompt and response"
        )
    return LabelComparison(
        shared=len(shared),
        first_only=len(first) - len(shared),
        second_only=len(second) - len(shared),
        questions={
            question: agreement(
                [first[key][number] for key in shared], [second[key][number] for key in shared]
            )
            for number, question in enumerate(QUESTIONS)
        },
    )


def _kappa(shares: Sequence[float]) -> float | None:
    """Return kappa of [4] shares that sum to one: yes-yes, yes-no, no-yes, no-no."""
    both_yes, only_first, only_second, both_no = shares
    first_yes, second_yes = both_yes + only_first, both_yes + only_second
    chance = first_yes * second_yes + (1 - first_yes) * (1 - second_yes)
    return None if chance == 1 else (both_yes + both_no - chance) / (1 - chance)


def _interval(cells: Sequence[int]) -> tuple[float, float]:
    random = Random(SEED)
    draws = []
    for _draw in range(DRAWS):
        gammas = [random.gammavariate(cell + 0.5, 1.0) for cell in cells]
        kappa = _kappa([gamma / sum(gammas) for gamma in gammas])
        if kappa is not None:
            draws.append(kappa)
    draws.sort()
    tail = round(len(draws) * 0.025)
    return draws[tail], draws[-1 - tail]
