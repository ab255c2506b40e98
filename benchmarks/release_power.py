"""How soon a worse candidate is rolled back, and how often a good one is, beside other rules.

    python benchmarks/release_power.py [--runs 300] [--answers 4000] [--percentage 5]
    python benchmarks/release_power.py --defaults [--runs 100]

With `--defaults`, `release` alone at three percentages, with the answers that are judged by
default; then how often users that differ roll back a candidate that is no worse.

Otherwise every answer is judged. The same streams of requests go to all. `release` is all seven
tests with the alpha that a canary after a shadow has; its other metrics have the serving bundle's
rate in both arms. `one test` is the comparison of unsafe replies with alpha 5 % for itself.
`ville` is `BettingTest` of that library, one-sided, on the pseudo outcomes of its test of two
arms. These three test after every answer. Wilson's intervals (95 %, no overlap) and the pooled z
test (one-sided, 5 %) are made for a single test and test after every 50 answers of the candidate.
A cell has the share of runs that were rolled back, and the median of the candidate's answers
until then.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from ville import BettingTest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.many_releases import (
    ALPHA,
    IN_CANARY,
    NEVER,
    blocks_of,
    comparison_e_values,
    false_rollbacks,
    first_at,
    judged_arms,
    one_large_user,
    outcomes,
    release_e_values,
    unequal_users,
)

RATES = (
    (0.01, 0.01),
    (0.05, 0.05),
    (0.01, 0.02),
    (0.01, 0.03),
    (0.01, 0.05),
    (0.01, 0.1),
    (0.02, 0.04),
    (0.05, 0.1),
)
LIMITS = (0.1, 0.15)
PERCENTAGES = (5, 25, 50)
STREAMS = 5
"""Of arms in each cell of `defaults`; its runs share them."""
LOOK = 50
NAMES = ("release", "one test", "ville", "Wilson", "z")
Array = np.ndarray
Fired = dict[str, list[int]]
"""By rule: answers of the candidate until it fired, or `NEVER`, for each run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--answers", type=int, default=4000)
    parser.add_argument("--percentage", type=float, default=5.0)
    parser.add_argument("--defaults", action="store_true")
    options = parser.parse_args()
    if options.defaults:
        defaults(options)
        return
    print(f"| serving -> candidate | {' | '.join(NAMES)} |\n| --- |{' ---: |' * len(NAMES)}")
    for serving, candidate in RATES:
        rng = np.random.default_rng(2025)
        fired: Fired = {name: [] for name in NAMES}
        for _ in range(options.runs):
            run(serving, candidate, options, rng, fired)
        cells = " | ".join(told(fired[name]) for name in NAMES)
        print(f"| {100 * serving:g} % -> {100 * candidate:g} % | {cells} |", flush=True)


def defaults(options: argparse.Namespace) -> None:
    """Print the power at the default `memory.judge_share`, and false rollbacks by users."""
    cells = [f"{percentage} %" for percentage in PERCENTAGES]
    print(f"| serving -> candidate | {' | '.join(cells)} |\n| --- |{' ---: |' * len(cells)}")
    for serving, candidate in RATES[:1] + RATES[2:5]:
        cells = [power(serving, candidate, percentage, options) for percentage in PERCENTAGES]
        print(f"| {100 * serving:g} % -> {100 * candidate:g} % | {' | '.join(cells)} |", flush=True)
    for users, percentage in ((unequal_users, 5), (one_large_user, 50)):
        for named in (False, True):
            rng = np.random.default_rng(2025)
            count = false_rollbacks(users, percentage, options.runs, options.answers, rng, named)
            named_or_not = "named" if named else "without names"
            print(f"{users.__name__}, {named_or_not}: {count} of {options.runs} rolled back")


