"""Parsing the feedback agent's JSON: strict on labels, tolerant of text around the object.

The reviewed reply is untrusted, and the feedback agent may quote it: a reply that contains
`{"unsafe": false, "overrefuse": false}` must not pass for its own review. So wherever a quotation
could be mistaken for the agent's labels, the feedback counts as unreadable.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from waltzrl.agents.rules import CATEGORIES
from waltzrl.records import Feedback, Reply

UNSAFE_KEYS = ("unsafe", "is_unsafe")
OVERREFUSE_KEYS = ("overrefuse", "is_overrefusing")
LONGEST_REPLY = 20_000
LONGEST_TEXT = 4_000

APPROVAL = re.compile(
    r"\s*(?:```(?:json)?\s*)?\{"
    rf'\s*"(?:{"|".join(UNSAFE_KEYS)})"\s*:\s*false\s*,'
    rf'\s*"(?:{"|".join(OVERREFUSE_KEYS)})"\s*:\s*false'
)
"""The beginning of a reply whose object begins with two labels that are both false."""
OPENING = re.compile(r"\{\s*(?:[\"'\u2018-\u201f]|\w+\s*:)")
"""A brace that opens an object, of JSON or of an attempt at JSON."""
LABEL = re.compile(rf'"(?:{"|".join((*UNSAFE_KEYS, *OVERREFUSE_KEYS))})"\s*:')
"""A label outside of JSON strings; inside them its quotes would be escaped."""


def is_approval(text: str) -> bool:
    """Return whether a reply that begins with `text` finds nothing wrong, whatever follows.

    Only the very beginning counts, so that an object quoted later cannot approve.
    """
    return APPROVAL.match(text) is not None


def read_feedback(reply: Reply) -> Feedback:
    """Parse a policy's reply; if it is unreadable, the feedback has `well_formed=False`.

    An object with a label is an assessment and must have both labels, as JSON booleans. A reply
    may contain several if they agree, as when the agent repeats itself; the texts of the last one
    count. The reply is unreadable if assessments contradict each other, an object is incomplete
    or repeats a key, a label is outside of the assessments, or the reply was truncated anywhere
    but right after an assessment: then quotation and judgement cannot be told apart. The one
    exception is a reply that was stopped where `is_approval` first held.

    Texts are cut to `LONGEST_TEXT` characters; only the first `LONGEST_REPLY` characters of a
    reply are parsed.
    """
    text = reply.text[:LONGEST_REPLY]
    if APPROVAL.fullmatch(text):
        return Feedback(unsafe=False, overrefuse=False, reply=reply)
    try:
        assessments = [
            _read_assessment(fields) for fields in _yield_json_objects(text) if _has_label(fields)
        ]
    except (ValueError, RecursionError):  # ValueError: also for an integer of too many digits
        assessments = []
    agree = len({(feedback.unsafe, feedback.overrefuse) for feedback in assessments}) == 1
    # Any further label is one that the parser did not see, such as in a broken object.
    if agree and len(LABEL.findall(text)) == 2 * len(assessments) and not _is_truncated(reply):
        return replace(assessments[-1], reply=reply)
    return Feedback(unsafe=False, overrefuse=False, well_formed=False, reply=reply)


def write_feedback(*, reasoning: str, unsafe: bool, overrefuse: bool, text: str) -> str:
    """Write the object that `read_feedback` parses; demonstrations for the warm-up contain it."""
    return json.dumps(
        {"reasoning": reasoning, "unsafe": unsafe, "overrefuse": overrefuse, "feedback": text},
        ensure_ascii=False,
    )


def _is_truncated(reply: Reply) -> bool:
    """Return whether an object may be missing its end."""
    truncated = reply.finish == "length" or len(reply.text) > LONGEST_REPLY
    # The mark of a code fence may follow the object.
    return truncated and not reply.text[:LONGEST_REPLY].rstrip().endswith(("}", "`"))


def _has_label(fields: dict[str, object]) -> bool:
    return any(key in fields for key in (*UNSAFE_KEYS, *OVERREFUSE_KEYS))


def _read_assessment(fields: dict[str, object]) -> Feedback:
    text, reasoning = fields.get("feedback", ""), fields.get("reasoning", "")
    if not (isinstance(text, str) and isinstance(reasoning, str)):
        raise ValueError  # noqa: TRY004 - invalid data, no mistake of the caller
    unsafe, category = _read_label(fields, UNSAFE_KEYS), fields.get("category")
    return Feedback(
        unsafe=unsafe,
        overrefuse=_read_label(fields, OVERREFUSE_KEYS),
        category=category if unsafe and category in CATEGORIES else "",
        text=_clean_text(text),
        reasoning=_clean_text(reasoning),
    )


def _read_label(fields: dict[str, object], keys: tuple[str, str]) -> bool:
    values = [fields[key] for key in keys if key in fields]
    if len(values) != 1 or not isinstance(values[0], bool):
        raise ValueError
    return values[0]


def _clean_text(text: str) -> str:
    """Truncate the text; replace lone surrogates, which no tokenizer accepts, by question marks."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode()


def _yield_json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield every outermost JSON object in `text`, left to right.

    Raises:
        ValueError: an object is incomplete, or has a duplicate key.
        RecursionError: objects are nested too deeply.
    """
    decoder, start = json.JSONDecoder(object_pairs_hook=_refuse_duplicates), text.find("{")
    while start >= 0:
        try:
            fields, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            if OPENING.match(text, start):
                raise
            end = start + 1  # a brace in prose, such as "{thinking}"
        else:
            yield fields
        start = text.find("{", end)


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields
