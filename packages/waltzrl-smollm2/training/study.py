"""Train the arms of the study of SmolLM2 with several seeds, and compare them.

    python training/study.py DATA_DIR OUT_DIR [SEEDS] [PROCESSES]

DATA_DIR holds the public sets of `data.py`. The same command resumes, at any place. It measures
arms as soon as they are trained, and then writes OUT_DIR/tables.md, OUT_DIR/report.html and
OUT_DIR/collaborations.md anew. docs/study-smollm2.md says what the arms are.
"""

import hashlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import torch

import pair_data
from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.evaluation import EvaluationRow, measure, read_rows, rescore
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.judges.agreement import compare_verdicts
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.evaluation.judges.saved import SavedVerdict
from waltzrl.evaluation.metrics import render_percent
from waltzrl.evaluation.report import EvaluationReport, read_curve, write_report
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.evaluation.study_tables import render_cell, render_p_value, render_points
from waltzrl.foundation.jsonl import write_lines
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.workers import Workers
from waltzrl.policies.compute import multiplies_bfloat16, resolve_compute
from waltzrl.records import Reply, Verdict
from waltzrl.training.recipe import load_recipe
from waltzrl_demo.arms import ComparedRow
from waltzrl_demo.jobs import ONE_CORE, EvaluationJob, TrainingJob
from waltzrl_demo.study import read_training_cost

RECIPE = Path(__file__).parents[3] / "recipes" / "smollm2.toml"
BASE, DRAFTS = "base", "drafts"
WALTZ, SINGLE, PAPER, FROZEN = "waltz", "single", "paper", "frozen"
ARMS: Mapping[str, tuple[str, ...]] = {
    BASE: ("stages.drafts.steps=0", "stages.feedback.steps=0", "stages.joint.steps=0"),
    DRAFTS: ("stages.feedback.steps=0", "stages.joint.steps=0"),
    WALTZ: (),
    SINGLE: ("stages.drafts.steps=140", "stages.feedback.steps=0", "stages.joint.steps=0"),
    PAPER: (
        "stages.feedback.reward=paper",
        "stages.joint.reward=paper",
        "stages.joint.coefficients.label=0.0",
        "stages.joint.replayed_share=0.0",
    ),
    FROZEN: ('stages.joint.learns=["feedback"]', "stages.joint.replayed_share=0.0"),
}
"""What each training changes in the recipe, which is WaltzRL with our reward.

The first two are the recipe's first stages, each a run of its own. All others go on from the
second, whose best agents are the reference of their KL penalty, each with the stages that are left.
`single` goes on with the second stage, for as many tokens: its rollouts sample fewer, so there are
more steps.
"""
MAIN, OTHERS = (WALTZ, SINGLE), (PAPER, FROZEN)
"""Arms of every seed, and of the first seed only."""


def pair(name: str, arm: str, pattern: str = "collaborate") -> ComparedRow:
    return ComparedRow(name=name, pattern=pattern, conversation=arm, feedback=arm)


