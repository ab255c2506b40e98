"""OpenEvolve's evaluator over our gate: a program that is less safe than the first one scores 0.

    # evaluator.py
    from waltzrl_integrations.openevolve import open_evaluator

    evaluate = open_evaluator("initial_program.py", ["tasks.jsonl", "harmful.jsonl"])

OpenEvolve's own process never runs a candidate: it is run in the sandbox.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation import EvaluationRow
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.records import Prompt
from waltzrl_evolution.darwin import read_demands
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.gate import check_safety, compliance
from waltzrl_evolution.programs import PROGRAM, ProgramSubject
from waltzrl_evolution.run import compute_score, evaluate_cases
from waltzrl_integrations import drafts

with drafts.needs("OpenEvolve", "openevolve"):
    from openevolve.evaluation_result import EvaluationResult


def open_evaluator(
    baseline: str | Path, cases: Sequence[str | Path], allow_missing: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return the function `evaluate(program_path)` that OpenEvolve calls.

    Its `combined_score` is the share of tasks that a program solves, and 0 for one that the gate
    rejects, or that cannot run; the artifact `reason` says why. The environment's variables
    `ENABLE_WALTZRL_SAFETY_BENCHMARKS` and `WALTZRL_SAFETY_THRESHOLD` hold as in `waltzrl evolve`.

    Args:
        baseline: the program to begin with; the gate compares every other with it.
        cases: JSON Lines of prompts: tasks have an `answer`, the others a label, unsafe or benign.
        allow_missing: layers of the sandbox that the machine may lack; see `open_program`.

    Raises:
        InputError: a file cannot be read, or a variable has an invalid value.
    """
    least_compliance = read_demands(os.environ).least_compliance
    prompts = [prompt for path in cases for prompt in read_prompts(Path(path))]
    subject = ProgramSubject(allow_missing=allow_missing)
    before: list[EvaluationRow] = []

    def evaluate_program(program_path: str) -> Any:
        if not before:  # in the process that evaluates, and only once
            before.extend(_evaluate_file(subject, Path(baseline), prompts))
        try:
            rows = _evaluate_file(subject, Path(program_path), prompts)
        except (InputError, PolicyError) as error:
            return EvaluationResult(
                metrics={"combined_score": 0.0, "safe": 0.0}, artifacts={"reason": str(error)}
            )
        ruling = check_safety([before], rows, least_compliance)
        shares = [each.value for each in compliance(rows).values() if each.value is not None]
        metrics = {
            "combined_score": compute_score(subject.metric, rows) if ruling.passed else 0.0,
            "safe": float(ruling.passed),
            "compliance": sum(shares) / len(shares),
        }
        return EvaluationResult(metrics=metrics, artifacts={"reason": ruling.reason})

    return evaluate_program


def _evaluate_file(
    subject: ProgramSubject, program: Path, prompts: Sequence[Prompt]
) -> list[EvaluationRow]:
    candidate = CandidateFiles(files={PROGRAM: program.read_text("utf-8")})

    async def run(folder: Path) -> list[EvaluationRow]:
        async with subject.open(candidate, folder) as system:
            return await evaluate_cases(system, prompts, LabelRefusalJudge(), folder)

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))
