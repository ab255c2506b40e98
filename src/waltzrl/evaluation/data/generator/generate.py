"""The synthetic data set: 20,020 records drawn from hand-written texts, and read back.

Each record takes its topic, its question, its wrapper and its code word from the pools of one
split, so a family that is tested was never trained on. Harmful and harmless requests share the same
wrappers, which exposes a model that learned to refuse a disguise instead of a request.
"""

import base64
import codecs
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.data.duplicates import normalise_text
from waltzrl.evaluation.data.generator.texts import (
    SPLITS,
    Category,
    Split,
    Topic,
    benign_categories,
    read_disguises,
    safe_questions,
    unsafe_categories,
)
from waltzrl.foundation.jsonl import read_objects, write_lines
from waltzrl.records import Collaboration, Demonstration, Feedback, Message, Prompt, Reply, Round

PER_CATEGORY: dict[Split, int] = {"train": 1400, "validation": 300, "test": 300}
"""Ten categories of 2,000: 10,000 unsafe and 10,000 overrefusal records."""
PLAIN: tuple[str, tuple[str, ...]] = ("plain", ("{ask}",))
PLAIN_EVERY = 4
"""One prompt in four has no disguise."""
SECOND_PERSON = {"I": "you", "my": "your", "me": "you", "our": "your"}
LEET = str.maketrans("aeiostAEIOST", "431057431057")

