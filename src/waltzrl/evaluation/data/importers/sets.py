"""The public sets by name: which column is the prompt, and what its label means.

Adding a set is one entry in `SETS`. Columns are those of the authors' own files; where releases
differ, every name is listed and the first that holds a text counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from waltzrl.errors import InputError
from waltzrl.evaluation.data.importers.rows import TableRow, read_rows
from waltzrl.foundation.plugins import find_plugin
from waltzrl.records import Message, Prompt, PromptLabel

Labeller = Callable[[TableRow, str], PromptLabel | None]
"""A function from (row, file name) to the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """How to read one set."""

    prompt: Callable[[TableRow], str]
    label: Labeller
    page: str = ""
    """Where its authors publish it."""
    licence: str = ""
    """As its authors state it."""
    category: tuple[str, ...] = ()
    """Columns that name the category, the preferred one first; none for sets without."""
    cluster: str = ""
    """The column of the goal, topic or behaviour that rows share; releases without it have none."""
    answer: Callable[[TableRow], str] | None = None
    """A function that returns what a correct reply contains; only capability sets have it."""
    header: tuple[str, ...] = ()
    """Column names, for files that have no header line."""


def find_set(name: str) -> PublicSet | None:
    """Return a set of ours, or of an installed package (group `waltzrl.sets`); None if unknown."""
    return SETS.get(name) or cast("PublicSet | None", find_plugin("waltzrl.sets", name))


def require_set(name: str) -> PublicSet:
    """Return a set; see `find_set`.

    Raises:
        InputError: there is none of this name.
    """
    public_set = find_set(name)
    if public_set is None:
        raise InputError(f"unknown set {name!r}; known are {', '.join(SETS)}")
    return public_set


def import_set(name: str, path: Path) -> list[Prompt]:
    """Read a public set from a local file in its published format.

    Args:
        name: one of `SETS`, or of a set that an installed package provides.
        path: .csv, .tsv, .json or .jsonl, as published.

    Returns:
        One prompt per row, in order; rows that repeat a prompt are kept.

    Raises:
        InputError: the name is unknown, or the file cannot be read; names file, line and column.
    """
    public_set = require_set(name)
    rows = enumerate(read_rows(path, public_set.header), start=1)
    prompts = [
        _make_prompt(row, public_set, path.name, f"{name}/{number}", name) for number, row in rows
    ]
    if not prompts:
        raise InputError(f"{path} holds no prompts; give the set's published file")
    return prompts


def _make_prompt(
    row: TableRow, public_set: PublicSet, file: str, prompt_id: str, source: str
) -> Prompt:
    text = public_set.prompt(row)
    if not text:
        raise InputError(f"{row.where}: the prompt is blank")
    shared = row.cells.get(public_set.cluster, "").strip()
    return Prompt(
        id=prompt_id,
        messages=(Message(role="user", content=text),),
        label=public_set.label(row, file),
        category=row.first(*public_set.category) if public_set.category else "",
        source=source,
        cluster=f"{source}/{shared}" if shared else "",
        answer=public_set.answer(row) if public_set.answer else None,
    )


def _read_column(*names: str) -> Callable[[TableRow], str]:
    return lambda row: row.first(*names)


def _label_always(label: PromptLabel | None) -> Labeller:
    return lambda _row, _file: label


def _label_by_value(column: str, meaning: dict[str, PromptLabel | None]) -> Labeller:
    """Look the cell up in `meaning`; an unknown value is an error, not a guess."""

    def label(row: TableRow, _file: str) -> PromptLabel | None:
        value = row[column].lower()
        if value not in meaning:
            known = ", ".join(repr(name) for name in meaning)
            raise InputError(f"{row.where}: column {column!r} is {value!r}; known are {known}")
        return meaning[value]

    return label


def _label_by_file(part: str, label: PromptLabel, otherwise: PromptLabel) -> Labeller:
    """For sets that keep their two halves in two files."""
    return lambda _row, file: label if part in file.lower() else otherwise


def _xstest_label(row: TableRow, _file: str) -> PromptLabel:
    # The contrasts of XSTest are the unsafe counterparts of its safe prompts.
    return "unsafe" if row["type"].startswith("contrast") else "benign"


def _beavertails_label(row: TableRow, _file: str) -> PromptLabel | None:
    """The release labels replies: a harmful reply shows a harmful prompt, a safe one shows nothing.

    The smaller evaluation file has harmful prompts only, and no such column.
    """
    if "is_safe" not in row.cells:
        return "unsafe"
    return _label_by_value("is_safe", {"false": "unsafe", "true": None})(row, _file)


def _harmbench_prompt(row: TableRow) -> str:
    """Contextual behaviours carry the text they are about in a column of their own."""
    context = row.cells.get("contextstring", "").strip()
    behaviour = row["Behavior"]
    return f"{context}\n\n---\n\n{behaviour}" if context else behaviour


def _gsm8k_answer(row: TableRow) -> str:
    _, mark, number = row["answer"].rpartition("####")
    if not mark:
        raise InputError(f"{row.where}: column 'answer' has no '#### <number>' at its end")
    return number.strip().replace(",", "")


def _four_choices(row: TableRow) -> str:
    choices = "\n".join(f"{letter}. {row[letter]}" for letter in "ABCD")
    return f"{row['question']}\n\n{choices}"


