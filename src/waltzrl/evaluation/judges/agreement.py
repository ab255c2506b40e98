"""How far two judges agree beyond chance: Cohen's kappa with its interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from waltzrl.errors import InputError
from waltzrl.evaluation.intervals import DRAWS, SEED, from_draws
from waltzrl.evaluation.judges.saved import QUESTIONS, SavedVerdict, answers_of

ANSWERS = (True, False, None)
"""Yes, no and unscored: the rows and columns of a table."""
Table = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]


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
    """Bounds of kappa's 95 % interval are `low` and `high`; None if kappa is."""
    table: Table
    """Replies by the answer of the first judge (rows) and of the second (columns), each yes, no,
    unscored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictComparison:
    """Two judges' verdicts on the same replies, compared."""

    shared: int
    """Replies that both files have."""
    first_only: int
    second_only: int
    first_judge: str
    """The first judge's name; empty where the verdicts do not tell, several with commas."""
    second_judge: str
    questions: Mapping[str, Agreement]
    """Agreement on each label; and, for the replies that these rates count, `asr` on `unsafe` of
    unsafe prompts and `orr` on `overrefuses` of benign ones."""


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
    answers = Counter(zip(first, second, strict=True))
    cells = [answers[a, b] for a in (True, False) for b in (True, False)]
    scored = sum(cells)
    yes, no, unscored = [(answers[a, True], answers[a, False], answers[a, None]) for a in ANSWERS]
    counted = Agreement(
        scored=scored,
        unscored=len(first) - scored,
        observed=(cells[0] + cells[3]) / scored if scored else None,
        kappa=_compute_kappa([cell / scored for cell in cells]) if scored else None,
        table=(yes, no, unscored),
    )
    if counted.kappa is None:
        return counted
    drawn = from_draws(counted.kappa, _draw_kappas(cells), scored)
    return replace(counted, low=drawn.low, high=drawn.high)


def compare_verdicts(
    first: Mapping[tuple[str, str], SavedVerdict], second: Mapping[tuple[str, str], SavedVerdict]
) -> VerdictComparison:
    """Compare two judges' verdicts, question by question.

    Args:
        first: from a prompt and its reply to the verdict of one judge.
        second: the same by the other; replies that only one has are counted and ignored. Where both
            say whether a prompt is unsafe, the first counts.

    Raises:
        InputError: the two have no reply in common.
    """
    shared = [key for key in first if key in second]
    if not shared:
        raise InputError(
            "the two have no reply in common; need the same prompt and response in both"
        )
    pairs = [(first[key], second[key]) for key in shared]
    questions = {question: _agreement_on(question, pairs) for question in QUESTIONS}
    for rate, question, label in (("asr", "unsafe", "unsafe"), ("orr", "overrefuses", "benign")):
        counted = [pair for pair in pairs if (pair[0].label or pair[1].label) in {label, "mixed"}]
        questions[rate] = _agreement_on(question, counted)
    return VerdictComparison(
        shared=len(shared),
        first_only=len(first) - len(shared),
        second_only=len(second) - len(shared),
        first_judge=", ".join(sorted({verdict.judge for verdict, _ in pairs} - {""})),
        second_judge=", ".join(sorted({verdict.judge for _, verdict in pairs} - {""})),
        questions=questions,
    )


def _agreement_on(question: str, pairs: Sequence[tuple[SavedVerdict, SavedVerdict]]) -> Agreement:
    return agreement(
        [answers_of(first)[question] for first, _ in pairs],
        [answers_of(second)[question] for _, second in pairs],
    )


def _compute_kappa(shares: Sequence[float]) -> float | None:
    """Return kappa of [4] shares that sum to one: yes-yes, yes-no, no-yes, no-no."""
    both_yes, only_first, only_second, both_no = shares
    first_yes, second_yes = both_yes + only_first, both_yes + only_second
    chance = first_yes * second_yes + (1 - first_yes) * (1 - second_yes)
    return None if chance == 1 else (both_yes + both_no - chance) / (1 - chance)


def _draw_kappas(cells: Sequence[int]) -> list[float]:
    random = Random(SEED)
    draws = []
    for _draw in range(DRAWS):
        # Gamma draws that are divided by their sum are draws of Dirichlet's distribution.
        gammas = [random.gammavariate(cell + 0.5, 1.0) for cell in cells]
        kappa = _compute_kappa([gamma / sum(gammas) for gamma in gammas])
        if kappa is not None:
            draws.append(kappa)
    return draws
