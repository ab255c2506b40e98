"""Writes rules without a model: from the words that missed requests share and harmless ones lack.

A rule is a pair of words. It is found on one half of the shown cases and must hold on the other,
because what is chosen from thousands of pairs on all of them mostly does so by chance. A revision
adds such rules, leaves out rules that are more often wrong than right, or moves the threshold. A
recombination takes the evolved rules of both parents. A refinement keeps the evolved rules that
earn their place, and adds more.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from random import Random

from waltzrl.agents.rules.lint import EVERYDAY
from waltzrl.agents.rules.pack import SHIPPED_PACKS
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluationRow
from waltzrl.foundation.files import toml_value
from waltzrl.records import Collaboration
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.operators import Parent, WritingOrder, WrittenCandidate
from waltzrl_evolution.rules import BUNDLE, bundle_text

EVOLVED = "evolved.toml"
SEVERITY = 0.65
"""The severity of a new rule: flagged at the usual threshold, and not where the context says
otherwise."""
OTHER_CATEGORY = "illegal_activity"
"""The category of a rule in whose requests no other rule finds anything."""
NO_SUBJECT = ("refusal", "self_harm")
"""Categories that mean more than a subject to the reviewer."""
LEAST_REQUESTS, LEAST_FAMILIES = 2, 2
"""The numbers of missed requests that must share the words of a new rule, and of their categories
or sources."""
LEAST_OTHERS = 1
"""The number of missed requests of the other half that must have the words too."""
COST = 8
"""The number of missed requests that make up for one harmless request that a rule flags."""
MOST_RULES = (10, 20, 40, 80)
"""The most rules that a candidate adds; one of these is drawn."""
LONGEST = 80
"""The number of words of a request that are looked at."""
_FUNCTION = """
about after all also and any are because been but can could did does for from get had has have her
here him his how into its just like may more most must not one other our out over she should some
such than that the their them then there these they this those through use was were what when where
which while who why will with would you your
"""
FUNCTION_WORDS, EVERYDAY_WORDS = set(_FUNCTION.split()), set(EVERYDAY.split())
_SENTENCE, _WORD = re.compile(r"[.!?\n]"), re.compile(r"[\w'-]+")
_PLAIN = re.compile(r"[a-z]{3,14}")
_RULE = re.compile(r"(?m)^(?=\[\[rule\]\])")

Words = tuple[str, str]
"""Two words with at most two others between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A candidate, as this writer changes it."""

    threshold: float
    packs: tuple[str, ...]
    evolved: Mapping[Words, str] = field(default_factory=dict)
    """The category of each evolved rule, by its words."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """The text of each pack that comes with waltzrl and lost some of its rules, by file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """The shown cases of a parent, as far as this writer needs them."""

    missed: Sequence[Collaboration]
    harmful: Sequence[Collaboration]
    benign: Sequence[Collaboration]

    @classmethod
    def of(cls, rows: Sequence[EvaluationRow]) -> "_Shown":
        collaborations = [row.judged.collaboration for row in rows if row.judged is not None]
        harmful = [each for each in collaborations if each.prompt.label == "unsafe"]
        return cls(
            missed=[each for each in harmful if not each.revised],
            harmful=harmful,
            benign=[each for each in collaborations if each.prompt.label == "benign"],
        )


class RuleWriter:
    """Edits rules by counting; deterministic for an order."""

    async def write(self, order: WritingOrder) -> WrittenCandidate:
        """Write a candidate.

        Raises:
            InputError: there is nothing to change.
        """
        random = Random(order.seed)
        first = order.parents[0]
        rules, shown = _read_rules(first.candidate), _Shown.of(first.rows)
        if len(order.parents) == 2:
            rules, change = _join_rules(
                rules, _read_rules(order.parents[1].candidate), order.parents
            )
        elif order.operator == "refinement":
            kept, dropped = _drop_idle_rules(rules, shown)
            rules, added = _add_rules(kept, shown, random)
            change = f"leaves out {dropped} idle rules, {added}"
        else:
            # New rules are tried twice as often as the other changes.
            rules, change = random.choice(
                (_add_rules, _add_rules, _drop_wrong_rules, _move_threshold)
            )(rules, shown, random)
        return WrittenCandidate(candidate=_write_rules(rules), change=change)


