"""Many releases at once, in numpy, by the tables of `waltzrl.operations.release.eprocess`.

Letters of shapes: R releases, N blocks of each, one for each of the candidate's answers.
"""

from collections import Counter

import numpy as np

from support.recorders import answer, said
from waltzrl.operations.online.judging import OnlineJudge
from waltzrl.operations.release.decision import SHADOW_SHARE, WEIGHTS
from waltzrl.operations.release.eprocess import (
    ALTERNATIVES,
    HIGHEST_LOG,
    LARGEST_BLOCK,
    LIMIT_ODDS_RATIOS,
    LONGEST_QUEUE,
    block_growth,
    raise_rate,
)
from waltzrl.operations.release.evidence import Evidence, updated
from waltzrl.operations.release.plan import METRICS, load_plan
from waltzrl.operations.release.state import Observation
from waltzrl.store.memory.settings import MemoryConfig

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
    sizes = np.broadcast_to(sizes, serving.shape)
    places = np.ravel_multi_index((sizes, serving, candidate), GROWTH.shape[:-1])
    mean = np.zeros(serving.shape)
    for alternative in GROWTH.reshape(-1, len(ALTERNATIVES)).T.copy():
        mean += _exponentials(alternative.take(places))
    return mean / len(ALTERNATIVES)


def limit_e_values(candidate, limit):
    """Return [R, N] the e-value after each answer, as `limit_e_value` has it."""
    mean = np.zeros(candidate.shape)
    for ratio in LIMIT_ODDS_RATIOS:
        rate = raise_rate(limit, ratio)
        steps = np.log(np.array([(1 - rate) / (1 - limit), rate / limit]))
        mean += _exponentials(steps.take(candidate))
    return mean / len(LIMIT_ODDS_RATIOS)


def _exponentials(steps):
    """Return [R, N] the exponentials of the sums up to each block; overwrite the steps."""
    np.cumsum(steps, axis=1, out=steps)
    np.minimum(steps, HIGHEST_LOG, out=steps)
    return np.exp(steps, out=steps)


def release_e_values(sizes, unsafe, rate, limits, dice):
    """Return [R, N] the weighted mean of all tests, as `Decision.e_value` has it.

    Args:
        sizes: [N] of the blocks.
        unsafe: [R, N] bad serving outcomes, and [R, N] whether the candidate's was bad.
        rate: of both arms, in all other metrics.
        limits: of unsafe replies and of over-refusals.
        dice: a numpy generator.
    """
    total = WEIGHTS["unsafe_limit"] * limit_e_values(unsafe[1], limits[0])
    for metric in METRICS:
        pair = unsafe if metric == "unsafe" else outcomes(sizes, rate, rate, len(total), dice)
        total += WEIGHTS[metric] * comparison_e_values(sizes, *pair)
        if metric == "overrefusal":
            total += WEIGHTS["overrefusal_limit"] * limit_e_values(pair[1], limits[1])
    return total


def first_at(e_values, needed):
    """Return [R] answers of the candidate until the e-value is reached, or `NEVER`."""
    reached = e_values >= needed
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, NEVER)


SAID = said()
PLAN = load_plan("seven_days")


def judged_arms(percentage, answers, dice):
    """Return which answers are the candidate's, of those that are judged by default.

    Args:
        percentage: of the traffic, that the candidate answers.
        answers: of the candidate.
        dice: a numpy generator.
    """
    judge = OnlineJudge(NeverAsked(), MemoryConfig(url="").judge_share, never_told)
    arms, first = [], int(dice.integers(10**9))
    is_candidate = dice.random(int(answers * 130 / percentage)) < percentage / 100
    last = np.flatnonzero(is_candidate)[answers - 1] + 1
    for number, arm in enumerate(is_candidate[:last].tolist()):
        of = "candidate" if arm else "serving"
        if judge.samples(answer(first + number, SAID, release="r", arm=of)):
            arms.append(arm)
    return np.array(arms)


class NeverAsked:
    """A judge of answers that are only counted."""

    name = "never asked"

    async def judge(self, prompt, reply):
        raise AssertionError


async def never_told(exchange, verdict, second):
    raise AssertionError


def user_traffic(shares, rates, answers, dice):
    """Return [answers] of whom each answer is, and whether it is bad in either arm.

    Args:
        shares: [users] of the traffic.
        rates: [users] of bad outcomes.
        answers: how many.
        dice: a numpy generator.
    """
    users = dice.choice(len(shares), answers, p=shares)
    return users, dice.random(answers) < rates[users]


def unequal_users(dice):
    """Two hundred users, alike in traffic, most of whom never get a bad answer; 5 % is bad."""
    return np.full(200, 1 / 200), dice.beta(0.3, 5.7, 200)


def one_large_user(dice):
    """A user with 30 % of the traffic and 10 % bad answers, among 199 with 1 %."""
    return np.array([0.3] + [0.7 / 199] * 199), np.array([0.1] + [0.01] * 199)


def user_observations(users, bad, in_candidate, named):
    """Return what is observed.

    Args:
        users: [N] of whom each answer is.
        bad: [N] whether it is unsafe.
        in_candidate: [users] whose answers are the candidate's.
        named: whether the client names its users.
    """
    return [
        Observation(
            release="r",
            arm="candidate" if in_candidate[user] else "serving",
            outcomes={"unsafe": is_bad},
            subject=f"u{user}" if named else "",
        )
        for user, is_bad in zip(users.tolist(), bad.tolist(), strict=True)
    ]


def erring_judge(answers, dice, second):
    """Return [2 answers] observations of both arms in turn, with 1 % unsafe replies in both.

    Of the others the judge calls 1 % of the serving bundle's and 3 % of the candidate's unsafe, and
    a second judge 2 % of those.
    """
    unsafe = dice.random(2 * answers) < 0.01
    alarms = dice.random(2 * answers) < np.tile([0.01, 0.03], answers)
    contradicts = ~unsafe & (dice.random(2 * answers) < 0.98)
    return [
        Observation(
            release="r",
            arm=("serving", "candidate")[number % 2],
            outcomes={"unsafe": bool(unsafe[number] or alarms[number])},
            rejudged={"unsafe": not contradicts[number]}
            if second and (unsafe[number] or alarms[number])
            else {},
        )
        for number in range(2 * answers)
    ]


def rolled_back(observations, look=20):
    """Return whether a canary is ever rolled back, looked at after every `look` answers."""
    evidence, answered = Evidence(), Counter()
    for start in range(0, len(observations), look):
        evidence = updated(evidence, observations[start : start + look], PLAN, answered)
        comparison = evidence.comparison("candidate", "unsafe")
        if WEIGHTS["unsafe"] * comparison.e_value >= IN_CANARY:
            return True
    return False


def false_rollbacks(of, percentage, runs, answers, dice, named=True):
    """Return how many of `runs` canaries without a difference are rolled back."""
    count = 0
    for _ in range(runs):
        shares, rates = of(dice)
        traffic = user_traffic(shares, rates, answers, dice)
        in_candidate = dice.random(len(shares)) < percentage / 100
        count += rolled_back(user_observations(*traffic, in_candidate, named))
    return count
