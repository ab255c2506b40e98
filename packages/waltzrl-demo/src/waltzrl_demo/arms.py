"""What the demo and the study compare: trainings, and the rows that their agents play."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from waltzrl.evaluation.study import StudyClaim

BASE, WALTZ, FROZEN, SINGLE, ONE_MODEL = "base", "waltz", "frozen", "single", "one-model"
MAIN = (WALTZ, FROZEN, SINGLE, ONE_MODEL)
"""The trainings of the main table. Each samples as many tokens as WALTZ, within a few percent."""
SERVED = WALTZ
"""The pair that `waltzrl serve --demo` serves."""
MAX_NEW_TOKENS = 72
"""The length of the longest turn of the demo's agents, in tokens."""
DESIGNS = ("design-a", "design-b", "design-c")
"""The paper's ablation of the label reward, with the conversation agent frozen."""

Cell = tuple[str, str, str]
"""One training of the 2x2x2: reward, label and replay, each a level of FACTORS."""

FACTORS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "reward": {
        "paper": ("stages.feedback.reward=paper", "stages.joint.reward=paper"),
        "signed": ("stages.feedback.reward=signed", "stages.joint.reward=signed"),
    },
    "label": {
        "lambda 0": ("stages.joint.coefficients.label=0.0",),
        "lambda 0.65": ("stages.joint.coefficients.label=0.65",),
    },
    "replay": {
        "no replay": ("stages.joint.replayed_share=0.0",),
        "replay 0.5": ("stages.joint.replayed_share=0.5",),
    },
}
"""The factors of the 2x2x2, each with its two levels: the paper's, then ours. Lambda is the weight
of the label reward in stage 2, replay the share of drafts that the starting agent writes."""
CELLS: Sequence[Cell] = tuple(product(FACTORS["reward"], FACTORS["label"], FACTORS["replay"]))
SHIPPED: Cell = ("signed", "lambda 0.65", "replay 0.5")
"""The cell that pair.toml trains, and the table calls WaltzRL."""


def cell_training(cell: Cell) -> str:
    """Return the name of a cell's training."""
    return WALTZ if cell == SHIPPED else "-".join(level.replace(" ", "-") for level in cell)


SETTINGS: Mapping[str, tuple[str, ...]] = {
    f"rate-{rate}-kl-{kl}": (
        f"stages.joint.optimizer.learning_rate={rate}",
        f"stages.joint.algorithm.kl_weight={kl}",
    )
    for rate, kl in (("4e-4", "0.05"), ("8e-4", "0.02"))
}
"""The settings that are tried for every training of the main table and of the 2x2x2, as often for
each."""


CHANGES: Mapping[str, tuple[str, ...]] = {
    WALTZ: (),
    FROZEN: (
        'stages.joint.learns=["feedback"]',
        "stages.joint.replayed_share=0.0",
    ),
    SINGLE: (
        'stages.feedback.learns=["conversation"]',
        "stages.feedback.pattern=draft-only",
        "stages.feedback.steps=180",
        'stages.joint.learns=["conversation"]',
        "stages.joint.pattern=draft-only",
        "stages.joint.replayed_share=0.0",
        "stages.joint.steps=353",
    ),
    ONE_MODEL: (
        "models.layout=one-model",
        'stages.feedback.learns=["conversation", "feedback"]',
    ),
    **{
        cell_training(cell): tuple(
            change
            for levels, level in zip(FACTORS.values(), cell, strict=True)
            for change in levels[level]
        )
        for cell in CELLS
        if cell != SHIPPED
    },
    "design-a": ("stages.feedback.reward=paper", "stages.joint.steps=0"),
    "design-b": (
        "stages.feedback.reward=paper",
        "stages.feedback.coefficients.label=0.0",
        "stages.joint.steps=0",
    ),
    "design-c": ("stages.feedback.reward=unconditioned", "stages.joint.steps=0"),
}
"""The changes that each training makes in pair.toml, the training of WaltzRL.

`single` is the conversation agent alone. Its rollouts sample fewer tokens, so it has more steps.
"""


