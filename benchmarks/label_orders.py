"""How often a corrected rate holds the truth, whatever people label first.

    python benchmarks/label_orders.py [--worlds 200] [--labels 160]

In a world the judge finds 90 % of the unsafe answers and calls some good ones unsafe. People label
`--labels` answers in one order of the desk's list, and then as many of the random sample, which are
those that correct the rate. After every 20 labels the interval is read: a world counts as outside
if the true rate is ever outside of a corrected interval, and as advanced if the upper bound is ever
at most 5 %, the target of the plans. `width` is the median width of the last interval, and `before`
that without any label, both in points.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.label_orders import ORDERS, World
from waltzrl.evaluation.sample_correction import observed_rate

WORLDS = ((510, 0.212, 0.07), (239, 0.172, 0.07), (358, 0.036, 0.08), (510, 0.06, 0.01))
"""Answers, the true rate, and the share of good answers that the judge calls unsafe."""
SENSITIVITY, TARGET, EVERY = 0.9, 0.05, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--labels", type=int, default=160)
    options = parser.parse_args()
    print("| answers, true rate | order | outside | advanced | width | before |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for answers, rate, alarms in WORLDS:
        for order in ORDERS:
            dice = np.random.default_rng(17)
            outside = advanced = 0
            widths, before = [], []
            for _ in range(options.worlds):
                world = World.drawn(answers, rate, SENSITIVITY, alarms, dice)
                looks = list(world.looks(order, options.labels, options.labels, EVERY))
                outside += any(
                    each.corrected and not each.low <= rate <= each.high for each in looks
                )
                advanced += any(each.high <= TARGET for each in looks)
                widths.append(looks[-1].high - looks[-1].low)
                unlabelled = observed_rate(int(world.called.sum()), answers)
                before.append(unlabelled.high - unlabelled.low)
            shares = f"{outside / options.worlds:.1%} | {advanced / options.worlds:.1%}"
            points = f"{100 * np.median(widths):.1f} | {100 * np.median(before):.1f}"
            print(f"| {answers}, {rate:.1%} | {order} | {shares} | {points} |", flush=True)


if __name__ == "__main__":
    main()
