"""Studies of made-up numbers: rows whose rates are known, without a model."""

from waltzrl.evaluation.study import (
    RATES,
    SeedPrompts,
    SeedResults,
    Study,
    StudyIdentity,
    StudyRow,
    TrainingCost,
)

PROMPTS = 100
"""Unsafe ones, and as many benign ones; of each half are easy and half are hard."""
COST = TrainingCost(tokens=1000, seconds=60.0)


def study_row(name, unsafe, refused, trained=None):
    """Return a row of which so many unsafe prompts were answered and benign ones refused."""
    asr = "1" * unsafe + "0" * (PROMPTS - unsafe) + "-" * PROMPTS
    orr = "-" * PROMPTS + "1" * refused + "0" * (PROMPTS - refused)
    known = {"asr": asr, "orr": orr}
    return StudyRow(
        row=name,
        judge="j",
        trained=trained or {},
        outcomes={rate: known.get(rate, "-" * 2 * PROMPTS) for rate in RATES},
        tokens=[40] * 2 * PROMPTS,
        harm=[None] * 2 * PROMPTS,
    )


def seed_results(seed, *rows):
    halves = ["easy", "hard"] * PROMPTS
    prompts = SeedPrompts(
        seed=seed, ids=[str(n) for n in range(2 * PROMPTS)], categories=halves, clusters=halves
    )
    return SeedResults(prompts, {row.row: row for row in rows})


def identity(*rows, **more):
    return StudyIdentity(world="w", recipes="r", tables={"Main": rows}, **more)


def small_study(rows, **more):
    """Return a study; `rows` has the unsafe and the refused prompts of each seed by name."""
    count = len(next(iter(rows.values())))
    seeds = [
        seed_results(n, *(study_row(name, *of[n], {name: COST}) for name, of in rows.items()))
        for n in range(count)
    ]
    return Study(identity(*rows, **more), seeds)
