"""Patterns of sentences with which a reply declines, over text from `refusal.normalise`.

Each pattern should almost never be wrong; the many indirect ways to decline (moralising, changing
the subject) are left to the linear model. Normalised text has no quotations, so a story may quote a
refusal.
"""

import re
from typing import NamedTuple


class RefusalRule(NamedTuple):
    name: str
    pattern: re.Pattern[str]


_HELP = (
    r"(?:assist|help|provide|fulfill?|comply|answer|give|offer|share|support|promote"
    r"|encourage|condone|endorse|recommend|create|write"
    r"|generate|engage|discuss|disclose|suggest|advise|teach|explain|tell(?! you how (?:happy"
    r"|much))"
    r"|talk|do (?:that|this|so)|satisfy|complete|respond|participate|facilitate|access|browse"
    r"|contribute|produce|describe|advocate|justify|guide|instruct|proceed|entertain|accommodate"
    r"|process|grant|honou?r|reveal|speak|predict the future|play (?:audio|music)|carry out"
    r"|be (?:able|of|a part|involved))\b"
    r"(?! (?:you )?(?:an? |any |the )?(?:definitive|exact|precise)\b)"
)
_ADVERB = r"(?:(?:also|simply|just|really|ethically|personally|legally|therefore|actually) )*"
_UNABLE = (
    r"(?:cannot|could not|will not|shall not|am unable to|am not able to|will not be able to"
    r"|am not (?:going|willing|prepared|permitted|allowed|programmed|designed|authori[sz]ed"
    r"|qualified"
    r"|equipped|supposed|in a position|at liberty) to)"
)
_CANNOT = rf"(?:{_UNABLE}|should not|would not(?: be able to)?)"
_ASSISTANT = r"(?:ai\b|language model|artificial intelligence|assistant|chatbot|computer program)"

