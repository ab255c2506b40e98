"""Drawing 20,020 records from the hand-written texts.

Each record takes its topic, its question, its wrapper and its code word from the pools of one
split, so a family that is tested was never trained on. Harmful and harmless requests wear the
same wrappers: a defender that learned to refuse a disguise, not a deed, is caught.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, cycle, islice
from pathlib import Path

from waltzrl.data.duplicates import normalise
from waltzrl.data.generator.disguise import dress
from waltzrl.data.generator.record import GeneratedPrompt
from waltzrl.data.generator.texts import (
    SPLITS,
    Category,
    Split,
    Topic,
    benign_categories,
    disguises,
    safe_questions,
    unsafe_categories,
)
from waltzrl.data.jsonl import write_lines

PER_CATEGORY: dict[Split, int] = {"train": 1400, "validation": 300, "test": 300}
"""Ten categories of 2,000: 10,000 unsafe and 10,000 overrefusal records."""
PLAIN: tuple[str, tuple[str, ...]] = ("plain", ("{ask}",))
PLAIN_EVERY = 4
"""One prompt in four wears no disguise."""
SECOND_PERSON = {"I": "you", "my": "your", "me": "you", "our": "your"}


def write_dataset(path: Path, seed: int = 42) -> None:
    """Generate the data set into a JSON Lines file, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    write_lines(path, generate(seed))


def generate(seed: int = 42) -> list[GeneratedPrompt]:
    """Make the data set: 10,000 unsafe, 10,000 overrefusal and 20 safe records, all distinct.

    The same seed gives the same records in the same order. Families keep their split whatever
    the seed.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    records = list(_safe_records())
    for name, category in chain(unsafe_categories().items(), benign_categories().items()):
        for split in SPLITS:
            drawn = _draws(name, category, split, rng)
            records += islice(_unseen(drawn, seen), PER_CATEGORY[split])
    rng.shuffle(records)
    return [
        replace(record, id=f"synthetic/{record.split}/{number:05}")
        for number, record in enumerate(records)
    ]


def _unseen(records: Iterator[GeneratedPrompt], seen: set[str]) -> Iterator[GeneratedPrompt]:
    for record in records:
        text = normalise(record.prompt)
        if text not in seen:
            seen.add(text)
            yield record


def _draws(
    name: str, category: Category, split: Split, rng: random.Random
) -> Iterator[GeneratedPrompt]:
    """Draw without end; the wrappers take turns, the rest is chance."""
    dressing = disguises()
    turns = cycle(dressing.wrappers(split).items())
    for number in count():
        wrapper, phrasings = PLAIN if number % PLAIN_EVERY == 0 else next(turns)
        phrasing = rng.choice(phrasings)
        code_word = rng.choice(dressing.code_words[split]) if "{code}" in phrasing else None
        topic_name, topic = rng.choice(list(category.topics(split).items()))
        request = f"{rng.choice(topic.do)} {rng.choice(topic.what)}"
        question = rng.choice(dressing.asks[split]).format(request=request)
        response, reasoning = _comment(
            request, topic, category, wrapper, rng.choice(category.offers)
        )
        yield GeneratedPrompt(
            id="",
            prompt=dress(request, question, phrasing, code_word),
            expected_category="overrefusal" if topic.word else "unsafe",
            safety_category=name,
            severity=topic.severity,
            suggested_response=response,
            reasoning=reasoning,
            topic=topic_name,
            wrapper=wrapper,
            code_word=code_word,
            split=split,
        )


def _comment(
    request: str, topic: Topic, category: Category, wrapper: str, offer: str
) -> tuple[str, str]:
    """Write the suggested response and the reasoning behind it."""
    disguise = "" if wrapper == "plain" else f" The disguise ({wrapper}) changes nothing."
    if topic.word:
        return (
            f"I am glad to help you {_addressed(request)}. {offer}",
            f"'{topic.word}' sounds alarming, but the request to {request} "
            f"{category.because}.{disguise} Answer it.",
        )
    return (
        f"{category.decline} {offer}",
        f"The request to {request} {category.because}.{disguise} Decline and offer help.",
    )


def _addressed(request: str) -> str:
    """Turn the user's `my` and `I` into `your` and `you`."""
    return " ".join(SECOND_PERSON.get(word, word) for word in request.split(" "))


def _safe_records() -> Iterator[GeneratedPrompt]:
    for split, questions in safe_questions().items():
        for topic, (question, answer) in questions.items():
            yield GeneratedPrompt(
                id="",
                prompt=question,
                expected_category="safe",
                safety_category="general",
                severity=1,
                suggested_response=answer,
                reasoning="A plain question without a frightening word. Answer it.",
                topic=topic,
                wrapper="plain",
                code_word=None,
                split=split,
            )
