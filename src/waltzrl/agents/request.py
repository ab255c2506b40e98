"""What the rules find in a request, and how much each finding counts.

More than the user's last turn steers a reply. The rules read all of it, as three texts:

    the user's turns              count fully, earlier ones half
    instructions to the model     system turns, tools, formats, names: half, or fully if the user's
                                  last turn points to them ("Follow the above.")
    what the model reads          replies, results of tools, documents: too little to make a reply
                                  unsafe at the default threshold, or fully if it points to them

An instruction or a document may name a harm in order to forbid it or to report it. A finding in
such a sentence counts nothing, nor does one in a sentence that a model reads and that asks for
nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from waltzrl.records import Message, Prompt
from waltzrl.rules import Rulebook, RuleFinding

EARLIER_TURN_WEIGHT = 0.5
"""Factor on the severity of a finding before the user's last turn."""
INSTRUCTION_WEIGHT = 0.5
"""Factor on that of a finding in instructions to which the user's last turn does not point."""
READ_WEIGHT = 0.3
"""Factor on that of a finding in what the model reads and the last turn does not point to."""
LONGEST_REMEMBERED = 65_536
"""Characters; the findings in shorter instructions, which many requests share, are remembered."""

OBEYS = re.compile(
    r"\b(?:follow|obey|comply|execute|proceed|continue|perform|implement|fulfil+|carry)\b"
)
MOST_OWN_WORDS = 3
"""Words besides those of `POINTING` in a turn that points and has a word of `OBEYS`."""
_POINTING = """
    a about above again ahead all an and answer any are as ask asked asking asks assistant at
    attached attachment attachments be begin below by can carefully carry command commands complete
    completely content contents context could description descriptions developer direction
    directions do document documents done draft earlier each exactly execute explained file files
    finish first follow following for format from fully function functions give given go good great
    hello hey hi how i in instructed instruction instructions is it just last let lets like
    literally me message messages must my name named need next note notes now of ok okay on one or
    order orders our out output page part perform please precisely preceding prediction previous
    prior proceed prompt prompts provide question questions ready reply request requested requests
    respond response result results right run said say says schema search show so start stated step
    steps sure system task tasks tell text thank thanks that the them then there these they thing
    things this those to told tool tools turn us want was we were what which will with word words
    would write written yeah yep yes you your
"""
POINTING = frozenset(_POINTING.split())
"""Words of a turn that asks for nothing by itself."""
WORD = re.compile(r"[^\W_]+")

MOST_EXCUSED = 50
"""Findings in a text; of a text with more, which the rules do not search to its end, all count."""
LONGEST_SENTENCE = 300
"""Characters on either side of a finding that belong to its sentence."""
LONGEST_LIST = 4_000
"""Characters of a list above an item, in which the sentence above the list is searched."""
SENTENCE_END = re.compile(r"[.!?\n]")
ITEM = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")
"""The beginning of a line of a list, which belongs to the sentence above the list."""
FORBIDS_BEFORE = re.compile(
    r"\b(?:never|not|cannot|can.t|won.t|don.t|doesn.t|mustn.t|shouldn.t|refus\w+|declin\w+"
    r"|reject\w*|avoid|forbid\w*|prohibit\w*|disallow\w*|block|flag\w*|detect|moderat\w+"
    r"|classif\w+|report|escalate|off.limits|unsafe|unable|sorry|warn|prevent|instead of)\b",
    re.IGNORECASE,
)
FORBIDS_AFTER = re.compile(
    r"\b(?:(?:is|are|be) (?:\w+ )?(?:forbidden|prohibited|refused|declined|rejected|blocked|flagged"
    r"|off.limits|unsafe)|not (?:allowed|permitted|ok|okay)|(?:refuse|decline)s?)\b",
    re.IGNORECASE,
)
_IMPERATIVES = """
    act advise answer assist build code come commit compose conduct convince craft create
    demonstrate describe design detail develop devise distribute do draft draw encourage execute
    explain find formulate generate get give hack help identify illustrate imagine instruct invent
    launch list make offer organize outline perform persuade plan prepare present pretend produce
    program promote propose provide publish recommend release reveal sell send share show spread
    start steal suggest teach tell threaten use write
"""
ASKS = re.compile(
    r"^\W*(?:\w+:\s*)?(?:(?:please|now|then|just|and|also|first|next),? )*(?:"
    + "|".join(_IMPERATIVES.split())
    + r")\b|\b(?:how (?:\w+ )?(?:to|do|does|can|could|would|should|might|is|are|i)"
    r"|what (?:is|are|do|does|can|would|should|kind|to|materials|ingredients)"
    r"|where (?:can|do|to|could)|which|why|who|(?:can|could|will|would) you|please"
    r"|i (?:want|need|wish|would like)|help me|(?:guide|steps?|ways?|instructions?|tutorial|recipe"
    r"|method|directions|manual|plan|tips|advice|ideas|examples?)s? (?:\w+ )?(?:to|for|on|of))\b",
    re.IGNORECASE,
)
"""A sentence that asks for something, and does not only state it."""
ENCOURAGES = re.compile(
    r"\b(?:never|not|don.t|no|without)\s+(?:\w+\s+){0,2}"
    r"(?:refus|declin|reject|block|flag|hesitat|report|warn|omit|forget|skip|avoid|fail|mind)\w*",
    re.IGNORECASE,
)
"""Negations that do not forbid: "do not refuse to", "without warning"."""


def request_findings(rulebook: Rulebook, prompt: Prompt) -> Sequence[RuleFinding]:
    """Return what the rules find in all that steers a reply, with weighted severities.

    Of a text that is not the user's the positions are within that text.
    """
    messages = prompt.messages
    if len(messages) == 1 and not prompt.context:  # the common case
        return rulebook.request(messages[0].content)
    users, instructions, read = _texts(prompt)
    findings = _in_user_turns(rulebook, users)
    for texts, weight in ((instructions, INSTRUCTION_WEIGHT), (read, READ_WEIGHT)):
        others = tuple(_in_others(rulebook, texts, only_asked=texts is read)) if texts else ()
        if others:
            points = _points(users[-1] if users else "")
            findings += [
                finding if points else replace(finding, severity=finding.severity * weight)
                for finding in others
            ]
    return findings


def _texts(prompt: Prompt) -> tuple[list[str], list[str], list[str]]:
    """Return the texts of the user, the instructions, and what the model reads.

    The client writes the tool turns too, so one that follows no call counts as the user's.
    """
    users: list[str] = []
    instructions: list[str] = []
    read: list[str] = []
    for message in prompt.context:
        if message.role in ("system", "user"):
            instructions += _unless_trusted(message, prompt)
        else:
            read.append(message.content)
    called = False
    for message in prompt.messages:
        if message.role == "system":
            instructions += _unless_trusted(message, prompt)
        elif message.role == "assistant":
            called = bool(message.calls)
            read.append(message.full_text)
        elif message.role == "tool" and called:
            read.append(message.content)
        else:
            users.append(message.content)
            called = False
    return users, instructions, read


def _unless_trusted(message: Message, prompt: Prompt) -> list[str]:
    trusted = prompt.trusted and message.role == "system"
    return [] if trusted else [message.content]


def _in_user_turns(rulebook: Rulebook, turns: Sequence[str]) -> list[RuleFinding]:
    """Search all turns of the user as one text, as a request may be split over turns."""
    conversation = " ".join(turns)
    last_turn = len(conversation) - len(turns[-1]) if turns else 0
    return [
        finding if finding.end > last_turn else _weighted(finding, EARLIER_TURN_WEIGHT)
        for finding in rulebook.request(conversation)
    ]


def _weighted(finding: RuleFinding, weight: float) -> RuleFinding:
    return replace(finding, severity=finding.severity * weight, weight=weight)


def _in_others(
    rulebook: Rulebook, texts: Sequence[str], *, only_asked: bool
) -> Iterator[RuleFinding]:
    """Yield the findings that are not in a sentence which forbids or reports them.

    Args:
        rulebook: the rules.
        texts: texts that are not the user's.
        only_asked: leave out findings in a sentence that asks for nothing.
    """
    text = "\n".join(texts).replace("_", " ")  # names of tools are words joined by it
    search = _remembered if len(text) <= LONGEST_REMEMBERED else Rulebook.request
    found = search(rulebook, text)
    if len(found) > MOST_EXCUSED:
        yield from found
        return
    for finding in found:
        before, after = _sentence(text, finding)
        if only_asked and not ASKS.search(f"{before}{text[finding.start : finding.end]}{after}"):
            continue
        forbidden = FORBIDS_BEFORE.search(before) or FORBIDS_AFTER.search(after)
        if not forbidden or ENCOURAGES.search(before):
            yield finding


@lru_cache(maxsize=256)
def _remembered(rulebook: Rulebook, text: str) -> tuple[RuleFinding, ...]:
    return rulebook.request(text)


def _sentence(text: str, finding: RuleFinding) -> tuple[str, str]:
    """Return the sentence before a finding, with the one above its list, and the one after it."""
    start = _sentence_start(text, finding.start)
    line = text.rfind("\n", max(0, finding.start - LONGEST_SENTENCE), finding.start) + 1
    introduction = ""
    if ITEM.match(text, line):
        lines = text[max(0, line - LONGEST_LIST) : line].split("\n")
        above = next((part for part in reversed(lines) if _introduces(part)), "")
        introduction = above[_sentence_start(above, len(above.rstrip(" .:"))) :]
    last = finding.end + LONGEST_SENTENCE
    end = SENTENCE_END.search(text, finding.end, last)
    return (
        f"{introduction} {text[start : finding.start]}",
        text[finding.end : end.start() if end else last],
    )


def _introduces(line: str) -> bool:
    return bool(line.strip()) and not ITEM.match(line)


def _sentence_start(text: str, position: int) -> int:
    first = max(0, position - LONGEST_SENTENCE)
    return max(first, *(text.rfind(mark, first, position) + 1 for mark in ".!?\n"))


def _points(turn: str) -> bool:
    """Whether a user's turn asks for nothing by itself: it refers to what stands elsewhere."""
    words = WORD.findall(turn.casefold())
    own = [word for word in words if word not in POINTING]
    return not own or (len(own) <= MOST_OWN_WORDS and OBEYS.search(turn.casefold()) is not None)
