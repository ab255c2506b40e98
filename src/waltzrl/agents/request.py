"""What the rules find in a request, and how much each finding counts.

More than the user's last turn steers a reply. The rules read all of it, as three texts:

    the user's turns              what reaches the last one counts fully
    instructions to the model     system turns, tools, formats, names
    what the model reads          replies, results of tools, documents

What stands before the last turn, or is not the user's, counts fully if the last turn points to it
("Follow the above."), and else too little to make a reply unsafe at the default threshold. A turn
that the assistant refused does not count at all unless the last turn points back to it.

An instruction or a document may name a harm in order to forbid it, to report it or as an example.
A finding in such a sentence counts nothing, nor does one in a sentence that a model reads and that
asks for nothing.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from waltzrl.agents.pointing import continues_turn, points_elsewhere, points_to_instructions
from waltzrl.agents.rules import Rulebook, RuleFinding
from waltzrl.records import Message, Prompt, ToolCall

BACKGROUND_WEIGHT = 0.3
"""The factor on the severity of a finding to which the user's last turn does not point."""
LONGEST_REMEMBERED = 65_536
"""The characters of instructions below which their findings are remembered, as many requests share
them.
"""

MOST_EXCUSED = 50
"""The most findings in a text; of a text with more, which the rules do not search to its end, all
count.
"""
LONGEST_SENTENCE = 300
"""The characters on either side of a finding that belong to its sentence."""
LONGEST_LIST = 4_000
"""The characters of a list above an item, in which the sentence above the list is searched."""
SENTENCE_END = re.compile(r"[.!?\n]")
ESCAPE = re.compile(r"\\++(?:u([0-9a-fA-F]{4})|([bfnrt]))?")
"""An escape in JSON, or in JSON within its strings: of a code, of white space, or of another sign.
"""
JOINED = re.compile(r"[_.:/-]+|(?<=[a-z])(?=[A-Z])")
"""The places where the words of a name are joined."""
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

ABBREVIATION = re.compile(r"\b(?:e\.\s?g|i\.\s?e|etc|incl|vs)\.", re.IGNORECASE)
"""Full stops that end no sentence."""
_CUE = r"(?:e g|i e|such as|like|(?<=\S )for (?:example|instance)|including|examples?:?)"
_SPEAKS = (
    r"(?:ask|say|said|want|mention|express|request|seek|type|send|post|write|message|report|query"
    r"|discuss|talk|inquir|enquir|need|try|threaten|describ|upload|submit)\w*"
)
MENTIONS_BEFORE = re.compile(
    rf"[\s(]{_CUE}\W*(?:[\"'\u2018\u201c][^.!?\n]*|(?:\w+ing|how|wanting|to)\b[^.!?\n]*)$"
    r"|\b(?:labels?|categor(?:y|ies)|class(?:es)?|intents?|topics?|examples?|phrases?)\b[^:\n]*:"
    rf"|\b(?:if|when|whenever|where|unless|in case|once)\b(?:\W+\w+){{0,6}}?\W+{_SPEAKS}\b"
    r"(?:(?<!to )(?!\b(?:explain|tell|describe|answer|give|provide|show|teach|then)\b)[^,;:\n])*$"
    rf"|\b(?:users?|customers?|clients?|people|attackers?|they|someone|anyone|who)(?:\W+\w+){{0,3}}?"
    rf"\W+{_SPEAKS}\W+(?:\w+\W+){{0,6}}[\"'\u2018\u201c][^\"\u201d\n]*$",
    re.IGNORECASE,
)
"""The words that lead to an example, a label or the condition of an instruction."""
EXAMPLE = re.compile(
    r"\W*(?:q|question|user|human|customer|input|message|text|query|prompt)\s*\d*\s*[:=]",
    re.IGNORECASE,
)
"""The beginning of a question in an example."""
ANSWER = re.compile(
    r"\W{0,4}\n?\W*\b(?:a|answer|assistant|ai|bot|agent|label|output|category|class|response|reply)"
    r"\s*\d*\s*[:=][ \t]*(?:[\w-]+\W*(?:\n|$)|[^\n]{0,80}\b(?:can ?not|can.t|won.t|unable|sorry"
    r"|refus|declin|not able|988)\b)",
    re.IGNORECASE,
)
"""The answer in an example: a label or a refusal."""


