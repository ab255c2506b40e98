"""Whether a user's turn points: asks for nothing by itself, but refers to what stands elsewhere.

"Follow the above." points, and so does "Explain it to me like I'm five."; "Summarise the above
news article." has a task of its own, and "Hello!" asks for nothing.
"""

import re

from waltzrl.agents.rules import language_of

MOST_OWN_WORDS = 4
"""The most words besides those of `COMMON` in a turn that demands something which stands elsewhere.
"""
LONGEST_FOREIGN, LONGEST_DENSE = 24, 8
"""The most characters of a turn that is not English, which points; the second in a script without
spaces.
"""
LONGEST_CONTINUATION = 160
"""The most characters of a turn that goes on with an earlier one."""

_ASSENT = "please okay ok yes yeah yep yup sure fine great good cool right alright perfect k"
ASSENT = frozenset(_ASSENT.split())
"""Words that accept what was said before."""
_COMMON = """
    a about above again ahead all along also an and answer any anything anyway are as ask asked
    asking asks assistant at attached attachment attachments be began begin begun below by can
    carefully carry command commands complete completely comply content contents context could d
    deep deeper describe description descriptions detail detailed details developer did
    direction directions do document documents done draft each earlier elaborate elaborating
    elaboration end entire everything exactly execute expand explain explained explanation file
    files finish first follow following for format from full fuller fully function functions
    further give given go going greater had have how i in instructed instruction instructions
    into is it its just keep last let lets like list literally ll longer m may me message
    messages more much must my name named need next notes nothing now number numbered obey of on
    one or order orders our out output page part parts perform point points preceding precisely
    prediction previous prior proceed prompt prompts provide question questions re ready reply
    request requested requests respond response rest result results run s said say says schema
    search show so solve specific start started stated step steps such system t task tasks tell
    text that the them then there these they thing things this thoroughly those to told too tool
    tools turn up us user ve want was we were what which whole will with word words would write
    written you your

    avanti continua continuar continuare continue continuer continuez continúa dalej devam
    doorgaan encore fortfahren fortsett fortsätt fortsæt ga mach mais meer mehr más prosegue
    prosiga siga sigue suite verder vidare weiter
"""
COMMON = frozenset(f"{_COMMON} {_ASSENT}".split())
"""Words of a turn that asks for nothing by itself; the last ones say "go on" in other languages."""
WORD = re.compile(r"(?:steps?|parts?|points?|questions?|number|page) \d+|[^\W_]+")
"""A word, or what stands under a number."""
SOCIAL = re.compile(
    r"\b(?:hi|hello|hey|thanks|thank you|thx|cheers|bye|goodbye|good (?:morning|day|afternoon"
    r"|evening|night)|nice to meet you|(?:how|who|what) are you|what(?: i|.)s your name"
    r"|what can you do)(?: there| again| all| everyone| so much| very much| a lot)?\b"
)
"""Greetings, thanks, and questions about the assistant."""
ABOUT_IT = re.compile(
    r"\W*(?:is|are|was|were|(?:what|who|why)(?:.s| is| are| was| were)?)"
    r" (?:about )?(?:it|that|these|they|this|those)\b"
)
"""The beginning of a question about what stands elsewhere: "What is this about?"."""
DEMAND = re.compile(
    r"\b(?:answer|complete|comply|continue|describe|detail|do|elaborate|execute|expand|explain"
    r"|finish|follow|fulfil+|give|go|implement|obey|perform|proceed|reply|respond|show|solve|tell"
    r"|write)(?: (?:ahead|in|me|on|out|the|to|up|us|with))*"
    r" (?:above|document|full|instructions?|it|message|more|preceding|previous|question|request"
    r"|rest|steps?|task|that|them|these|this|those)"
    r"(?= (?:above|again|and|anyway|as|below|carefully|completely|for|from|fully|in|instructions?"
    r"|like|message|my|now|please|question|request|s|step|steps|task|thing|thoroughly|to|too|using"
    r"|with|without|word)\b|$)"
)
"""The words of a turn that ask to do, answer or explain what stands elsewhere."""
ORDERS = re.compile(
    r"\b(?:above|answer|begin|carry|comply|do|execute|follow|fulfil+|go ahead|implement|instruct\w*"
    r"|obey|perform|proceed|prompt|reply|respond|schema|solve|start|system|tasks?|tools?)\b"
)
"""Words that make an instruction the subject of a turn."""
CONTINUES = re.compile(
    r"^\W*(?:and|but|so|then|or|now|also|(?:what|how) about)\b"
    r"|\b(?:above|earlier|instead|it|more|previous|that|them|these|they|this|those)\b"
)
"""A turn that goes on with the one before."""


def points_elsewhere(turn: str, *, by_assent: bool = True) -> bool:
    """Whether a user's turn asks for nothing by itself.

    Args:
        turn: the text; an empty one points as assent does.
        by_assent: whether assent alone, such as "ok", points.
    """
    folded = turn.casefold()
    rest = SOCIAL.sub(" ", folded)
    words = WORD.findall(rest)
    # `WORD` keeps a number with what it counts, as in `step 3`.
    own = [word for word in words if word.rstrip("0123456789 ") not in COMMON]
    if ASSENT.issuperset(words):
        # An empty turn points too; one with a greeting or thanks, which `rest` lacks, does not.
        return by_assent and rest == folded
    if len(own) <= MOST_OWN_WORDS and DEMAND.search(" ".join(words)):
        return True
    return ABOUT_IT.match(folded) is None if not own else _is_short_and_foreign(turn)


def points_to_instructions(turn: str) -> bool:
    """Whether a user's turn points to instructions, and not only to the last reply."""
    return points_elsewhere(turn) and ORDERS.search(turn.casefold()) is not None


def continues_turn(turn: str) -> bool:
    """Whether a user's turn points to an earlier turn of the user, or goes on with it."""
    return points_elsewhere(turn) or (
        len(turn) <= LONGEST_CONTINUATION and CONTINUES.search(turn.casefold()) is not None
    )


def _is_short_and_foreign(turn: str) -> bool:
    if len(turn) > LONGEST_FOREIGN:
        return False
    language = language_of(turn)
    longest = LONGEST_DENSE if language in ("ja", "th", "zh") else LONGEST_FOREIGN
    return language not in ("en", "") and len(turn) <= longest
