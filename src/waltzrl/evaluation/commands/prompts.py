"""`waltzrl generate`, `import` and `check-leaks`: prepare prompts for training and evaluation."""

from pathlib import Path
from typing import Annotated

import typer

from waltzrl.evaluation.data.duplicates import require_disjoint
from waltzrl.evaluation.data.generator.generate import write_dataset, write_splits
from waltzrl.evaluation.data.importers.sets import import_set
from waltzrl.foundation.jsonl import read_prompts, write_lines


def generate(
    out: Annotated[Path, typer.Argument(help="JSON Lines file to write; with --split a folder.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 42,
    split: Annotated[
        bool, typer.Option("--split", help="Write train, validation and test, 70, 15 and 15 %.")
    ] = False,
) -> None:
    """Write the synthetic data set: 20,020 prompts, unsafe, over-refusal and safe.

    **Examples**

    `waltzrl generate prompts.jsonl --seed 42`

    `waltzrl generate data/generated --split`
    """
    if not split:
        write_dataset(out, seed)
        print(f"generated: {out}")
        return
    counts = write_splits(out, seed)
    total = sum(counts.values())
    for path, count in counts.items():
        print(f"generated: {path}, {count:,} prompts, {count / total:.1%}")


def import_prompts(
    name: Annotated[str, typer.Argument(help="A public set, such as xstest or or-bench.")],
    path: Annotated[Path, typer.Argument(help="The file as its authors publish it.")],
    out: Annotated[Path, typer.Argument(help="JSON Lines file to write.")],
) -> None:
    """Convert a public set to JSON Lines.

    **Example**

    `waltzrl import xstest xstest_prompts.csv xstest.jsonl`
    """
    prompts = import_set(name, path)
    write_lines(out, prompts)
    print(f"imported: {len(prompts)} prompts into {out}")


def check_leaks(
    train: Annotated[Path, typer.Argument(help="Prompts to learn from, JSON Lines.")],
    test: Annotated[Path, typer.Argument(help="Prompts to be tested on, JSON Lines.")],
) -> None:
    """Fail if a test prompt is, nearly word for word, among the training prompts.

    **Example**

    `waltzrl check-leaks train.jsonl test.jsonl`
    """
    test_prompts = read_prompts(test)
    require_disjoint(read_prompts(train), test_prompts)
    print(f"no leak: none of {len(test_prompts)} test prompts is in the training prompts")