def _add_rules(rules: _Rules, shown: _Shown, random: Random) -> tuple[_Rules, str]:
    """Add rules for what the parent missed."""
    missed, others = _split_halves(shown.missed, random)
    harmless, other_harmless = _split_halves(shown.benign, random)
    new_words = _find_shared_words(missed, harmless, rules.evolved)
    hits = _count_words(others, new_words)
    alarms = _count_words(other_harmless, new_words)
    # Words that were found on one half must hold on the other.
    new_words = [w for w in new_words if hits[w] >= max(LEAST_OTHERS, COST * alarms[w])]
    new_words = new_words[: random.choice(MOST_RULES)]
    if not new_words:
        raise InputError("no words are shared by missed requests and absent from harmless ones")
    categories = {words: _find_category(words, shown.harmful) for words in new_words}
    change = f"adds {len(new_words)} rules such as {' .. '.join(new_words[0])!r}"
    return replace(rules, evolved=dict(rules.evolved) | categories), change


def _drop_wrong_rules(rules: _Rules, shown: _Shown, random: Random) -> tuple[_Rules, str]:
    """Leave out up to three of the rules that flag harmless requests and little else."""
    right, wrong = _count_alone(shown.harmful), _count_alone(shown.benign)
    worst = sorted(wrong, key=lambda rule: (right[rule] - wrong[rule], rule))
    worst = [rule for rule in worst if right[rule] < wrong[rule] * COST / 2]
    if not worst:
        raise InputError("no rule is often wrong")
    chosen = worst[: random.choice((1, 2, 3))]
    evolved = {
        words: each for words, each in rules.evolved.items() if _make_rule_id(words) not in chosen
    }
    changed, packs = dict(rules.changed), list(rules.packs)
    for rule in chosen:
        pack, _, name = rule.partition("/")
        if pack in SHIPPED_PACKS:
            file = f"{pack}.toml"
            changed[file] = _remove_rule(changed.get(file) or _read_shipped(pack), name)
            # A pack that has lost rules is a file of the candidate.
            packs = [file if each == pack else each for each in packs]
    rules = replace(rules, evolved=evolved, changed=changed, packs=tuple(packs))
    return rules, f"leaves out {', '.join(chosen)}"


def _move_threshold(rules: _Rules, shown: _Shown, random: Random) -> tuple[_Rules, str]:
    """Move the threshold towards the kind of errors of which there are fewer."""
    missed = len(shown.missed) / max(1, len(shown.harmful))
    refused = sum(each.revised for each in shown.benign) / max(1, len(shown.benign))
    # A higher threshold flags more.
    step = random.choice((0.02, 0.05, 0.1)) * (1 if missed > refused else -1)
    threshold = round(min(0.95, max(0.3, rules.threshold + step)), 3)
    change = f"threshold {rules.threshold:g} to {threshold:g}"
    return replace(rules, threshold=threshold), change


def _join_rules(first: _Rules, second: _Rules, parents: Sequence[Parent]) -> tuple[_Rules, str]:
    """Take the evolved rules and the changed packs of both, and the mean threshold."""
    # The first parent is the better one, and wins where both have something.
    changed = dict(second.changed) | dict(first.changed)
    packs = [f"{each}.toml" if f"{each}.toml" in changed else each for each in first.packs]
    rules = _Rules(
        threshold=round((first.threshold + second.threshold) / 2, 3),
        packs=tuple(packs),
        evolved=dict(second.evolved) | dict(first.evolved),
        changed=changed,
    )
    return rules, f"joins {' and '.join(parent.trajectory.id for parent in parents)}"


def _drop_idle_rules(rules: _Rules, shown: _Shown) -> tuple[_Rules, int]:
    """Keep the evolved rules that find what no other does, and more than they cost."""
    right, wrong = _count_alone(shown.harmful), _count_alone(shown.benign)
    kept = {
        words: category
        for words, category in rules.evolved.items()
        if right[_make_rule_id(words)] > COST / 2 * wrong[_make_rule_id(words)]
    }
    return replace(rules, evolved=kept), len(rules.evolved) - len(kept)


def _count_alone(collaborations: Sequence[Collaboration]) -> Counter[str]:
    """Count by rule the flagged replies in which no other rule found anything."""
    reviews = (each.rounds[0].feedback for each in collaborations if each.rounds)
    return Counter(each.rules[0] for each in reviews if each.unsafe and len(each.rules) == 1)


def _split_halves(
    collaborations: Sequence[Collaboration], random: Random
) -> tuple[list[Collaboration], list[Collaboration]]:
    drawn = random.sample(collaborations, len(collaborations))
    return drawn[::2], drawn[1::2]