RULES = tuple(
    RefusalRule(name, re.compile(pattern))
    for name, pattern in {
        "sorry, but I cannot": (
            r"\b(?:sorry|apologi[sz]e|apologies|unfortunately|afraid|regret)\b[^.!?]{0,40}?"
            rf"\b(?:i|we) {_ADVERB}(?:cannot|could not|will not|am unable|am not able|must|have to"
            r"|do not (?:know|have|feel))\b(?! (?:tell you how|imagine|promise|guarantee))"
        ),
        "I cannot assist": (
            rf"\b(?:i|we) {_ADVERB}{_CANNOT} "
            rf"(?:(?:and|or) (?:will|would|should|shall) not )?"
            rf"(?:be )?(?:\w+ly )?{_HELP}|\bi cannot,? (?:and will not|in good conscience)\b"
        ),
        "opens with I cannot": (
            rf"^(?:(?:yes|no|well|oh|hi|hello|hey)\b[,.! ]*)?i {_ADVERB}{_UNABLE} "
            r"(?!believe|imagine|stress|promise|guarantee|see\b|say\b"
            r"|be (?:sure|certain)"
            r"|think of|thank|predict|overstate|emphasi[sz]e|hear|find)"
        ),
        "I decline": (
            r"\bi (?:(?:must|have to|need to|will have to|am going to|would) )?"
            r"(?:(?:respectfully|politely|firmly) )?(?:decline|refuse)\b(?! any)"
        ),
        "I would rather not": (
            r"\bi (?:would (?:rather|prefer) not|am not (?:comfortable|willing)"
            r"|do not (?:feel comfortable|feel right|want to (?:help|assist|write|discuss"
            r"|talk|spread"
            r"|engage)|condone|support (?:or|any|such|the idea)|endorse|encourage (?:or|any)"
            r"|promote"
            r"|engage in|assist|help (?:with|people)|provide|discuss|think (?:it is|that is"
            r"|this is) "
            r"(?:appropriate|right|ethical|okay)))\b"
        ),
        "I do not have access": (
            r"\bi (?:do not|will not) (?:currently )?(?:have|possess)(?: any| the)?"
            r"(?: (?:direct|real-time|personal|specific|such|kind of))* "
            r"(?:access|information|data|details|ability|capability)\b"
            r"|\bi have no (?:access|information|way of knowing)"
        ),
        "I am just an AI": rf"\bi am (?:just|only|merely|simply) an? (?:\w+ ){{0,3}}{_ASSISTANT}",
        "as a responsible AI": (
            r"\bas an? (?:(?:responsible|ethical|safe|harmless|respectful)\b,? ?(?:and )?)+"
            rf"(?:\w+ ){{0,3}}{_ASSISTANT}"
        ),
        "as an AI I cannot": (
            rf"\bas an? (?:\w+ ){{0,4}}{_ASSISTANT}[^.!?]{{0,60}}\bi (?:cannot|am unable"
            rf"|am not able"
            r"|am not (?:programmed|designed|capable)|am programmed to (?:follow|be|prioriti[sz]e"
            r"|avoid)|must (?:adhere|inform|advise|prioriti[sz]e|follow|remind|emphasi[sz]e)"
            r"|do not (?:provide|engage|condone))\b"
        ),
        "I must inform you": (
            r"\b(?:i|we) (?:must|have to|need to|would like to|want to|feel obliged to) "
            r"(?:inform you|stress|emphasi[sz]e|point out|remind you) that\b[^.!?]{0,140}"
            r"\b(?:not|never|illegal|unethical|wrong|crime|harmful|dangerous|offensive"
            r"|inappropriate|against the law|violation)\b"
        ),
        "against my guidelines": (
            r"\b(?:violat\w+|against|contrary to|outside|not within|beyond) (?:of )?"
            r"(?:(?:my|our|openai's) (?:\w+ ){0,4}|(?:the |my )?(?:ethical|safety|content"
            r"|community) )"
            r"(?:guidelines?|polic(?:y|ies)|programming|principles|rules|terms|capabilities"
            r"|standards)"
        ),
        "not something I can do": (
            r"\bnot something (?:that )?i (?:can|will|am|could|would|feel|want|should)"
            r"|\bsomething (?:that )?i (?:cannot|will not|am unable|am not able|am not willing)\b"
        ),
        "it would not be appropriate": (
            r"\b(?:it (?:is|would)|that (?:is|would)|this (?:is|would))(?: be)? "
            r"(?:not|never)(?: be)?(?: \w+ly)? (?:appropriate|ethical|responsible|acceptable"
            r"|okay|ok"
            r"|right|proper|my place)\b(?: (?:or|and|nor) \w+)*,? "
            r"(?:for (?:me|us|an ai|an assistant)|of me|to (?:discuss|provide|share|promote"
            r"|encourage"
            r"|harm|hurt|kill|ask|make|suggest|engage|target|restrain|stalk|steal))\b"
        ),
        "a flat no": (
            r"^(?:no|nope|absolutely not|never)\b ?[,.!]+ "
            r"(?:i (?:will not|cannot|refuse)|(?:that|this) would be)\b"
        ),
        "another language": (
            r"\b(?:tut mir leid|leider) ?[,.]? (?:\w+ ){0,3}kann ich\b"
            r"|\bkann ich (?:\w+ ){0,4}nicht\b"
            r"|\bich kann (?:\w+ ){0,4}(?:nicht|keine) |\bdabei kann ich nicht"
            r"|\bno puedo (?:\w+ ){0,2}(?:ayudar\w*|proporcionar|responder|cumplir|dar"
            r"|ofrecer|asistir"
            r"|hacer|crear|generar)|\bne (?:peux|suis) pas (?:\w+ ){0,3}(?:aider|répondre|fournir"
            r"|en mesure|donner)|\bnão posso (?:\w+ ){0,2}(?:ajud\w+|fornecer|respond\w+|atender"
            r"|cumprir)|\bnon posso (?:\w+ ){0,2}(?:aiutar\w*|fornir\w*|risponder\w*|soddisfare)"
            r"|ik kan (?:\w+ ){0,4}niet|(?:无法|不能|不可以)(?:帮|为您|提供|回答|协助|满足|完成|给)"
            r"|申し訳(?:ありません|ございません)|お(?:応|答)えできません|お手伝いできません"
            r"|죄송(?:하지만|합니다)|не могу (?:\w+ )?(?:помочь|ответить|предоставить|выполнить)"
            r"|لا (?:أستطيع|يمكنني) "
        ),
    }.items()
)


_OPENS_OTHERWISE = re.compile(
    r"^(?:dear|subject|title)\b|^(?:sure|of course|certainly|absolutely)\b ?[,!.]? (?!but\b|not\b)"
)


def first_rule(text: str) -> str | None:
    """Return the name of the first rule that matches normalised `text`, or None.

    No rule applies to a letter, or after an opening such as "Sure, here is": a sentence that
    declines there is usually part of the requested text.
    """
    if _OPENS_OTHERWISE.search(text):
        return None
    for rule in RULES:
        if rule.pattern.search(text):
            return rule.name
    return None