SETS: dict[str, PublicSet] = {
    "xstest": PublicSet(
        page="https://github.com/paul-rottger/xstest",
        licence="CC-BY-4.0",
        prompt=_read_column("prompt"),
        label=_xstest_label,
        category=("type",),
        cluster="focus",
    ),
    "or-bench": PublicSet(
        page="https://huggingface.co/datasets/bench-llms/or-bench",
        licence="CC-BY-4.0",
        prompt=_read_column("prompt"),
        label=_label_by_file("toxic", "unsafe", otherwise="benign"),
        category=("category",),
    ),
    "harmbench": PublicSet(
        page="https://github.com/centerforaisafety/HarmBench",
        licence="MIT",
        prompt=_harmbench_prompt,
        label=_label_always("unsafe"),
        category=("SemanticCategory",),
        cluster="behaviorid",
    ),
    "strongreject": PublicSet(
        page="https://github.com/alexandrasouly/strongreject",
        licence="MIT",
        prompt=_read_column("forbidden_prompt"),
        label=_label_always("unsafe"),
        category=("category",),
    ),
    "jailbreakbench": PublicSet(
        page="https://huggingface.co/datasets/JailbreakBench/JBB-Behaviors",
        licence="MIT",
        prompt=_read_column("Goal"),
        label=_label_by_file("benign", "benign", otherwise="unsafe"),
        category=("Category",),
        cluster="behavior",
    ),
    "wildjailbreak": PublicSet(
        page="https://huggingface.co/datasets/allenai/wildjailbreak",
        licence="ODC-BY",
        # A vanilla row leaves the column of adversarial prompts blank.
        prompt=_read_column("adversarial", "vanilla"),
        label=_label_by_value(
            "data_type",
            {
                "vanilla_harmful": "unsafe",
                "vanilla_benign": "benign",
                "adversarial_harmful": "unsafe",
                "adversarial_benign": "benign",
            },
        ),
        category=("data_type",),
        cluster="vanilla",
    ),
    "wildguardtest": PublicSet(
        page="https://huggingface.co/datasets/allenai/wildguardmix",
        licence="ODC-BY",
        prompt=_read_column("prompt"),
        label=_label_by_value(
            "prompt_harm_label", {"harmful": "unsafe", "unharmful": "benign", "": None}
        ),
        category=("subcategory",),
    ),
    "toxicchat": PublicSet(
        page="https://huggingface.co/datasets/lmsys/toxic-chat",
        licence="CC-BY-NC-4.0",
        prompt=_read_column("user_input"),
        label=_label_by_value("toxicity", {"1": "unsafe", "0": "benign"}),
    ),
    "beavertails": PublicSet(
        page="https://huggingface.co/datasets/PKU-Alignment/BeaverTails",
        licence="CC-BY-NC-4.0",
        prompt=_read_column("prompt"),
        label=_beavertails_label,
        category=("category",),
        # Every reply to a prompt is a row of its own.
        cluster="prompt",
    ),
    "advbench": PublicSet(
        page="https://github.com/llm-attacks/llm-attacks",
        licence="MIT",
        prompt=_read_column("goal"),
        label=_label_always("unsafe"),
    ),
    "do-not-answer": PublicSet(
        page="https://github.com/Libr-AI/do-not-answer",
        licence="CC-BY-NC-SA-4.0",
        prompt=_read_column("question"),
        label=_label_always("unsafe"),
        category=("risk_area",),
        cluster="specific_harms",
    ),
    "simplesafetytests": PublicSet(
        page="https://github.com/bertiev/SimpleSafetyTests",
        licence="CC-BY-4.0",
        prompt=_read_column("prompts_final", "prompt"),
        label=_label_always("unsafe"),
        category=("harm_area",),
    ),
    "oktest": PublicSet(
        page="https://github.com/InvokerStark/OverKill",
        licence="none stated",
        prompt=_read_column("prompt"),
        label=_label_always("benign"),
    ),
    # general, like AlpacaEval
    "ifeval": PublicSet(
        page="https://github.com/google-research/google-research",
        licence="Apache-2.0",
        prompt=_read_column("prompt"),
        label=_label_always(None),
    ),
    # A prompt with an answer is general, so that its label enters neither ASR nor ORR.
    "gsm8k": PublicSet(
        page="https://github.com/openai/grade-school-math",
        licence="MIT",
        prompt=_read_column("question"),
        label=_label_always("benign"),
        answer=_gsm8k_answer,
    ),
    "mmlu": PublicSet(
        page="https://github.com/hendrycks/test",
        licence="MIT",
        prompt=_four_choices,
        label=_label_always("benign"),
        answer=_read_column("answer"),
        header=("question", "A", "B", "C", "D", "answer"),
    ),
    "truthfulqa": PublicSet(
        page="https://github.com/sylinrl/TruthfulQA",
        licence="Apache-2.0",
        prompt=_read_column("Question"),
        label=_label_always("benign"),
        category=("Category",),
        answer=_read_column("Best Answer"),
    ),
    "alpacaeval": PublicSet(
        page="https://huggingface.co/datasets/tatsu-lab/alpaca_eval",
        licence="CC-BY-NC-4.0",
        prompt=_read_column("instruction"),
        label=_label_always(None),
        category=("dataset",),
    ),
}
