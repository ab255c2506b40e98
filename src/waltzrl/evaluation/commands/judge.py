"""`waltzrl judge` labels saved replies; `waltzrl agreement` compares two files of labels."""

import asyncio
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzrl.errors import InputError
from waltzrl.foundation.options import AsJson, JudgeName, JudgePrompts, Settings, print_json

if TYPE_CHECKING:
    from waltzrl.evaluation.judges.agreement import VerdictComparison
    from waltzrl.evaluation.settings import EvaluationPrices

LabelFile = Annotated[
    Path,
    typer.Argument(help="Folder of `waltzrl evaluate`, or lines of `waltzrl judge` or of people."),
]


def judge(
    file: Annotated[Path, typer.Argument(help="JSON Lines with prompt, response and label.")],
    name: JudgeName = "refusal",
    judge_prompts: JudgePrompts = False,
    costs: Annotated[
        Path | None, typer.Option(help="Folder whose ledger gets what the judge's model costs.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Add unsafe, refuses, overrefuses and non_answer (true, false or null) to saved replies.

    Prints one line for every line of the file, in order.

    **Example**

    `waltzrl judge replies.jsonl --judge refusal > labelled.jsonl`

    `waltzrl judge replies.jsonl --judge llm:guard@http://localhost:8000/v1 --costs runs/judged
    --set 'prices.guard={input=0.1,output=0.4}' > labelled.jsonl`
    """
    from waltzrl.evaluation.settings import EvaluationPrices
    from waltzrl.foundation.validation import validate_table, with_overrides

    prices = validate_table(EvaluationPrices, with_overrides({}, settings or []), "--set")
    asyncio.run(_label_file(file, name, costs, prices, judges_prompts=judge_prompts))


def agreement(first: LabelFile, second: LabelFile, as_json: AsJson = False) -> None:
    """Compare two judges' labels of the same replies: agreement, and Cohen's kappa.

    Replies are matched by prompt and text. Kappa has a 95 % interval, from Dirichlet draws. The
    JSON corrects rates for the second judge's errors: see `--judge-errors` of `waltzrl evaluate`.

    **Examples**

    `waltzrl agreement by-people.jsonl by-judge.jsonl`

    `waltzrl agreement by-people.jsonl runs/evaluation --json > errors.json`
    """
    from waltzrl.evaluation.judges.agreement import compare_verdicts
    from waltzrl.evaluation.rows import read_verdicts

    comparison = compare_verdicts(read_verdicts(first), read_verdicts(second))
    print_json(asdict(comparison)) if as_json else print(
        _make_agreement_table(comparison, first, second)
    )


async def _label_file(
    file: Path, name: str, costs: Path | None, prices: "EvaluationPrices", *, judges_prompts: bool
) -> None:
    from waltzrl.evaluation.costs import charge_judge
    from waltzrl.evaluation.judges.opening import judge_place, open_judge
    from waltzrl.evaluation.judges.saved import judge_lines
    from waltzrl.foundation.jsonl import read_text

    lines = read_text(file).rstrip().split("\n")
    if lines == [""]:
        raise InputError(f"{file} holds no replies; give a file with one JSON object per line")
    async with open_judge(name, judges_prompts=judges_prompts, cached=True) as opened:
        with (
            nullcontext(opened)
            if costs is None
            else charge_judge(opened, judge_place(name), f"judge/{name}/{file}", prices, costs)
        ) as judge:
            async for line in judge_lines(lines, judge, source=str(file)):
                print(line)


def _make_agreement_table(comparison: "VerdictComparison", first: Path, second: Path) -> str:
    lines = [
        f"{comparison.shared} replies in both, {comparison.first_only} only in {first}, "
        f"{comparison.second_only} only in {second}",
        f"{'question':<12}{'n':>6}{'unscored':>10}{'agreement':>11}  kappa (95 % interval)",
    ]
    for question, result in comparison.questions.items():
        observed = "-" if result.observed is None else f"{result.observed * 100:.1f} %"
        kappa = "-"
        if result.kappa is not None:
            kappa = f"{result.kappa:.2f} ({result.low:.2f} to {result.high:.2f})"
        lines.append(
            f"{question:<12}{result.scored:>6}{result.unscored:>10}{observed:>11}  {kappa}"
        )
    lines += [
        "asr: unsafe, of replies to unsafe prompts; orr: overrefuses, of replies to benign ones",
        f"below, rows are the answers in {first}, columns those in {second}",
    ]
    for question, result in comparison.questions.items():
        if result.scored:
            lines.append(f"{question:<12}{'yes':>10}{'no':>10}{'unscored':>10}")
            for answer, counts in zip(("yes", "no", "unscored"), result.table, strict=True):
                lines.append(f"{answer:>12}" + "".join(f"{count:>10}" for count in counts))
    return "\n".join(lines)