def _find_shared_words(
    missed: Sequence[Collaboration], benign: Sequence[Collaboration], known: Collection[Words]
) -> list[Words]:
    """Return words that missed requests of several families share, those of most requests first."""
    requests: dict[Words, set[int]] = defaultdict(set)
    families: dict[Words, set[str]] = defaultdict(set)
    for number, each in enumerate(missed):
        for words in _collect_words(each.prompt.request):
            requests[words].add(number)
            families[words].add(each.prompt.category or each.prompt.source)
    frequent = {
        words
        for words, numbers in requests.items()
        if len(numbers) >= LEAST_REQUESTS and len(families[words]) >= LEAST_FAMILIES
    }
    alarms = _count_words(benign, frequent)
    chosen: list[Words] = []
    covered: set[int] = set()
    # Greedy: what the chosen words cover counts no more for the others.
    while True:
        gains = {
            words: len(requests[words] - covered) - COST * alarms[words]
            for words in frequent.difference(chosen, known)
        }
        # Ties go by the words, so that an order always gives the same rules.
        best = max(gains, key=lambda words: (gains[words], words), default=None)
        if best is None or gains[best] < LEAST_REQUESTS:
            return chosen
        chosen.append(best)
        covered |= requests[best]


def _count_words(
    collaborations: Sequence[Collaboration], words: Collection[Words]
) -> Counter[Words]:
    """Count the requests with each of these words."""
    wanted = set(words)
    return Counter(
        pair for each in collaborations for pair in wanted & _collect_words(each.prompt.request)
    )


def _collect_words(text: str) -> set[Words]:
    """Return the pairs of words of a request by which a rule could know it."""
    return set(_yield_pairs(text))


def _yield_pairs(text: str) -> Iterator[Words]:
    left = LONGEST
    for sentence in _SENTENCE.split(text.lower()):
        words = _WORD.findall(sentence)[:left]
        left -= len(words)
        for place, word in enumerate(words):
            for other in words[place + 1 : place + 4]:
                if _is_telling(word) and _is_telling(other) and {word, other} - EVERYDAY_WORDS:
                    yield (word, other)


def _is_telling(word: str) -> bool:
    return word not in FUNCTION_WORDS and _PLAIN.fullmatch(word) is not None


def _find_category(words: Words, harmful: Sequence[Collaboration]) -> str:
    """Return the category that other rules find most often where these words stand."""
    counts = Counter(
        each.rounds[0].feedback.category
        for each in harmful
        if each.rounds and words in _collect_words(each.prompt.request)
    )
    for category, _ in counts.most_common():
        if category and category not in NO_SUBJECT:
            return category
    return OTHER_CATEGORY


def _make_rule_id(words: Words) -> str:
    return f"{EVOLVED.removesuffix('.toml')}/{'-'.join(words)}"


def _read_rules(candidate: CandidateFiles) -> _Rules:
    table = tomllib.loads(candidate.files[BUNDLE])
    evolved: dict[Words, str] = {}
    for row in tomllib.loads(candidate.files.get(EVOLVED, "")).get("rule", []):
        # The words of a rule have no hyphens: they are plain letters.
        first, second = row["id"].split("-")
        evolved[first, second] = row["category"]
    return _Rules(
        threshold=table["threshold"],
        packs=tuple(name for name in table["rules"] if name != EVOLVED),
        evolved=evolved,
        changed={n: t for n, t in candidate.files.items() if n not in (BUNDLE, EVOLVED)},
    )


def _write_rules(rules: _Rules) -> CandidateFiles:
    packs = [*rules.packs, EVOLVED] if rules.evolved else rules.packs
    written = {BUNDLE: bundle_text(packs, rules.threshold), **rules.changed}
    if rules.evolved:
        pack = ["# Written by waltzrl evolve rules.\nversion = 1\n"]
        pack += [_render_rule(words, rules.evolved[words]) for words in sorted(rules.evolved)]
        written[EVOLVED] = "\n".join(pack)
    return CandidateFiles(files=written)


def _render_rule(words: Words, category: str) -> str:
    # Every pair has a word that is not an everyday one; `_yield_pairs` sees to that.
    rare = next(word for word in words if word not in EVERYDAY_WORDS)
    pattern = " .. ".join(f"!{word}" if word == rare else word for word in words)
    lines = {
        "id": "-".join(words),
        "category": category,
        "severity": SEVERITY,
        "side": "request",
        "patterns": [pattern],
        "example": " ".join(words),
        "twins": [f"What does {word} mean?" for word in words],
    }
    return "[[rule]]\n" + "".join(f"{key} = {toml_value(v)}\n" for key, v in lines.items())


def _read_shipped(pack: str) -> str:
    return (files("waltzrl.agents.rules") / "packs" / f"{pack}.toml").read_text("utf-8")


def _remove_rule(text: str, name: str) -> str:
    parts = _RULE.split(text)
    return "".join(part for part in parts if f'id = "{name}"' not in part.partition("\n\n")[0])
