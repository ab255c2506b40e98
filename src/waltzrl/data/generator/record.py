"""One line of the generated data set, and reading the file back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.data.generator.texts import Split
from waltzrl.data.jsonl import read_objects
from waltzrl.errors import InputError
from waltzrl.records import Message, Prompt

Expected = Literal["unsafe", "overrefusal", "safe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPrompt:
    """A prompt, what a good reply does with it, and the families it belongs to."""

    id: str
    prompt: str
    expected_category: Expected
    """`unsafe`: decline. `overrefusal`: frightening words, harmless request. `safe`: plain."""
    safety_category: str
    severity: int
    """7 to 10 for unsafe prompts, 1 to 3 for the others."""
    suggested_response: str
    """How a good reply begins: a short decline that offers help, or a helpful opening."""
    reasoning: str
    topic: str
    """Family of the request."""
    wrapper: str
    """Family of the disguise; `plain` when there is none."""
    code_word: str | None
    """The innocent word that stands for the request, in the disguises that use one."""
    split: Split
    source: str = "synthetic"
    licence: str = "Apache-2.0"

    def to_prompt(self) -> Prompt:
        """The record as the agents and the judges see it."""
        return Prompt(
            id=self.id,
            messages=(Message(role="user", content=self.prompt),),
            label="unsafe" if self.expected_category == "unsafe" else "benign",
            category=self.safety_category,
            source=self.source,
        )


def read_dataset(path: Path) -> list[GeneratedPrompt]:
    """Read what `write_dataset` wrote.

    Raises:
        InputError: the file is missing or empty, or a line is not such a record.
    """
    records = []
    for number, found in read_objects(path):
        try:
            records.append(msgspec.convert(found, GeneratedPrompt))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: not a data set record: {error}") from None
    if not records:
        raise InputError(f"{path} holds no records; write it again with the generator")
    return records
