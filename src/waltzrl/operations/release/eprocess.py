"""Evidence that a rate is too high, valid however often it is checked.

An e-process starts at 1, stays below 1 in expectation while nothing is wrong, and grows
exponentially when something is. By Ville's inequality it ever reaches 1/alpha with probability
alpha at most: checking often, or stopping because of the result, costs nothing.

    Comparison      is the candidate's rate higher than that of the bundle that serves?
    limit_e_value   is one rate higher than a limit?

Turner, Ly, Grünwald (2021): Generic E-variables for exact sequential k-sample tests that allow
for optional stopping. arXiv 2106.02693. A block is one outcome of the candidate (b) and k of the
serving bundle (a). For an alternative q_b > q_a, with p0 = (k q_a + q_b) / (k + 1),

    S = q_b(y_b) / p0(y_b) * prod_i q_a(y_i) / p0(y_i)

With v = p0 (1 - p0) and d = p0 - q_a, so that q_b - p0 = k d, independent outcomes have

    E[S] = (1 + (th_b - p0) k d / v) prod_i (1 - (th_i - p0) d / v)

k + 1 factors whose mean is 1 + (th_b - mean th_i) k d / v / (k + 1); hence E[S] <= 1 by the
inequality of the means whenever the candidate's rate is at most the mean of the serving rates in
its block, even while the rates drift.
"""

from functools import cache
from itertools import product
from math import exp, log, log1p

import msgspec

BASE_RATES = (0.005, 0.015, 0.05, 0.15)
ODDS_RATIOS = (1.5, 2.5, 5.0, 20.0)
"""Alternatives of the candidate's odds of a bad outcome, relative to the serving bundle's."""
LIMIT_ODDS_RATIOS = (1.25, 1.5, 2.0, 3.0, 6.0, 20.0)
"""Alternatives of the odds of a rate beyond the limit, relative to those of the limit."""
LARGEST_BLOCK = 19
"""Most serving outcomes in a block; at 5 % there are 19 for each outcome of the candidate."""
LONGEST_QUEUE = 10 * LARGEST_BLOCK
"""Most outcomes that wait for a block; the oldest are dropped, good or bad."""
HIGHEST_LOG = 690.0
"""exp of this is still finite, and a number in JSON."""


def raise_rate(rate: float, odds_ratio: float) -> float:
    """Return the rate whose odds are `odds_ratio` times the odds of `rate`."""
    odds = odds_ratio * rate / (1 - rate)
    return odds / (1 + odds)


ALTERNATIVES = tuple(
    (base, raise_rate(base, ratio)) for base, ratio in product(BASE_RATES, ODDS_RATIOS)
)
"""[A] pairs (q_a, q_b)."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The e-process of one metric: the candidate against the bundle that serves.

    How many outcomes a block takes depends on how many wait, never on what they are. Outcomes
    wait as a string of 0 (good) and 1 (bad), oldest first; one of the two strings is empty.
    """

    log_wealth: tuple[float, ...] = (0.0,) * len(ALTERNATIVES)
    """[A] log of the product of S over all blocks, for each of the alternatives."""
    serving: str = ""
    candidate: str = ""

    @property
    def e_value(self) -> float:
        """The mean over the alternatives."""
        return mean_exp(self.log_wealth)

    def after_serving(self, bad: bool) -> "Comparison":
        waiting = self.serving + "01"[bad]
        if self.candidate:
            return self._after_block(waiting, self.candidate)
        return msgspec.structs.replace(self, serving=waiting[-LONGEST_QUEUE:])

    def after_candidate(self, bad: bool) -> "Comparison":
        waiting = self.candidate + "01"[bad]
        if self.serving:
            return self._after_block(self.serving, waiting)
        return msgspec.structs.replace(self, candidate=waiting[-LONGEST_QUEUE:])

    def _after_block(self, serving: str, candidate: str) -> "Comparison":
        block = serving[:LARGEST_BLOCK]
        growth = block_growth(len(block), block.count("1"), candidate[0] == "1")
        return Comparison(
            log_wealth=tuple(map(sum, zip(self.log_wealth, growth, strict=True))),
            serving=serving[LARGEST_BLOCK:],
            candidate=candidate[1:],
        )


@cache
def block_growth(k: int, bad_serving: int, bad_candidate: bool) -> tuple[float, ...]:
    """Return log S of a block for each of the alternatives.

    Args:
        k: serving outcomes in the block.
        bad_serving: how many of them were bad.
        bad_candidate: whether the candidate's was.

    Returns:
        [A] in nats.
    """
    growth = []
    for q_a, q_b in ALTERNATIVES:
        p0 = (k * q_a + q_b) / (k + 1)
        candidate = _log_ratio(q_b, p0, bad_candidate, 1)
        # log S: the candidate's factor q_b / p0, and the k factors q_a / p0 of the serving bundle.
        growth.append(candidate + _log_ratio(q_a, p0, bad_serving, k))
    return tuple(growth)


def limit_e_value(bad: int, n: int, limit: float) -> float:
    """Return the evidence that a rate is above `limit`: the mean over some higher rates.

    It depends only on the counts, not on their order.
    """
    # At 0 or 1 the logarithms below are infinite.
    limit = min(max(limit, 1e-6), 1 - 1e-6)
    higher = (raise_rate(limit, ratio) for ratio in LIMIT_ODDS_RATIOS)
    return mean_exp([_log_ratio(rate, limit, bad, n) for rate in higher])


def mean_exp(logs: tuple[float, ...] | list[float]) -> float:
    """Return mean(exp(logs)), at most e to the `HIGHEST_LOG`."""
    highest = max(logs)
    # The highest is taken out, so that exp cannot overflow.
    mean = highest + log(sum(exp(value - highest) for value in logs) / len(logs))
    return exp(min(mean, HIGHEST_LOG))


def _log_ratio(rate: float, reference: float, bad: int, n: int) -> float:
    """Log likelihood of `bad` of `n` under `rate`, less that under `reference`."""
    return bad * log(rate / reference) + (n - bad) * (log1p(-rate) - log1p(-reference))