WALTZRL = "WaltzRL"
ROWS = (
    pair("base after warm-up", BASE, "base"),
    pair("untrained collaboration", BASE),
    ComparedRow(name="base + trained reviewer as safeguard", pattern="safeguard", feedback=WALTZ),
    pair("single-model RL, half the tokens", DRAFTS, "base"),
    pair("single-model RL, equal tokens", SINGLE, "base"),
    pair("the same drafts, untrained reviewer", DRAFTS),
    pair(WALTZRL, WALTZ),
    pair("WaltzRL, draft only", WALTZ, "base"),
    pair("WaltzRL, blocking", WALTZ, "safeguard"),
    ComparedRow(
        name="single-model RL, reviewed by WaltzRL",
        pattern="collaborate",
        conversation=SINGLE,
        feedback=WALTZ,
    ),
    pair("WaltzRL, the paper's reward", PAPER),
    pair("WaltzRL, conversation agent frozen", FROZEN),
    pair("oracle labels", BASE, "oracle"),
)
SETS = pair_data.FIRST | {"general": 50}
"""The held-out sets, and how many of their prompts are asked."""
MEASURED = "measured"
WARM_UP = "warm-up"
"""Folder of the metrics of a run's warm-up, which is all that the base is trained by."""
COLUMNS = {
    "asr": "ASR",
    "orr": "ORR",
    "non_answer": "no answer",
    "f1": "F1",
    "ftr_sensitive": "FTR sensitive",
    "ftr_general": "FTR general",
    "label_accuracy": "labels right",
    "capability": "capability",
}
TESTED = ("f1", "asr", "orr")
SECOND_JUDGE = "smollm2"
"""The reviewer of this package, which reads request and reply, and knows no label."""
READ = 20
"""Collaborations to read."""
SHOWN_CHARACTERS, UNSAFE_CHARACTERS = 300, 40
"""Of each text in them, and of a reply to a harmful prompt, whose verdict may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondJudging:
    """Judge an evaluation's replies again, by another judge."""

    name: str
    evaluated: Path
    folder: Path

    async def run(self, report: Callable[[int, int], None]) -> None:
        if not read_rows(self.folder):
            resolve_compute(ONE_CORE)
            async with open_judge(SECOND_JUDGE) as judge:
                await rescore(self.evaluated, judge, self.folder, concurrency=50)
        report(1, 1)


@dataclass(frozen=True, slots=True)
class Study:
    """What is trained and measured in one folder."""

    folder: Path
    seeds: int

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def phases(self) -> list[list[tuple[str, int]]]:
        """Arms and seeds that are trained beside each other; what can be measured then is."""
        seeds = range(self.seeds)
        every_seed = [[(arm, seed) for arm in MAIN] for seed in seeds]
        drafts = [(DRAFTS, seed) for seed in seeds]
        return [[(BASE, 0)], drafts, *every_seed, [(arm, 0) for arm in OTHERS]]

    @property
    def trained(self) -> list[tuple[str, int]]:
        """Arms and seeds whose training has ended."""
        trainings = [one for phase in self.phases for one in phase]
        return [one for one in trainings if self.training(*one).agents.exists()]

    @property
    def samples(self) -> list[tuple[ComparedRow, int]]:
        """Rows and seeds that can be measured."""
        trained = {self.training(*one).name for one in self.trained}
        return [
            (row, seed)
            for row in ROWS
            for seed in range(self.seeds)
            if {self.training(arm, seed).name for arm in (row.conversation, row.feedback)}
            <= trained
        ]

    def training(self, arm: str, seed: int) -> TrainingJob:
        """Return an arm's training; the base is one for all seeds, the drafts one for each."""
        changes, name = ARMS[arm], f"{arm}-{seed}"
        if arm == BASE:
            name, seed = BASE, 0
        else:
            start, over = (BASE, [WARM_UP]) if arm == DRAFTS else (DRAFTS, [WARM_UP, DRAFTS])
            agents = f"models.pair={self.training(start, seed).agents}"
            changes = (agents, *(f"stages.{stage}.steps=0" for stage in over), *changes)
        files = {
            "prompts": ["train"],
            "held_out": pair_data.HELD_OUT,
            "validation": ["validation"],
            "demonstrations": ["demonstrations"],
        }
        found = [
            f"data.{key}={[str(self.data / f'{one}.jsonl') for one in sets]}"
            for key, sets in files.items()
        ]
        threads = 2 if arm == BASE else 1  # the others run beside each other
        own = [f"seed={seed}", f"compute.threads={threads}"]
        if not (torch.cuda.is_available() or multiplies_bfloat16()):
            own.append("compute.dtype=float32")
        recipe = load_recipe(RECIPE, [*own, *found, *changes])
        return TrainingJob(name=name, recipe=recipe, folder=self.folder / "runs" / name)

    def evaluation(self, row: ComparedRow, seed: int) -> EvaluationJob:
        """Return what measures a row; rows of the base alone are the same with every seed."""
        conversation, feedback = (
            self.training(arm, seed) for arm in (row.conversation, row.feedback)
        )
        agents = conversation.recipe.agents
        names = dict.fromkeys((conversation.name, feedback.name))
        contest = EvaluationConfig(
            patterns=(row.pattern,),
            conversation=str(conversation.agents / CONVERSATION),
            feedback=str(feedback.agents / FEEDBACK),
            wording=agents.wording,
            max_new_tokens=agents.max_new_tokens,
            feedback_max_new_tokens=agents.feedback_max_new_tokens,
            concurrency=50,
        )
        name = f"{row.pattern}, {' + '.join(names)}"
        return EvaluationJob(
            name=name,
            contest=contest,
            sets=(self.data / f"{MEASURED}.jsonl",),
            folder=self.folder / "evaluations" / name,
            judge=LabelRefusalJudge,
        )

    @property
    def evaluations(self) -> list[EvaluationJob]:
        """What measures all that can be measured, each once."""
        jobs = [self.evaluation(row, seed) for row, seed in self.samples]
        return list({job.name: job for job in jobs}.values())

    def second_judging(self, row: ComparedRow) -> SecondJudging:
        """Return what judges a row of the first seed once more."""
        evaluation = self.evaluation(row, 0)
        folder = evaluation.folder / SECOND_JUDGE
        name = f"{evaluation.name}, judged again"
        return SecondJudging(name=name, evaluated=evaluation.folder, folder=folder)

    def measured(self) -> list[EvaluationRow]:
        """Return the rows of all seeds: those of one prompt and row are its samples."""
        return [
            replace(one, pattern=row.name, sample=seed)
            for row, seed in self.samples
            for one in read_rows(self.evaluation(row, seed).folder)
        ]

    def judged_again(self) -> list[EvaluationRow]:
        """Return the rows of the first seed as the second judge sees them."""
        return [
            replace(one, pattern=row.name)
            for row in ROWS
            for one in read_rows(self.second_judging(row).folder)
        ]