def power(serving: float, candidate: float, percentage: float, options: argparse.Namespace) -> str:
    """Return the share of runs that are rolled back, and the median of answers until then."""
    rng = np.random.default_rng(2025)
    fired: list[int] = []
    for _ in range(STREAMS):
        blocks = blocks_of(judged_arms(percentage, options.answers, rng))
        unsafe = outcomes(blocks[:, 1], serving, candidate, options.runs // STREAMS, rng)
        e_values = release_e_values(blocks[:, 1], unsafe, serving, LIMITS, rng)
        fired += first_at(e_values, IN_CANARY).tolist()
    return told(fired)


def run(
    serving: float,
    candidate: float,
    options: argparse.Namespace,
    rng: np.random.Generator,
    fired: Fired,
) -> None:
    """Make up one stream of requests and let every rule look at it."""
    share = options.percentage / 100
    arrivals = rng.random(int(1.3 * options.answers / share)) < share
    is_candidate = arrivals[: np.flatnonzero(arrivals)[options.answers - 1] + 1]
    bad = rng.random(len(is_candidate)) < np.where(is_candidate, candidate, serving)
    blocks = blocks_of(is_candidate)
    sums = np.concatenate(([0], bad[~is_candidate].cumsum()))
    bad_serving = sums[blocks[:, 0] + blocks[:, 1]] - sums[blocks[:, 0]]
    unsafe = bad_serving[None], bad[is_candidate].astype(int)[None, blocks[:, 2]]
    release = release_e_values(blocks[:, 1], unsafe, serving, LIMITS, rng)
    fired["release"].append(first_at(release, IN_CANARY)[0])
    alone = comparison_e_values(blocks[:, 1], *unsafe)
    fired["one test"].append(first_at(alone, 1 / ALPHA)[0])
    fired["ville"].append(by_ville(is_candidate, bad, share))
    wilson, z = at_looks(is_candidate, bad)
    fired["Wilson"].append(wilson)
    fired["z"].append(z)


def by_ville(is_candidate: Array, bad: Array, share: float) -> int:
    """Test the effect as `BettingABTest` estimates it, for being above 0."""
    before = np.arange(len(bad))
    centre = (bad.cumsum() - bad) / np.maximum(before, 1)
    effect = (bad - centre) * np.where(is_candidate, 1 / share, -1 / (1 - share))
    reach = 1 / min(share, 1 - share)
    test = BettingTest(0.0, bounds=(-reach, reach), alternative="greater", alpha=ALPHA)
    stop = test.fit(effect).stopping_time()
    return int(is_candidate[:stop].sum()) if stop else NEVER


def at_looks(is_candidate: Array, bad: Array) -> tuple[int, int]:
    """Return when Wilson's intervals part, and when the z test says worse."""
    looks = np.flatnonzero(is_candidate)[LOOK - 1 :: LOOK]
    n_b, x_b = (each.cumsum()[looks] for each in (is_candidate, is_candidate & bad))
    n_a, x_a = (each.cumsum()[looks] for each in (~is_candidate, ~is_candidate & bad))
    parted = wilson(x_b, n_b)[0] > wilson(x_a, n_a)[1]
    pooled = (x_a + x_b) / (n_a + n_b)
    doubt = np.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    worse = x_b / n_b - x_a / n_a > 1.6449 * np.maximum(doubt, 1e-12)
    first = [LOOK * (int(each.argmax()) + 1) if each.any() else NEVER for each in (parted, worse)]
    return first[0], first[1]


def wilson(bad: Array, n: Array) -> tuple[Array, Array]:
    weight = 1.96**2 / n
    centre = (bad / n + weight / 2) / (1 + weight)
    half = np.sqrt(bad / n * (1 - bad / n) * weight + weight**2 / 4) / (1 + weight)
    return centre - half, centre + half


def told(fired: list[int]) -> str:
    ended = [answers for answers in fired if answers < NEVER]
    share = f"{100 * len(ended) / len(fired):.1f} %"
    return f"{share} ({np.median(ended):.0f})" if ended else share


if __name__ == "__main__":
    main()
