"""JSON Lines in and out: prompts that people wrote, records that we write.

Every error names the file, the line and, where the JSON itself is broken, the column.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import is_device
from waltzrl.records import Message, Prompt, PromptLabel

NEEDED = (
    'need "prompt" (a text) or "messages" (each a "role" and a text as "content"), and optionally '
    '"id", "label" (unsafe, benign, mixed, unknown or template), "category", "source", "cluster", '
    '"answer"'
)


class _Line(msgspec.Struct, kw_only=True):
    """The fields of a line in a prompt file; others are ignored."""

    id: str | int | float | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    label: Literal["unsafe", "benign", "mixed", "unknown", "template"] | None = None
    expected_category: Literal["unsafe", "overrefusal", "safe"] | None = None
    category: str | None = None
    safety_category: str | None = None
    source: str | None = None
    cluster: str | int | float | None = None
    answer: str | int | float | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Read one prompt per line, in the file's order.

    A line is a Prompt record, or the short form: `prompt` (a text) or `messages`, and optionally
    `id`, `label`, `category`, `source`, `cluster`, `answer`; an id, a cluster and an answer may be
    numbers. Without an id a prompt is called `<file>/<line>`; the labels `unknown` and `template`
    become None. The generator's records are read too: their `expected_category` is the label, their
    `safety_category` the category.

    Raises:
        InputError: the file is missing or empty, a line cannot be read, or an id comes twice.
    """
    prompts: dict[str, Prompt] = {}
    for number, fields in read_objects(path):
        where = f"{path}:{number}"
        prompt = _build_prompt(fields, where, name=f"{path.stem}/{number}", source=path.stem)
        if prompt.id in prompts:
            raise InputError(f"{where}: the id {prompt.id!r} was used above; ids must be unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise InputError(f"{path} holds no prompts; give a file with one JSON object per line")
    return list(prompts.values())


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (line number, object) for every line that is not blank.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    # Not `splitlines`, which also splits at characters that JSON allows within a text.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        value = read_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise InputError(f"{path}:{number}: need a JSON object in braces, got a {kind}")
        yield number, value


def read_json(text: str, where: str) -> object:
    """Read a JSON text; `where` names its file, or its file and line, in errors.

    Raises:
        InputError: it is not JSON; names the column, and the line unless there is only one.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f":{error.lineno}" if "\n" in text else ""
        raise InputError(f"{where}{line}:{error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be read") from None
    except ValueError:  # Python reads no more than 4,300 digits
        raise InputError(f"{where}: a number has too many digits to be read") from None


def read_text(path: Path) -> str:
    """Read a whole UTF-8 file, with or without a byte order mark.

    Raises:
        InputError: there is no such file, or it is not UTF-8 text.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 text; save the file as UTF-8, uncompressed"
        ) from None


def write_lines(path: Path, records: Iterable[object]) -> None:
    """Write one record per line, whole or not at all: a crash leaves the old file as it was.

    A link stays, and its file is replaced; a device or a pipe is written to.

    Raises:
        InputError: the folder is missing or not writable, the disk is full, or a text is not
            valid Unicode.
    """
    if not path.name:
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    target, replaces = Path(os.path.realpath(path)), not is_device(path)
    # With the process's number: two may write the same file at once.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}") if replaces else path
    try:
        with unfinished.open("wb") as file:
            file.writelines(msgspec.json.encode(record) + b"\n" for record in records)
        if replaces:
            unfinished.replace(target)
    except UnicodeEncodeError:
        raise InputError(
            f"cannot write {path}: a text holds half a character, a lone surrogate; fix its source"
        ) from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if replaces:
            with suppress(OSError):  # there is none after a success
                unfinished.unlink()


def _build_prompt(fields: dict[str, object], where: str, *, name: str, source: str) -> Prompt:
    try:
        line = msgspec.convert(fields, _Line)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; {NEEDED}") from None
    if (line.prompt is None) == (line.messages is None):
        raise InputError(f"{where}: need either 'prompt' or 'messages', got {sorted(fields)}")
    messages = line.messages
    if messages is None:
        messages = (Message(role="user", content=line.prompt or ""),)
    if not messages or not messages[-1].content.strip():
        raise InputError(f"{where}: the prompt is blank")
    texts = [str(line.id), *(message.content for message in messages)]
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        raise InputError(
            f"{where}: the prompt or its id holds half a character, a lone surrogate; fix it"
        )
    try:
        return Prompt(
            id=name if line.id is None else str(line.id),
            messages=messages,
            label=_read_label(line),
            category=line.category or line.safety_category or "",
            source=source if line.source is None else line.source,
            cluster="" if line.cluster is None else str(line.cluster),
            answer=None if line.answer is None else str(line.answer),
        )
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _read_label(line: _Line) -> PromptLabel | None:
    if line.label is None and line.expected_category is not None:
        # A prompt of the category `overrefusal` only looks harmful.
        return "unsafe" if line.expected_category == "unsafe" else "benign"
    return line.label if line.label in ("unsafe", "benign", "mixed") else None