def main(data: Path, out: Path, seeds: int = 2, processes: int = 2) -> None:
    study = Study(out, seeds)
    with RunDirectory(out), Workers(processes, quiet=False) as workers:
        if not (study.data / f"{MEASURED}.jsonl").exists():
            pair_data.main(data, study.data)
            write_measured(study.data)
        for phase in study.phases:
            workers.run([study.training(arm, seed) for arm, seed in phase])
            workers.run(study.evaluations)
            write_results(study)
        again = [study.second_judging(row) for row in ROWS]
        workers.run([*{job.name: job for job in again}.values()])
    print(write_results(study))


def write_results(study: Study) -> str:
    """Write the tables, the report and the collaborations of what has been measured so far."""
    rows, judged_again = study.measured(), study.judged_again()
    names = [study.training(arm, seed).name for arm, seed in study.trained]
    curves = {name: read_curve(study.folder / "runs" / name) for name in names if name != BASE}
    report = EvaluationReport(
        title="SmolLM2-135M-Instruct as a pair",
        rows=rows,
        curves=curves,
        settings={"recipe": RECIPE.name, "seeds": str(study.seeds)},
    )
    write_report(study.folder, report)
    parts = [table(rows), tests(rows), costs(study)]
    if judged_again:
        first_seed = [row for row in rows if row.sample == 0]
        parts += [table(judged_again), agreements(first_seed, judged_again)]
    text = "\n\n".join("\n".join(part) for part in parts)
    (study.folder / "tables.md").write_text(text, "utf-8")
    (study.folder / "collaborations.md").write_text("\n".join(to_read(rows)), "utf-8")
    return text


def write_measured(folder: Path) -> None:
    """Write the prompts that every row is measured on: some of each held-out set."""
    prompts = [
        replace(prompt, category=name)
        for name, count in SETS.items()
        for prompt in read_sets([str(folder / f"{name}.jsonl")])[:count]
    ]
    write_lines(folder / f"{MEASURED}.jsonl", prompts)


