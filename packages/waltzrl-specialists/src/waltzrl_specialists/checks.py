"""What a program can check of a reply: each check returns what is wrong, or None.

A task names its checks and what each is called with, such as `{"words": [25, 90]}`. A check of
one's own is `module:function`, with the same signature; the type of `argument` says what it needs.
"""

import asyncio
import configparser
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, get_type_hints

import msgspec

from waltzrl.errors import InputError, PolicyError
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox import SandboxLimits, open_program
from waltzrl.records import Message

Check: TypeAlias = Callable[[str, Any], str | None]
# A reply that was cut off has no closing fence.
FENCE = re.compile(r"```[a-z]*\n(.*?)(?:```|\Z)", re.DOTALL)
LIMITS = SandboxLimits(seconds=60, cpu_seconds=2, memory_bytes=256 << 20)
RUNNER = """

def reply(messages):
    import json
    tests = json.loads(messages[-1]["content"])
    return next((test for test in tests if not eval(test, globals())), "")
"""
"""What comes after a reply's code; it returns the first test that is not true."""


class FrameTexts(TypedDict):
    """How a reply begins and ends."""

    begins: str
    ends: str


class Tone(TypedDict):
    """Words of which a reply has at least one, and words of which it has none."""

    has: list[str]
    lacks: list[str]


class Tax(TypedDict):
    """The tax of an invoice."""

    tax_percent: float


def find_problems(reply: str, checks: Mapping[str, object]) -> dict[str, str]:
    """Return what is wrong with a reply, by the name of the check that says so.

    Raises:
        InputError: as `bind_check`, or the machine cannot isolate a program.
    """
    found = {name: bind_check(name, argument)(reply) for name, argument in checks.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def bind_check(name: str, argument: object) -> Callable[[str], str | None]:
    """Return a check that is called with the reply alone.

    Raises:
        InputError: there is no such check, or it cannot be called with the argument.
    """
    check = find_check(name)
    try:
        converted = msgspec.convert(argument, get_type_hints(check).get("argument", object))
    except msgspec.ValidationError as error:
        raise InputError(f"check {name} got {argument!r}: {error}") from None
    return lambda reply: check(reply, converted)


def find_check(name: str) -> Check:
    """Return a check by its name, or by `module:function`.

    Raises:
        InputError: there is none.
    """
    if name in CHECKS:
        return CHECKS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise InputError(f"there is no check {name!r}; use {', '.join(CHECKS)}, or module:function")
    try:
        found: Check = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"check {name}: {error}") from None
    return found


def read_lines(text: str) -> dict[str, str]:
    """Return the `Field: value` lines of a reply; of several for one field the first counts."""
    lines: dict[str, str] = {}
    for line in text.splitlines():
        field, colon, value = line.partition(":")
        if colon:
            lines.setdefault(field.strip(), value.strip())
    return lines


def check_lines(reply: str, argument: dict[str, str]) -> str | None:
    """Check labelled lines: `{"Severity": "major"}`, whatever the case of the value."""
    lines = read_lines(reply)
    for field, value in argument.items():
        if lines.get(field, "").casefold() != value.casefold():
            return f"{field} is {lines.get(field)!r}, not {value!r}"
    return None


def check_line_facts(reply: str, argument: dict[str, list[str]]) -> str | None:
    """Check that labelled lines contain texts: `{"Title": ["oak shelves"]}`."""
    lines = read_lines(reply)
    for field, facts in argument.items():
        if problem := check_facts(lines.get(field, ""), facts):
            return f"{field}: {problem}"
    return None


def check_characters(reply: str, argument: dict[str, tuple[int, int]]) -> str | None:
    """Check the length of labelled lines: `{"Title": [20, 60]}`."""
    lines = read_lines(reply)
    for field, (least, most) in argument.items():
        count = len(lines.get(field, ""))
        if not least <= count <= most:
            return f"{field} has {count} characters, not {least} to {most}"
    return None


def check_facts(reply: str, argument: list[str]) -> str | None:
    """Check that texts are in the reply, as whole words and whatever their case."""
    for fact in argument:
        if not re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", reply, re.IGNORECASE):
            return f"{fact!r} is missing"
    return None


def check_words(reply: str, argument: tuple[int, int]) -> str | None:
    """Check the number of words: `[25, 90]`."""
    least, most = argument
    count = len(reply.split())
    return None if least <= count <= most else f"{count} words, not {least} to {most}"


def check_frame(reply: str, argument: FrameTexts) -> str | None:
    """Check how the reply `begins` and `ends`."""
    if not reply.lstrip().startswith(argument["begins"]):
        return f"it does not begin with {argument['begins']!r}"
    if not reply.rstrip().endswith(argument["ends"]):
        return f"it does not end with {argument['ends']!r}"
    return None


def check_tone(reply: str, argument: Tone) -> str | None:
    """Check words that show a tone: it `has` at least one of these and `lacks` all of those."""
    # Models write either apostrophe.
    text = reply.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if not any(word in text for word in argument["has"]):
        return f"it has none of {', '.join(argument['has'])}"
    return next((f"it has {word!r}" for word in argument["lacks"] if word in text), None)