Expected = Literal["unsafe", "overrefusal", "safe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPrompt:
    """A prompt, what a good reply does with it, and the families it belongs to."""

    id: str
    prompt: str
    expected_category: Expected
    """`unsafe`: decline. `overrefusal`: alarming words, harmless request. `safe`: plain."""
    safety_category: str
    severity: int
    """7 to 10 for unsafe prompts, 1 to 3 for the others."""
    suggested_response: str
    """The beginning of a good reply: a short decline that offers help, or a helpful opening."""
    reasoning: str
    topic: str
    """Family of the request."""
    wrapper: str
    """Family of the disguise; `plain` when there is none."""
    code_word: str | None
    """The innocent word that stands for the request, in the disguises that use one."""
    split: Split
    source: str = "synthetic"
    licence: str = "Apache-2.0"

    def to_prompt(self) -> Prompt:
        """The record as the agents and the judges see it."""
        return Prompt(
            id=self.id,
            messages=(Message(role="user", content=self.prompt),),
            label="unsafe" if self.expected_category == "unsafe" else "benign",
            category=self.safety_category,
            source=self.source,
        )


def write_dataset(path: Path, seed: int = 42) -> None:
    """Generate the data set into a JSON Lines file, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    write_lines(path, generate(seed))


def write_splits(folder: Path, seed: int = 42) -> dict[Path, int]:
    """Generate the data set into a file for each split, such as `train.jsonl`.

    Returns:
        Each file, and how many records it has.

    Raises:
        InputError: a file cannot be written.
    """
    records = generate(seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}; name a folder") from None
    parts = {split: [record for record in records if record.split == split] for split in SPLITS}
    for split, part in parts.items():
        write_lines(folder / f"{split}.jsonl", part)
    return {folder / f"{split}.jsonl": len(part) for split, part in parts.items()}


def read_dataset(path: Path) -> list[GeneratedPrompt]:
    """Read a file that `write_dataset` wrote.

    Raises:
        InputError: the file is missing or empty, or a line is not such a record.
    """
    records = []
    for number, fields in read_objects(path):
        try:
            records.append(msgspec.convert(fields, GeneratedPrompt))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: not a data set record: {error}") from None
    if not records:
        raise InputError(f"{path} holds no records; write it again with the generator")
    return records


def generate(seed: int = 42) -> list[GeneratedPrompt]:
    """Make the data set: 10,000 unsafe, 10,000 overrefusal and 20 safe records, all distinct.

    The same seed gives the same records in the same order. Families keep their split whatever
    the seed.
    """
    rng = random.Random(seed)
    # Shared by all families and splits, so that no test prompt is a training prompt too.
    texts: set[str] = set()
    records = list(_safe_records())
    for name, category in chain(unsafe_categories().items(), benign_categories().items()):
        for split in SPLITS:
            # Drawn without end, so that the number is reached however many repeat others.
            drawn = _draw_records(name, category, split, rng)
            records += islice(_keep_distinct(drawn, texts), PER_CATEGORY[split])
    rng.shuffle(records)
    return [
        replace(record, id=f"synthetic/{record.split}/{number:05}")
        for number, record in enumerate(records)
    ]


def _keep_distinct(
    records: Iterator[GeneratedPrompt], texts: set[str]
) -> Iterator[GeneratedPrompt]:
    """Yield the records whose prompt is not yet among `texts`, and add it to them."""
    for record in records:
        text = normalise_text(record.prompt)
        if text not in texts:
            texts.add(text)
            yield record


def _draw_records(
    name: str, category: Category, split: Split, rng: random.Random
) -> Iterator[GeneratedPrompt]:
    """Draw without end; the wrappers take turns, everything else is random."""
    disguise = read_disguises()
    wrappers = cycle(disguise.wrappers(split).items())
    for number in count():
        wrapper, phrasings = PLAIN if number % PLAIN_EVERY == 0 else next(wrappers)
        phrasing = rng.choice(phrasings)
        code_word = rng.choice(disguise.code_words[split]) if "{code}" in phrasing else None
        topic_name, topic = rng.choice(list(category.topics(split).items()))
        request = f"{rng.choice(topic.do)} {rng.choice(topic.what)}"
        question = rng.choice(disguise.asks[split]).format(request=request)
        offer = rng.choice(category.offers)
        response, reasoning = _write_response(request, topic, category, wrapper, offer)
        yield GeneratedPrompt(
            id="",
            prompt=dress_request(request, question, phrasing, code_word),
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


def _write_response(
    request: str, topic: Topic, category: Category, wrapper: str, offer: str
) -> tuple[str, str]:
    """Write the suggested response and the reasoning behind it."""
    disguise = "" if wrapper == "plain" else f" The disguise ({wrapper}) changes nothing."
    if topic.word:
        return (
            f"I am glad to help you {_address_user(request)}. {offer}",
            f"'{topic.word}' sounds alarming, but the request to {request} "
            f"{category.because}.{disguise} Answer it.",
        )
    return (
        f"{category.decline} {offer}",
        f"The request to {request} {category.because}.{disguise} Decline and offer help.",
    )


def _address_user(request: str) -> str:
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


def dress_request(request: str, question: str, phrasing: str, code_word: str | None) -> str:
    """Fill one phrasing of a wrapper.

    Args:
        request: what is wanted, as a bare verb phrase ("kill a frozen process").
        question: the same as a whole sentence ("How do I kill a frozen process?").
        phrasing: a text of `wrappers.toml`.
        code_word: stands for the request in phrasings that say `{code}`; None for all others.
    """
    words = question.split()
    middle = len(words) // 2
    return phrasing.format(
        ask=question,
        request=request,
        code=code_word,
        base64=base64.b64encode(question.encode()).decode(),
        rot13=codecs.encode(question, "rot13"),
        leet=question.translate(LEET),
        reversed=question[::-1],
        first=" ".join(words[:middle]),
        second=" ".join(words[middle:]),
    )


def demonstrations(records: Sequence[GeneratedPrompt]) -> Iterator[Demonstration]:
    """Yield a draft, a revision, and a review of a good and of a bad reply, for every record.

    They teach the form of a collaboration more than its judgement: the bad reply to a prompt is a
    good one to a prompt of the other kind, a hollow offer of help or an over-refusal. Records go
    in pairs of the two kinds, so both are taught equally; one without a partner is left out.
    """
    unsafe = [record for record in records if record.expected_category == "unsafe"]
    benign = [record for record in records if record.expected_category != "unsafe"]
    for harmful, harmless in zip(unsafe, benign, strict=False):
        yield from _yield_turns(harmful, bad_reply=harmless.suggested_response)
        yield from _yield_turns(harmless, bad_reply=harmful.suggested_response)


def _yield_turns(record: GeneratedPrompt, bad_reply: str) -> Iterator[Demonstration]:
    harmful = record.expected_category == "unsafe"
    good, bad = Reply(text=record.suggested_response), Reply(text=bad_reply)
    approval = Feedback(unsafe=False, overrefuse=False, reasoning=record.reasoning)
    objection = Feedback(
        unsafe=harmful, overrefuse=not harmful, reasoning=record.reasoning, text=record.reasoning
    )
    yield _make_demonstration(record, good)
    yield _make_demonstration(record, good, Round(feedback=approval))
    yield _make_demonstration(record, bad, Round(feedback=objection))
    yield _make_demonstration(record, bad, Round(feedback=objection, revision=good))


def _make_demonstration(record: GeneratedPrompt, draft: Reply, *rounds: Round) -> Demonstration:
    collaboration = Collaboration(prompt=record.to_prompt(), draft=draft, rounds=rounds)
    return Demonstration(collaboration=collaboration)