def request_findings(rulebook: Rulebook, prompt: Prompt) -> Sequence[RuleFinding]:
    """Return what the rules find in all that steers a reply, with weighted severities.

    Of a text that is not the user's the positions are within that text.
    """
    messages = prompt.messages
    if len(messages) == 1 and not prompt.context:  # the common case
        return rulebook.request(messages[0].content)
    turns, instructions, read = _split_turns(prompt)
    last_turn = turns[-1].text if turns else ""
    findings = _search_user_turns(rulebook, turns, last_turn)
    if instructed := _search_other_texts(rulebook, instructions):
        # After a reply, "ok" and "Go on." point to that reply.
        is_pointed_to = (
            points_to_instructions(last_turn) if len(turns) > 1 else points_elsewhere(last_turn)
        )
        findings += [_weigh_unread(finding, is_pointed_to) for finding in instructed]
    if in_read := _search_other_texts(rulebook, read, only_asked=True):
        is_pointed_to = points_elsewhere(last_turn)
        findings += [_weigh_unread(finding, is_pointed_to) for finding in in_read]
    return findings


def _weigh_unread(finding: RuleFinding, is_pointed_to: bool) -> RuleFinding:
    """Weigh a finding outside of the user's turns, of which a classifier reads a part at most."""
    return replace(_weigh_finding(finding, is_pointed_to), unread=True)


@dataclass(slots=True)
class _UserTurn:
    text: str
    reply: str = ""
    """The assistant's last text before the user's next turn."""
    is_answered: bool = False
    """Whether the assistant has spoken or called a tool since."""


def _split_turns(prompt: Prompt) -> tuple[list[_UserTurn], list[str], list[str]]:
    """Return the turns of the user, the instructions, and what the model reads.

    The client writes the tool turns too, so one that follows no call counts as the user's.
    """
    turns: list[_UserTurn] = []
    instructions: list[str] = []
    read: list[str] = []
    for message in prompt.context:
        if message.role in ("system", "user"):
            instructions += _read_unless_trusted(message, prompt)
        else:
            read.append(message.content)
    called = False
    for message in prompt.messages:
        if message.role == "system":
            instructions += _read_unless_trusted(message, prompt)
        elif message.role == "assistant":
            called = bool(message.calls)
            read.append("\n".join([message.content, *map(join_call_words, message.calls)]))
            if turns and message.full_text.strip():
                turns[-1].is_answered = True
                turns[-1].reply = message.content or turns[-1].reply
        elif message.role == "tool" and called:
            read.append(message.content)
        else:
            turns.append(_UserTurn(message.content))
            called = False
    return turns, instructions, read


def _read_unless_trusted(message: Message, prompt: Prompt) -> list[str]:
    trusted = prompt.trusted and message.role == "system"
    return [] if trusted else [message.content]


def _search_user_turns(
    rulebook: Rulebook, turns: Sequence[_UserTurn], last_turn: str
) -> list[RuleFinding]:
    """Search all turns of the user as one text, as a request may be split over turns."""
    text = " ".join(turn.text for turn in turns)
    findings = list(rulebook.request(text))
    if len(turns) == 1 or not findings:  # to tell whether a turn points takes as long as the rules
        return findings
    starts = list(accumulate((len(turn.text) + 1 for turn in turns[:-1]), initial=0))
    # A finding belongs to the turn in which it ends: only there is the request whole.
    ends_in = [bisect_left(starts, finding.end) - 1 for finding in findings]
    refused = {place for place in set(ends_in) if rulebook.refuses(turns[place].reply)}
    # Assent alone does not come back to what was refused.
    answered = [place for place, turn in enumerate(turns[:-1]) if turn.is_answered]
    first_unanswered = answered[-1] + 1 if answered else 0  # a model reads these turns as one
    goes_on, points_back = continues_turn(last_turn), points_elsewhere(last_turn, by_assent=False)
    weighted = []
    for finding, place in zip(findings, ends_in, strict=True):
        if place >= first_unanswered:
            weighted.append(finding)
        elif place not in refused:
            weighted.append(_weigh_finding(finding, goes_on, earlier=True))
        elif points_back:
            weighted.append(_weigh_finding(finding, True, earlier=True))
    return weighted


def _weigh_finding(
    finding: RuleFinding, is_pointed_to: bool, *, earlier: bool = False
) -> RuleFinding:
    weight = 1.0 if is_pointed_to else BACKGROUND_WEIGHT
    return replace(finding, severity=finding.severity * weight, earlier=earlier)


def _search_other_texts(
    rulebook: Rulebook, texts: Sequence[str], *, only_asked: bool = False
) -> Sequence[RuleFinding]:
    """Return the findings that are not in a sentence which forbids, reports or mentions them.

    Args:
        rulebook: the rules.
        texts: texts that are not the user's.
        only_asked: leave out findings in a sentence that asks for nothing.
    """
    if not texts:
        return ()
    text = "\n".join(texts)
    search = _remembered if len(text) <= LONGEST_REMEMBERED else _search_requests
    return search(rulebook, text, only_asked)


def _search_requests(rulebook: Rulebook, text: str, only_asked: bool) -> tuple[RuleFinding, ...]:
    text = text.replace("_", " ")  # names of tools are words joined by it
    text = ABBREVIATION.sub(lambda match: match[0].replace(".", " "), text)
    findings = rulebook.request(text)
    if len(findings) > MOST_EXCUSED:
        return findings
    return tuple(finding for finding in findings if _is_requested(text, finding, only_asked))


_remembered = lru_cache(maxsize=256)(_search_requests)


def _is_requested(text: str, finding: RuleFinding, only_asked: bool) -> bool:
    before, after = _find_sentence(text, finding)
    if only_asked and not ASKS.search(f"{before}{text[finding.start : finding.end]}{after}"):
        return False
    if ENCOURAGES.search(before):
        return True
    return not (
        FORBIDS_BEFORE.search(before)
        or FORBIDS_AFTER.search(after)
        or MENTIONS_BEFORE.search(before)
        or (EXAMPLE.match(before) and ANSWER.match(text, finding.end + len(after)))
    )


def _find_sentence(text: str, finding: RuleFinding) -> tuple[str, str]:
    """Return the sentence before a finding, with the one above its list, and the one after it."""
    start = _find_sentence_start(text, finding.start)
    # Without a line end it is 0, above which no list can begin.
    line = text.rfind("\n", max(0, finding.start - LONGEST_SENTENCE), finding.start) + 1
    introduction = ""
    if ITEM.match(text, line):
        lines = text[max(0, line - LONGEST_LIST) : line].split("\n")
        above = next((part for part in reversed(lines) if _introduces_list(part)), "")
        # The marks at its end do not end this sentence, which goes on in the list.
        introduction = above[_find_sentence_start(above, len(above.rstrip(" .:"))) :]
    last = finding.end + LONGEST_SENTENCE
    end = SENTENCE_END.search(text, finding.end, last)
    return (
        f"{introduction} {text[start : finding.start]}",
        text[finding.end : end.start() if end else last],
    )


def _introduces_list(line: str) -> bool:
    return bool(line.strip()) and not ITEM.match(line)


def _find_sentence_start(text: str, position: int) -> int:
    first = max(0, position - LONGEST_SENTENCE)
    return max(first, *(text.rfind(mark, first, position) + 1 for mark in ".!?\n"))


def join_call_words(call: ToolCall) -> str:
    """Return the words of a call's name and id, and its arguments as the tool receives them.

    The arguments need not be well-formed JSON.
    """
    name, call_id = JOINED.sub(" ", call.name), JOINED.sub(" ", call.id)
    return f"{name}\n{call_id}\n{ESCAPE.sub(_read_escape, call.arguments)}"


def _read_escape(escape: re.Match[str]) -> str:
    if escape[1]:
        return chr(int(escape[1], 16))
    return " " if escape[2] else escape[0]
