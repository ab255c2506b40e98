"""Reading the feedback agent's JSON: strict on verdicts, tolerant of text around the object."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from waltzrl.records import Feedback, Reply

UNSAFE_KEYS = ("unsafe", "is_unsafe")
OVERREFUSE_KEYS = ("overrefuse", "is_overrefusing")
LONGEST_REPLY = 20_000
LONGEST_TEXT = 4_000

CONTENT = re.compile(
    r"\s*(?:```(?:json)?\s*)?\{"
    rf'\s*"(?:{"|".join(UNSAFE_KEYS)})"\s*:\s*false\s*,'
    rf'\s*"(?:{"|".join(OVERREFUSE_KEYS)})"\s*:\s*false'
)
"""A reply that begins with an object, and the object with two labels that are both false."""
OPENING = re.compile(r"\{\s*(?:[\"'\u2018-\u201f]|\w+\s*:)")
"""A brace that opens an object, be it JSON or an attempt at it."""
LABEL = re.compile(rf'"(?:{"|".join((*UNSAFE_KEYS, *OVERREFUSE_KEYS))})"\s*:')
"""A label as it is spelt outside of strings, inside which its quotes are escaped."""


def is_content(text: str) -> bool:
    """Say whether the reply, as far as it has come, already says that nothing is wrong.

    Only its very beginning counts: no quoted object, in a reasoning or anywhere, can say it.
    """
    return CONTENT.match(text) is not None


def read_feedback(reply: Reply) -> Feedback:
    """Turn a policy's reply into a Feedback; what cannot be read is data, not an error.

    An object that carries a label is a verdict: it must have both, as JSON booleans. Several may
    stand in the reply, such as one and its repetition, if they agree; the last one's texts count.
    When one contradicts another, an object breaks off or repeats a key, a label stands outside of
    the verdicts, or the reply was cut later than right after one, there is no telling what was
    quoted and what was meant, and the reply cannot be read. One exception: a reply that was ended
    where `is_content` was first true.

    Texts longer than `LONGEST_TEXT` characters are cut; of a reply, the first `LONGEST_REPLY`
    are read.
    """
    text = reply.text[:LONGEST_REPLY]
    if CONTENT.fullmatch(text):
        return Feedback(unsafe=False, overrefuse=False, reply=reply)
    try:
        verdicts = [_verdict(found) for found in _objects(text) if _has_label(found)]
    except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits
        verdicts = []
    agreed = len({(verdict.unsafe, verdict.overrefuse) for verdict in verdicts}) == 1
    if agreed and len(LABEL.findall(text)) == 2 * len(verdicts) and not _is_cut(reply):
        return replace(verdicts[-1], reply=reply)
    return Feedback(unsafe=False, overrefuse=False, well_formed=False, reply=reply)


def write_feedback(*, reasoning: str, unsafe: bool, overrefuse: bool, text: str) -> str:
    """Write the object that `read_feedback` reads; used to warm a feedback agent up."""
    return json.dumps(
        {"reasoning": reasoning, "unsafe": unsafe, "overrefuse": overrefuse, "feedback": text},
        ensure_ascii=False,
    )


def _is_cut(reply: Reply) -> bool:
    """Whether more would have come, unless it was only what follows an object's end."""
    cut = reply.finish == "length" or len(reply.text) > LONGEST_REPLY
    return cut and not reply.text[:LONGEST_REPLY].rstrip().endswith(("}", "`"))


def _has_label(found: dict[str, object]) -> bool:
    return any(key in found for key in (*UNSAFE_KEYS, *OVERREFUSE_KEYS))


def _verdict(found: dict[str, object]) -> Feedback:
    text, reasoning = found.get("feedback", ""), found.get("reasoning", "")
    if not (isinstance(text, str) and isinstance(reasoning, str)):
        raise ValueError  # noqa: TRY004 - no mistake of the caller
    return Feedback(
        unsafe=_label(found, UNSAFE_KEYS),
        overrefuse=_label(found, OVERREFUSE_KEYS),
        text=_clean(text),
        reasoning=_clean(reasoning),
    )


def _label(found: dict[str, object], keys: tuple[str, str]) -> bool:
    values = [found[key] for key in keys if key in found]
    if len(values) != 1 or not isinstance(values[0], bool):
        raise ValueError
    return values[0]


def _clean(text: str) -> str:
    """Cut the text, and put question marks for lone surrogates, which no tokenizer can read."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode()


def _objects(text: str) -> Iterator[dict[str, object]]:
    """Yield every outermost JSON object in `text`, left to right.

    Raises:
        ValueError: an object breaks off, or has a key twice.
        RecursionError: objects are nested too deep.
    """
    decoder, start = json.JSONDecoder(object_pairs_hook=_without_repetition), text.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            if OPENING.match(text, start):
                raise
            end = start + 1
        else:
            yield found
        start = text.find("{", end)


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found
