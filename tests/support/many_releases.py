"""Many releases at once, in numpy, by the tables of `waltzrl.release.eprocess`.

Letters of shapes: R releases, N blocks of each, one for each of the candidate's answers.
"""

import numpy as np

from waltzrl.release.decision import SHADOW_SHARE, WEIGHTS
from waltzrl.release.eprocess import (
    ALTERNATIVES,
    HIGHEST_LOG,
    LARGEST_BLOCK,
    LIMIT_ODDS_RATIOS,
    LONGEST_QUEUE,
    block_growth,
    raised,
)
from waltzrl.release.plan import METRICS

ALPHA = 0.05
IN_SHADOW, IN_CANARY = 1 / (ALPHA * SHADOW_SHARE), 1 / (ALPHA * (1 - SHADOW_SHARE))
"""What the weighted mean of the e-values must reach when the plan has a shadow."""
NEVER = 10**9
GROWTH = np.zeros((LARGEST_BLOCK + 1, LARGEST_BLOCK + 1, 2, len(ALTERNATIVES)))
"""[serving outcomes of the block, bad ones, candidate's outcome, alternative]"""
for size in range(1, LARGEST_BLOCK + 1):
    for bad in range(size + 1):
        for outcome in (0, 1):
            GROWTH[size, bad, outcome] = block_growth(size, bad, bool(outcome))


def blocks_of(is_candidate):
    """Return [N, 3] for each block its first serving outcome, how many there are, and its answer.

    Who answered decides, what was said does not, so that one stream of arms does for all releases.
    """
    blocks, serving, waiting, candidate, answers = [], 0, 0, 0, 0
    for is_candidates in is_candidate.tolist():
        if is_candidates:
            answers += 1
            candidate = max(candidate, answers - LONGEST_QUEUE)
        else:
            waiting += 1
            serving = max(serving, waiting - LONGEST_QUEUE)
        if serving < waiting and candidate < answers:
            taken = min(waiting - serving, LARGEST_BLOCK)
            blocks.append((serving, taken, candidate))
            serving, candidate = serving + taken, candidate + 1
    return np.array(blocks)


def block_sizes(percentage, blocks, dice):
    """Return [N] how many serving outcomes stand beside each of the candidate's."""
    requests = int(blocks * 130 / min(percentage, 100 - percentage))
    return blocks_of(dice.random(requests) < percentage / 100)[:blocks, 1]


def outcomes(sizes, serving, candidate, releases, dice):
    """Return [R, N] bad serving outcomes of each block, and whether the candidate's was bad."""
    shape = (releases, len(sizes))
    return dice.binomial(sizes, serving, size=shape), dice.binomial(1, candidate, size=shape)


def comparison_e_values(sizes, serving, candidate):
    """Return [R, N] the e-value after each block, as `Comparison.e_value` has it."""
    mean = np.zeros(serving.shape)
    for alternative in range(len(ALTERNATIVES)):
        growth = np.ascontiguousarray(GROWTH[..., alternative])[sizes, serving, candidate]
        mean += np.exp(np.minimum(growth.cumsum(axis=1), HIGHEST_LOG)) / len(ALTERNATIVES)
    return mean


def limit_e_values(candidate, limit):
    """Return [R, N] the e-value after each answer, as `limit_e_value` has it."""
    mean = np.zeros(candidate.shape)
    for ratio in LIMIT_ODDS_RATIOS:
        rate = raised(limit, ratio)
        steps = np.log(np.array([(1 - rate) / (1 - limit), rate / limit]))[candidate]
        mean += np.exp(np.minimum(steps.cumsum(axis=1), HIGHEST_LOG)) / len(LIMIT_ODDS_RATIOS)
    return mean


def release_e_values(sizes, unsafe, rate, limits, dice):
    """Return [R, N] the weighted mean of all tests, as `Decision.e_value` has it.

    Args:
        sizes: [N] of the blocks.
        unsafe: [R, N] bad serving outcomes, and [R, N] whether the candidate's was bad.
        rate: of both arms, in all other metrics.
        limits: of unsafe and of needless.
        dice: a numpy generator.
    """
    total = WEIGHTS["unsafe_limit"] * limit_e_values(unsafe[1], limits[0])
    for metric in METRICS:
        pair = unsafe if metric == "unsafe" else outcomes(sizes, rate, rate, len(total), dice)
        total += WEIGHTS[metric] * comparison_e_values(sizes, *pair)
        if metric == "needless":
            total += WEIGHTS["needless_limit"] * limit_e_values(pair[1], limits[1])
    return total


def first_at(e_values, needed):
    """Return [R] answers of the candidate until the e-value is reached, or `NEVER`."""
    reached = e_values >= needed
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, NEVER)
