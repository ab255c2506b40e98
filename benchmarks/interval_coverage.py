"""How often the 95 % interval of a rate holds the true rate, where prompts come in clusters.

    python benchmarks/interval_coverage.py [--worlds 1000] [--seed 0]

In a world, each cluster (a goal, a topic) has a rate of its own from a Beta distribution, and each
of its prompts happens with that rate. `waltzrl` is the interval of `waltzrl evaluate`; `bootstrap`
resamples whole clusters and takes percentiles; `Wilson` counts prompts as if they were independent.
"""

import argparse
from collections import Counter
from random import Random

from waltzrl.evaluation.clusters import Clusters, clustered_share
from waltzrl.evaluation.intervals import Estimate, from_draws, share

CLUSTERS, PROMPTS = (10, 30, 100), (5, 20)
RATES = (0.05, 0.25)
"""True rates: the mean over clusters."""
CORRELATION = 0.33
"""Of two prompts of one cluster: that of a Beta distribution with alpha + beta = 2."""
RESAMPLED = 500
Intervals = dict[str, Estimate]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = ("waltzrl", "bootstrap", "Wilson")
    print(f"| clusters x prompts, rate | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for count in CLUSTERS:
        for prompts in PROMPTS:
            for rate in RATES:
                rng = Random(f"{options.seed}/{count}/{prompts}/{rate}")
                held: Counter[str] = Counter()
                for _ in range(options.worlds):
                    for name, interval in intervals(world(count, prompts, rate, rng), rng).items():
                        held[name] += holds(interval, rate)
                shares = " | ".join(f"{held[name] / options.worlds:.1%}" for name in names)
                print(f"| {count} x {prompts}, {rate:.0%} | {shares} |", flush=True)


def world(count: int, prompts: int, rate: float, rng: Random) -> Clusters:
    """Draw `count` clusters of (yes, no)."""
    spread = 1 / CORRELATION - 1
    clusters: Clusters = Counter()
    for _ in range(count):
        own = rng.betavariate(rate * spread, (1 - rate) * spread)
        yes = sum(rng.random() < own for _ in range(prompts))
        clusters[yes, prompts - yes] += 1
    return clusters


def intervals(clusters: Clusters, rng: Random) -> Intervals:
    each = [yes / (yes + no) for yes, no in clusters.elements()]
    value = sum(each) / len(each)
    draws = [sum(rng.choices(each, k=len(each))) / len(each) for _ in range(RESAMPLED)]
    yes, no = (int(sum(cells)) for cells in zip(*clusters.elements(), strict=True))
    return {
        "waltzrl": clustered_share(clusters),
        "bootstrap": from_draws(value, draws, yes + no),
        "Wilson": share(yes, yes + no),
    }


def holds(interval: Estimate, rate: float) -> bool:
    return (
        interval.low is not None
        and interval.high is not None
        and (interval.low <= rate <= interval.high)
    )


if __name__ == "__main__":
    main()