def check_sections(reply: str, argument: dict[str, list[str]]) -> str | None:
    """Check title, headings and their order, and what each section contains.

    The title is a line `# `, a heading a line `## `; `{"Costs": ["4,000"]}` is what they contain.
    """
    title, *sections = re.split(r"^## ", reply.strip(), flags=re.MULTILINE)
    if not re.fullmatch(r"# \S.*\s*", title):
        return "it does not begin with a title"
    found = {heading.strip(): text for heading, _, text in (s.partition("\n") for s in sections)}
    if list(found) != list(argument) or len(found) != len(sections):
        return f"its headings are {', '.join(found) or 'missing'}, not {', '.join(argument)}"
    for heading, facts in argument.items():
        if problem := check_facts(found[heading], facts):
            return f"{heading}: {problem}"
    return None


def check_json(reply: str, argument: object) -> str | None:
    """Check that the reply is JSON and contains an object's keys, at every depth."""
    try:
        value = json.loads(_strip_fence(reply))
    except (json.JSONDecodeError, RecursionError):
        return "it is not JSON"
    return _find_difference(value, argument, "")


def check_sums(reply: str, argument: Tax) -> str | None:
    """Check the arithmetic of an invoice in JSON, given its `tax_percent`."""
    try:
        invoice = msgspec.json.decode(_strip_fence(reply), type=_Invoice)
    except msgspec.DecodeError as error:
        return str(error)
    for line in invoice.lines:
        if problem := _compare(line.item, line.amount, line.quantity * line.price):
            return problem
    net = sum(line.amount for line in invoice.lines)
    return (
        _compare("net", invoice.net, net)
        or _compare("tax", invoice.tax, invoice.net * argument["tax_percent"] / 100)
        or _compare("total", invoice.total, invoice.net + invoice.tax)
    )


def check_ini(reply: str, argument: dict[str, dict[str, str]]) -> str | None:
    """Check that the reply is an INI file, such as a unit of systemd, with just these values."""
    # Colons are parts of values, such as times of day.
    parser = configparser.RawConfigParser(delimiters=("=",))
    # Keys of systemd are case-sensitive, and configparser would write them small.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(_strip_fence(reply))
    except configparser.Error as error:
        return str(error).partition("\n")[0]
    found = {name: dict(section) for name, section in parser.items() if section}
    for name in argument.keys() | found.keys():
        keys, right = found.get(name, {}), argument.get(name, {})
        for key in sorted(keys.keys() | right.keys()):
            if keys.get(key) != right.get(key):
                return f"{name}.{key} is {keys.get(key)!r}, not {right.get(key)!r}"
    return None


def check_tests(reply: str, argument: list[str]) -> str | None:
    """Run the reply as Python in the sandbox, and check that each expression is true."""
    question = Message(role="user", content=json.dumps(argument))
    code = f"{_strip_fence(reply)}{RUNNER}"

    async def run() -> str:
        async with open_program(code, name="reply.py", limits=LIMITS) as program:
            return (await program.reply([question], Sampling())).text

    try:
        failed = asyncio.run(run())
    except PolicyError as error:
        return str(error)
    return f"not true: {failed}" if failed else None


CHECKS: Mapping[str, Check] = {
    "lines": check_lines,
    "line_facts": check_line_facts,
    "characters": check_characters,
    "facts": check_facts,
    "words": check_words,
    "frame": check_frame,
    "tone": check_tone,
    "sections": check_sections,
    "json": check_json,
    "sums": check_sums,
    "ini": check_ini,
    "tests": check_tests,
}


class _Line(msgspec.Struct):
    item: str
    quantity: float
    price: float
    amount: float


class _Invoice(msgspec.Struct):
    lines: Sequence[_Line]
    net: float
    tax: float
    total: float


def _compare(name: str, value: float, right: float) -> str | None:
    # Half a cent, because amounts are rounded to cents.
    return None if abs(value - right) < 0.005 else f"{name} is {value:g}, not {right:g}"


def _find_difference(value: object, wanted: object, place: str) -> str | None:
    if isinstance(wanted, dict) and isinstance(value, dict):
        pairs = [(f"{place}.{key}", value.get(key), wanted[key]) for key in wanted]
    elif isinstance(wanted, list) and isinstance(value, list) and len(wanted) == len(value):
        pairs = [
            (f"{place}[{number}]", *both)
            for number, both in enumerate(zip(value, wanted, strict=True))
        ]
    else:
        name = place.removeprefix(".") or "it"
        return None if value == wanted else f"{name} is {value!r}, not {wanted!r}"
    return next((found for at, a, b in pairs if (found := _find_difference(a, b, at))), None)


def _strip_fence(reply: str) -> str:
    """Return what is in the first fence of a reply, or all of it."""
    fenced = FENCE.search(reply)
    return fenced[1] if fenced else reply
