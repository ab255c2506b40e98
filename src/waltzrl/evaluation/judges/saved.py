"""Saved replies: JSON Lines of prompt, response and labels, to be labelled, repeated or compared.

{"prompt": "...", "response": "...", "unsafe": false, "refuses": true, "overrefuses": null}
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.judges.judge import Judge, require_decided
from waltzrl.foundation.background import gather_all
from waltzrl.foundation.jsonl import read_json, read_text
from waltzrl.records import Message, Prompt, PromptLabel, Reply, Verdict

AT_ONCE = 64
"""Lines judged concurrently, so that a judge that asks a policy can batch."""
PROMPT_LABELS: Mapping[str, PromptLabel] = {
    "unsafe": "unsafe",
    "benign": "benign",
    "mixed": "mixed",
}
NEEDED = (
    'need one JSON object {"prompt": "...", "response": "..."} with optional "label" ("unsafe" or '
    '"benign") and optional "unsafe", "refuses", "overrefuses", "non_answer" (true, false or null)'
)

QUESTIONS = ("unsafe", "refuses", "overrefuses", "non_answer")
"""What a judge or a person answers of a reply: fields of a verdict, and of a line."""

Fields: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedVerdict:
    """The verdict of a judge or a person on a saved reply; None is unscored."""

    unsafe: bool | None = None
    refuses: bool | None = None
    overrefuses: bool | None = None
    non_answer: bool | None = None
    label: PromptLabel | None = None
    """The label of the prompt."""
    judge: str = ""
    """The judge that said it, if the line tells."""


class SavedReply(msgspec.Struct, kw_only=True):
    """The fields of a line; others are ignored."""

    prompt: str
    response: str


class UnjudgedReply(SavedReply, kw_only=True):
    """A reply that a judge is to label."""

    label: Literal["unsafe", "benign", "mixed", "unknown", "template"] | None = None
    """The label of the prompt. `unknown` and `template` are the words of public sets for no
    label."""


class LabelledReply(SavedReply, kw_only=True):
    """A reply with the verdict of a judge or a person."""

    unsafe: bool | None = None
    refuses: bool | None = None
    overrefuses: bool | None = None
    non_answer: bool | None = None
    label: str | None = None
    """The label of the prompt; other words than those of a prompt's label say nothing."""
    judge: str | None = None

    @property
    def verdict(self) -> SavedVerdict:
        label = PROMPT_LABELS.get(self.label or "")
        return SavedVerdict(**answers_of(self), label=label, judge=self.judge or "")


def answers_of(verdict: Verdict | SavedVerdict | LabelledReply) -> dict[str, bool | None]:
    """Return the answers to `QUESTIONS`."""
    return {question: getattr(verdict, question) for question in QUESTIONS}


Form = TypeVar("Form", bound=SavedReply)


def read_replies(path: Path) -> dict[str, str]:
    """Return the reply to each prompt, for `SavedPolicy`.

    Raises:
        InputError: a line cannot be read, or a prompt has two different replies.
    """
    replies: dict[str, str] = {}
    for where, saved in _read_lines(path):
        if replies.setdefault(saved.prompt, saved.response) != saved.response:
            raise InputError(
                f"{where}: an earlier line has another reply to this prompt; keep one, or make two "
                "files"
            )
    return replies


def read_saved_verdicts(path: Path) -> dict[tuple[str, str], SavedVerdict]:
    """Return the verdict on each pair of prompt and reply; what a line leaves out is unscored.

    Raises:
        InputError: a line cannot be read, or a reply has two different verdicts.
    """
    verdicts: dict[tuple[str, str], SavedVerdict] = {}
    for where, saved in _read_lines(path):
        if verdicts.setdefault((saved.prompt, saved.response), saved.verdict) != saved.verdict:
            raise InputError(
                f"{where}: an earlier line has other labels for this reply; keep one line"
            )
    return verdicts


class SavedJudge:
    """Repeats the verdicts on saved replies; a reply that was not saved stays unscored."""

    def __init__(self, name: str, verdicts: Mapping[tuple[str, str], SavedVerdict]) -> None:
        """Store the verdicts.

        Args:
            name: stands in every row and identifies the source of the verdicts.
            verdicts: from a user's turn and its reply to the verdict on the reply.
        """
        self.name = name
        self._verdicts = verdicts

    @classmethod
    def load(cls, path: Path) -> "SavedJudge":
        """Read the verdicts from a file.

        Raises:
            InputError: as `read_saved_verdicts`.
        """
        verdicts = read_saved_verdicts(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(f"saved:{path.stem}@{digest[:8]}", verdicts)

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        key = (prompt.messages[-1].content, reply.text)
        verdict = self._verdicts.get(key, SavedVerdict())
        return Verdict(
            judge=self.name,
            unsafe=verdict.unsafe,
            refuses=verdict.refuses,
            overrefuses=verdict.overrefuses,
            non_answer=verdict.non_answer,
        )


async def judge_lines(lines: Iterable[str], judge: Judge, *, source: str) -> AsyncIterator[str]:
    """Add the judge's name and its labels (true, false or null) to each line, in order.

    They are `unsafe`, `refuses`, `overrefuses` and `non_answer`, in place of another judge's.

    A judge that grades adds `harm`, and one that asks a model its `answers`.

    All lines are parsed before the first is judged, so a malformed last line costs no judgement.

    Args:
        lines: each a JSON object with `prompt`, `response` and optionally `label`.
        judge: decides the labels.
        source: name of the file, for messages.

    Raises:
        InputError: a line is not such an object; the message names file and line. Or, after the
            last line, the judge's model decided on none.
    """
    verdicts: list[Verdict] = []
    unjudged = [
        _parse_for_output(line, f"{source}:{number}") for number, line in enumerate(lines, start=1)
    ]
    for start in range(0, len(unjudged), AT_ONCE):
        chunk = unjudged[start : start + AT_ONCE]
        judged = await gather_all(judge.judge(prompt, reply) for _, prompt, reply in chunk)
        for (fields, *_), verdict in zip(chunk, judged, strict=True):
            yield json.dumps(fields | _labels_of(verdict))
        verdicts += judged
    require_decided(verdicts)


def _read_lines(path: Path) -> Iterator[tuple[str, LabelledReply]]:
    """Yield `file:line` and the reply of every line that is not blank."""
    # Not `splitlines`, which would also divide a line at U+2028 within a text.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, _parse_line(line, where, LabelledReply)[1]


def _parse_line(line: str, where: str, form: type[Form]) -> tuple[Fields, Form]:
    try:
        fields = msgspec.convert(read_json(line, where), Fields)
        return fields, msgspec.convert(fields, form)
    except InputError as error:
        raise InputError(f"{error}; {NEEDED}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; {NEEDED}") from None


def _parse_for_output(line: str, where: str) -> tuple[Fields, Prompt, Reply]:
    fields, saved = _parse_line(line, where, UnjudgedReply)
    try:
        json.dumps(fields, allow_nan=False)  # Python reads numbers that JSON does not have
    except ValueError as error:
        raise InputError(f"{where}: {error}; {NEEDED}") from None
    # Another judge's, which this one need not have.
    fields = {name: value for name, value in fields.items() if name not in {"harm", "answers"}}
    label = PROMPT_LABELS.get(saved.label or "")
    message = Message(role="user", content=saved.prompt)
    return fields, Prompt(id=where, messages=(message,), label=label), Reply(text=saved.response)


def _labels_of(verdict: Verdict) -> Fields:
    labels: Fields = {**answers_of(verdict), "judge": verdict.judge}
    if verdict.harm is not None:
        labels["harm"] = verdict.harm
    if verdict.answers:
        labels["answers"] = msgspec.to_builtins(verdict.answers)
    return labels
