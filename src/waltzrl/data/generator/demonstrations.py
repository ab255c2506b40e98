"""Demonstrations for a warm-up, made of the data set: four turns for each record, in both roles.

They teach the form of a collaboration more than its wisdom: the bad reply to a prompt is a good
one to a prompt of the other kind, a hollow offer of help or a needless refusal.
"""

from collections.abc import Iterator, Sequence

from waltzrl.data.generator.record import GeneratedPrompt
from waltzrl.records import Collaboration, Demonstration, Feedback, Reply, Round


def demonstrations(records: Sequence[GeneratedPrompt]) -> Iterator[Demonstration]:
    """Yield a draft, a revision, and a review of a good and of a bad reply, for every record.

    Records go in pairs of the two kinds, so both are taught equally; what has no partner is left
    out.
    """
    unsafe = [record for record in records if record.expected_category == "unsafe"]
    benign = [record for record in records if record.expected_category != "unsafe"]
    for harmful, harmless in zip(unsafe, benign, strict=False):
        yield from _turns(harmful, bad_reply=harmless.suggested_response)
        yield from _turns(harmless, bad_reply=harmful.suggested_response)


def _turns(record: GeneratedPrompt, bad_reply: str) -> Iterator[Demonstration]:
    harmful = record.expected_category == "unsafe"
    good, bad = Reply(text=record.suggested_response), Reply(text=bad_reply)
    content = Feedback(unsafe=False, overrefuse=False, reasoning=record.reasoning)
    alarm = Feedback(
        unsafe=harmful, overrefuse=not harmful, reasoning=record.reasoning, text=record.reasoning
    )
    yield _demonstration(record, good)
    yield _demonstration(record, good, Round(feedback=content))
    yield _demonstration(record, bad, Round(feedback=alarm))
    yield _demonstration(record, bad, Round(feedback=alarm, revision=good))


def _demonstration(record: GeneratedPrompt, draft: Reply, *rounds: Round) -> Demonstration:
    said = Collaboration(prompt=record.to_prompt(), draft=draft, rounds=rounds)
    return Demonstration(collaboration=said)
