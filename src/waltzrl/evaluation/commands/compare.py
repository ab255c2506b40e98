"""`waltzrl compare`: two evaluations, prompt by prompt."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import (
    AsJson,
    Cluster,
    Evaluation,
    open_terminal,
    print_json,
)

if TYPE_CHECKING:
    from waltzrl.evaluation import EvaluationRow


def compare(
    before: Evaluation,
    after: Evaluation,
    pattern: Annotated[
        str | None, typer.Option(help="Which pattern, or BEFORE,AFTER; needed if there are many.")
    ] = None,
    cluster: Cluster = "cluster",
    as_json: AsJson = False,
) -> None:
    """Show what changed from one evaluation to another, and whether it could be chance.

    **Examples**

    `waltzrl compare runs/base runs/trained --pattern collaborate`

    `waltzrl compare runs/trained runs/trained --pattern base,collaborate`
    """
    from waltzrl.evaluation import comparison_table
    from waltzrl.evaluation.comparison import compare as compare_rows

    first, _, second = (name.strip() for name in (pattern or "").partition(","))
    rows = _read_pattern_rows(before, first), _read_pattern_rows(after, second or first)
    differences = compare_rows(*rows, cluster)
    if as_json:
        print_json([asdict(difference) for difference in differences])
    else:
        open_terminal().print(comparison_table(differences))


def _read_pattern_rows(folder: Path, pattern: str) -> "list[EvaluationRow]":
    from waltzrl.evaluation import read_evaluation

    rows = read_evaluation(folder)
    chosen = [row for row in rows if pattern in {"", row.pattern}]
    if not chosen:
        known = ", ".join(sorted({row.pattern for row in rows}))
        raise InputError(f"{folder} has no pattern {pattern!r}; it has {known}")
    return chosen