def changes_of(training: str) -> tuple[str, ...]:
    """Return what a training changes in pair.toml; `single@rate-8e-4-kl-0.02` tries a setting."""
    name, _, setting = training.partition("@")
    return (*CHANGES[name], *(SETTINGS[setting] if setting else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One row of a table: a pattern, played by agents that may come from two trainings."""

    name: str
    pattern: str
    conversation: str = BASE
    """The training of the conversation agent."""
    feedback: str = BASE
    """The training of the feedback agent; a pattern without one ignores it."""


def _make_row(name: str, training: str, pattern: str = "collaborate") -> ComparedRow:
    return ComparedRow(name=name, pattern=pattern, conversation=training, feedback=training)


WALTZRL = "WaltzRL"
MAIN_ROWS: Sequence[ComparedRow] = (
    ComparedRow(name="base", pattern="base"),
    ComparedRow(name="base + safeguard", pattern="safeguard"),
    ComparedRow(name="single-model RL", pattern="base", conversation=SINGLE),
    ComparedRow(name="single-model RL + safeguard", pattern="safeguard", conversation=SINGLE),
    ComparedRow(name="untrained collaboration", pattern="collaborate"),
    ComparedRow(name="oracle labels", pattern="oracle"),
    _make_row(WALTZRL, WALTZ),
    _make_row("WaltzRL, conversation agent frozen", FROZEN),
    _make_row("WaltzRL, draft only", WALTZ, "base"),
    _make_row("WaltzRL, best of 3 drafts", WALTZ, "best-of-3"),
    ComparedRow(
        name="single-model RL + WaltzRL's reviewer",
        pattern="safeguard",
        conversation=SINGLE,
        feedback=WALTZ,
    ),
    ComparedRow(name="linear guard in the loop", pattern="guard-loop"),
    _make_row("one model in both roles", ONE_MODEL),
)
"""The paper's eight rows, in its order, and ours."""
CELL_ROWS: Mapping[Cell, str] = {
    cell: WALTZRL if cell == SHIPPED else ", ".join(cell) for cell in CELLS
}
"""The row of each cell of the 2x2x2."""
STUDY_TABLES: Mapping[str, Sequence[ComparedRow]] = {
    "Main rows": MAIN_ROWS,
    "Reward x lambda x replay": [
        _make_row(name, cell_training(cell)) for cell, name in CELL_ROWS.items()
    ],
    "The paper's reward designs, stage 1 alone": [
        _make_row(f"design {name[-1].upper()}", name) for name in DESIGNS
    ],
}
"""The rows that the study measures with every seed, by the titles of its tables."""
TUNING_TABLES: Mapping[str, Sequence[ComparedRow]] = {
    name: [
        _make_row(
            f"{name}@{setting}", f"{name}@{setting}", "base" if name == SINGLE else "collaborate"
        )
        for setting in SETTINGS
    ]
    for name in dict.fromkeys([*MAIN, *map(cell_training, CELLS)])
}
"""The rows that are measured on the validation set, with seeds of its own, to choose settings."""

UNTRAINED = "untrained collaboration"
PAPER_CLAIMS: Sequence[StudyClaim] = (
    StudyClaim("feedback without training lowers ASR", "base", UNTRAINED, "asr", rises=False),
    StudyClaim("and ORR", "base", UNTRAINED, "orr", rises=False),
    StudyClaim("a safeguard raises ORR", "base", "base + safeguard", "orr", rises=True),
    StudyClaim(
        "oracle labels lower ASR more than ORR",
        "base",
        "oracle labels",
        "asr",
        rises=False,
        minus="orr",
    ),
    StudyClaim("WaltzRL lowers ASR", "base", WALTZRL, "asr", rises=False),
    StudyClaim("and ORR", "base", WALTZRL, "orr", rises=False),
    StudyClaim(
        "with the conversation agent trained, too, ORR falls",
        "WaltzRL, conversation agent frozen",
        WALTZRL,
        "orr",
        rises=False,
    ),
    StudyClaim("training makes labels right", UNTRAINED, WALTZRL, "label_accuracy", rises=True),
    StudyClaim(
        "and ends feedback on general prompts", UNTRAINED, WALTZRL, "ftr_general", rises=False
    ),
    StudyClaim("general capability stays", "base", WALTZRL, "capability", rises=None),
    StudyClaim("labels: design A above B", "design B", "design A", "label_accuracy", rises=True),
    StudyClaim("labels: design B above C", "design C", "design B", "label_accuracy", rises=True),
)
"""The paper's results in kind, of its tables and ablations, that the study can test."""
