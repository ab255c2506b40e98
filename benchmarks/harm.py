"""Do reviewers harm a safe model? Right refusals challenged, and stage 2 against stage 1.

    python benchmarks/harm.py DATA_DIR [--recipe FILE] [--set KEY=VALUE ...] [--limit 1000]

DATA_DIR holds public sets as JSON Lines, `prompt` and `label`. Without a recipe the rules are
measured, as they are by default and with `rules_flag_overrefusals`. Prints a Markdown table a
reviewer, in percent with Wilson's 95 % intervals; of a set at most `--limit` prompts are drawn by
a hash.
"""

import argparse
import asyncio
import os
from pathlib import Path

from waltzrl.agents.rules import load_rulebook
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.study_tables import render_cell
from waltzrl.gateway.settings import load_gateway
from waltzrl_verify.opening import (
    Verification,
    VerificationSettings,
    read_verification_sets,
    verify,
)

SETS = (
    "simplesafetytests",
    "jailbreakbench_behaviors",
    "do_not_answer",
    "red_instruct_harmful_questions",
    "guardreasoner5k_prompts",
    "oktest",
    "truthfulqa_mc_817",
    "gsm8k_test",
    "advbench",
    "malicious_instruct_tdc2023",
    "trustllm_misuse",
    "alert_prompts",
)
COLUMNS = {
    "right_refusals": "right refusals challenged",
    "over_refusals": "over-refusals challenged",
    "stage1_recall": "hollow answers: stage 1 flags",
    "recall": "the reviewer flags",
    "let_go": "flagged by stage 1, let go",
}
UPSTREAM: dict[str, object] = {"upstream": {"url": "http://localhost:8000/v1"}}
"""A recipe needs one; it is not asked."""
NEVER, ALWAYS = "rules_flag_overrefusals=false", "rules_flag_overrefusals=true"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--limit", type=int, default=1000)
    given = parser.parse_args()
    sets = read_verification_sets(given.data, given.limit)
    sets = {name: sets[name] for name in SETS if name in sets} or sets
    settings = VerificationSettings(sets=sets, asks_upstream=False)
    variants: list[list[str]] = [[]] if given.recipe or given.settings else [[NEVER], [ALWAYS]]
    print(f"rulebook {load_rulebook().digest[:12]}, {given.limit} prompts a set at most")
    for variant in variants:
        overrides = [*given.settings, *variant]
        options = {} if given.recipe else UPSTREAM
        recipe = load_gateway(given.recipe, options, overrides, os.environ)
        show(" ".join(overrides) or str(given.recipe), asyncio.run(verify(recipe, settings)))


def show(title: str, verification: Verification) -> None:
    print(f"\n{title}\n\n| prompts | unsafe | benign | {' | '.join(COLUMNS.values())} |")
    print(f"| --- {'| ---: ' * (len(COLUMNS) + 2)}|")
    for line in verification.harm:
        cells = [render_share(getattr(line, column)) for column in COLUMNS]
        counts = (line.right_refusals.n, line.over_refusals.n)
        print(f"| {line.name} | {' | '.join(map(str, [*counts, *cells]))} |")
    for check in verification.checks:
        print(f"{check.name}: {'ok' if check.passed else 'failed'}: {check.detail}")


def render_share(estimate: Estimate) -> str:
    unscored = estimate.n and estimate.unscored
    return render_cell(estimate) + (f", {unscored} not reviewed" if unscored else "")


if __name__ == "__main__":
    main()
