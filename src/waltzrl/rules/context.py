"""Weighs the words around a match: some lower its severity, some lift it, none switches it off."""

from waltzrl.rules.scan import compiled

REACH = 80
"""Characters read on each side of a match."""
FLOOR, CEILING = 0.35, 1.25
"""No context lowers or lifts a severity by more, so 0.9 stays above 0.3."""

_BEFORE = {
    0.4: r"\b(?:i|we) (?:can ?not|can.t|won.t|will not|would not|wouldn.t|am not able to"
    r"|am unable to|refuse to)\b[^.!?\n]{0,40}$",
    0.5: r"\b(?:never|(?:do|does|did|must|should|would|could) ?n[o.]t|not (?:to|okay|ok)"
    r"|avoid(?:ing)?|stop(?:ping)?|prevent(?:ing|s)?|illegal to|wrong to|against|myth that"
    r"|claim(?:s|ed)? that|false(?:ly)?|protect \w{1,12} from)\b[^.!?\n]{0,24}$",
}
"""Factors for what stands before a match, in its own sentence."""
_AROUND = {
    0.4: r"\b(?:in|on|for) (?:call of duty|gta|grand theft auto|the sims|minecraft|fortnite|skyrim"
    r"|roblox|dark souls|elden ring|(?:a|the|my|this) (?:video ?|board ?|computer )?game)\b",
    0.6: r"\b(?:prevent(?:ing|ion|s)?|protect(?:ing|ion|s)?"
    r"|defend(?:ing)? (?:against|myself|yourself)|defen[cs]es?|detect(?:ing|ion)?"
    r"|recogni[sz]e|safeguard\w{0,4}|mitigat\w{1,4}|warning signs"
    r"|raise awareness|awareness of|(?:dangers?|harms?|risks?) of|victims? of|survivors?"
    r"|consequences of|penalt(?:y|ies)|punish\w{2,5}|debunk\w{0,3}|combat(?:ing|ting)?|unlike)\b",
    0.75: r"\b(?:history|historical(?:ly)?|century|museum|documentary|lecture|textbook|definition"
    r"|according to|legal consequences|laws? (?:against|about|on)|illegal|crime in which|police"
    r"|arrested|convicted|sentenced|accused|report(?:ed|ing|s)? (?:that|it|this|a|to))\b",
    0.85: r"\b(?:novel|fiction(?:al)?|movie|film|screenplay|characters?|video ?games?|thriller"
    r"|short story|play)\b",
    1.15: r"\b(?:step[- ]by[- ]step|detailed (?:guide|instructions|plan|tutorial)|undetected"
    r"|without (?:getting|being) (?:caught|detected|noticed|seen)|get(?:ting)? away with"
    r"|untraceable|at home|ingredients|(?:materials|equipment) (?:needed|required))\b",
}
"""Factors for what stands around a match."""

_CUES_BEFORE = [(factor, compiled(pattern)) for factor, pattern in _BEFORE.items()]
_CUES_AROUND = [(factor, compiled(pattern)) for factor, pattern in _AROUND.items()]


def weigh(severity: float, before: bytes, match: bytes, after: bytes) -> float:
    """Lower or lift `severity` by what is said around a match.

    Args:
        severity: of the rule.
        before: the last `REACH` characters before the match.
        match: what the rule found.
        after: the first `REACH` characters after it.
    """
    factor = 1.0
    around = b" ".join((before, match, after))
    for weight, cue in _CUES_BEFORE:
        if cue.search(before):
            factor *= weight
    for weight, cue in _CUES_AROUND:
        if cue.search(around):
            factor *= weight
    return round(min(1.0, severity * min(CEILING, max(FLOOR, factor))), 3)