def table(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Yield the table of all rows, in percent with intervals over prompts."""
    yield f"| {' | '.join(('', *COLUMNS.values(), 'n'))} |"
    yield f"| --- | {' | '.join(['---:'] * (len(COLUMNS) + 1))} |"
    for line in measure(rows):
        shown = [render_cell(line.table[name]) if name in line.table else "-" for name in COLUMNS]
        yield f"| {line.pattern} | {' | '.join(shown)} | {line.asr.n} + {line.orr.n} |"


def tests(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Yield WaltzRL against every other row, paired by prompt and seed."""
    yield "| WaltzRL minus | F1 | p | ASR | p | ORR | p |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    after = [one for one in rows if one.pattern == WALTZRL]
    for row in ROWS:
        before = [one for one in rows if one.pattern == row.name]
        if after and before and row.name != WALTZRL:
            found = {one.metric: one for one in compare(before, after)}
            cells = []
            for each in (found[name] for name in TESTED):
                p_value = "-" if each.p_value is None else render_p_value(each.p_value)
                cells += [render_cell(each.change, render_points), p_value]
            yield f"| {row.name} | {' | '.join(cells)} |"


def agreements(first: Sequence[EvaluationRow], second: Sequence[EvaluationRow]) -> Iterator[str]:
    """Yield how far two judges agree on the last replies of the same rows."""
    compared = compare_verdicts(
        *({label_key(row): labels(row) for row in rows} for rows in (first, second))
    )
    yield "| | replies | equal | kappa |"
    yield "| --- | ---: | ---: | ---: |"
    for rate in ("asr", "orr"):
        found = compared.questions[rate]
        shown = (
            "-"
            if found.kappa is None
            else f"{found.kappa:.2f} ({found.low:.2f} to {found.high:.2f})"
        )
        yield f"| {COLUMNS[rate]} | {found.scored} | {render_percent(found.observed)} | {shown} |"


def label_key(row: EvaluationRow) -> tuple[str, str]:
    return row.pattern, row.prompt_id


def labels(row: EvaluationRow) -> SavedVerdict:
    assert row.judged is not None
    verdict = row.judged.verdicts[-1]
    return SavedVerdict(
        unsafe=verdict.unsafe,
        refuses=verdict.refuses,
        overrefuses=verdict.overrefuses,
        label=row.judged.collaboration.prompt.label,
        judge=verdict.judge,
    )


def costs(study: Study) -> Iterator[str]:
    """Yield what each training took."""
    yield "| training | thousand tokens sampled | hours of one core |"
    yield "| --- | ---: | ---: |"
    for arm, seed in study.trained:
        training = study.training(arm, seed)
        cost = read_training_cost(training.folder / WARM_UP if arm == BASE else training.folder)
        yield f"| {training.name} | {cost.tokens / 1000:.0f} | {cost.seconds / 3600:.2f} |"


def to_read(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Yield the collaborations of WaltzRL's first seed whose ids have the least hashes."""
    ours = [row for row in rows if row.pattern == WALTZRL and row.sample == 0]
    ours.sort(key=lambda row: hashlib.sha256(row.prompt_id.encode()).digest())
    for row in ours[:READ]:
        assert row.judged is not None
        collaboration, verdicts = row.judged.collaboration, row.judged.verdicts
        label = collaboration.prompt.label
        yield f"**{cut(collaboration.prompt.request)}** ({label or 'no label'})\n"
        limit = UNSAFE_CHARACTERS if label == "unsafe" else SHOWN_CHARACTERS
        yield from said("Draft", collaboration.draft, verdicts[0], limit)
        for turn, verdict in zip_longest(collaboration.rounds, verdicts[1:]):
            labels = f"unsafe: {turn.feedback.unsafe}, overrefuse: {turn.feedback.overrefuse}"
            yield f"- Feedback ({labels}): {cut(turn.feedback.text)}"
            if turn.revision is not None:
                yield from said("Revision", turn.revision, verdict, limit)
        yield ""


def said(name: str, reply: Reply, verdict: Verdict, limit: int) -> Iterator[str]:
    faults = ("unsafe", "overrefuses", "non_answer")
    found = [fault for fault in faults if getattr(verdict, fault)] or ["acceptable"]
    yield f"- {name} ({', '.join(found)}): {cut(reply.text, limit)}"


def cut(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    return textwrap.shorten(text, limit, placeholder=" [...]")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
