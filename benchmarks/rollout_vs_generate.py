"""The two-agent rollout by gathered decoding, against the same turns by `model.generate`.

    python benchmarks/rollout_vs_generate.py [--rounds 5] [--threads 2]

Draft, feedback and revision of 64 prompts by two random models. Every turn has a limit; the
end-of-turn token cannot be sampled, so both sides say exactly as many tokens: once with the same
limit for all, once with limits as different as the lengths of real replies are. `generate` gets
one batch a turn, padded on the left. The last line is `ratio: N` for equal limits, each side in
its faster number format.
"""

import argparse
import asyncio
import copy
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import transformers
from transformers import Qwen2ForCausalLM, StoppingCriteria, StoppingCriteriaList
from work import COMPLETIONS, NEW_TOKENS, new_model, new_prompts, new_tokenizer

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.collaboration import collaborate
from waltzrl.policies import Sampling
from waltzrl.policies.blocks import fuse_blocks
from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import store_transposed
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, Usage

WORDING = load_wording("tiny")
PROMPTS = [
    Prompt(id=f"{number}/{place}", messages=(Message(role="user", content=text),))
    for number, text in enumerate(new_prompts())
    for place in range(COMPLETIONS)
]
LENGTHS = random.Random(0)
LIMITS = {
    "equal": [NEW_TOKENS] * len(PROMPTS),
    "different": [
        min(NEW_TOKENS, 1 + int(LENGTHS.expovariate(3 / NEW_TOKENS))) for _prompt in PROMPTS
    ],
}


def advice(answer: Reply) -> Feedback:
    """Take any words for feedback that asks for a revision."""
    return Feedback(unsafe=True, overrefuse=False, text=answer.text, reply=answer)


class InsistentAgent(FeedbackAgent):
    """A feedback agent whose random words count as advice."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Ask for a revision."""
        return advice(await self.policy.reply(self.review_messages(prompt, reply), self.sampling))


Roles = tuple[ConversationAgent, FeedbackAgent]


def roles(policies: Sequence[LocalPolicy], limit: int) -> Roles:
    """Put both agents on their policies, `limit` tokens a turn."""
    sampling = Sampling(max_new_tokens=limit, temperature=1.0)
    talking, reviewing = policies
    return (
        ConversationAgent(talking, WORDING, sampling),
        InsistentAgent(reviewing, WORDING, sampling),
    )


async def gathered(pairs: Sequence[Roles]) -> list[Collaboration]:
    """Collaborate on all prompts at once; the policies gather what waits."""
    together = zip(PROMPTS, pairs, strict=True)
    return await asyncio.gather(*(collaborate(prompt, *pair) for prompt, pair in together))


class Limits(StoppingCriteria):
    """Ends each row at its own limit."""

    def __init__(self, prompt_tokens: int, limits: Sequence[int]) -> None:
        self._ends = prompt_tokens + torch.tensor(limits)

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """Say which rows have reached their limit."""
        return self._ends <= input_ids.shape[1]


def generate(
    model: Qwen2ForCausalLM,
    policy: LocalPolicy,
    conversations: Sequence[list[Message]],
    limits: Sequence[int],
) -> list[Reply]:
    """Answer every conversation in one call of `model.generate`."""
    tokenizer = policy.tokenizer
    rendered = [{"input_ids": list(policy.render(messages))} for messages in conversations]
    batch = tokenizer.pad(rendered, padding_side="left", return_tensors="pt")
    batch["input_ids"].clamp_(max=model.config.vocab_size - 1)  # padding, which no one attends to
    width = batch["input_ids"].shape[1]
    said = model.generate(
        **batch,
        do_sample=True,
        top_k=0,
        max_new_tokens=max(limits),
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([Limits(width, limits)]),
    )
    rows = [ids[width : width + limit] for ids, limit in zip(said, limits, strict=True)]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [
        Reply(text=text, usage=Usage(input_tokens=0, output_tokens=len(row)))
        for text, row in zip(texts, rows, strict=True)
    ]


def turn_by_turn(
    models: Sequence[Qwen2ForCausalLM], pairs: Sequence[Roles], limits: Sequence[int]
) -> list[Collaboration]:
    """Draft, review and revise, each turn as one batch."""
    (conversation, feedback), (talking, reviewing) = pairs[0], models
    drafting = [conversation.draft_messages(prompt) for prompt in PROMPTS]
    drafts = generate(talking, conversation.policy, drafting, limits)
    drafted = list(zip(PROMPTS, drafts, strict=True))
    asked = [feedback.review_messages(prompt, draft) for prompt, draft in drafted]
    advised = [advice(answer) for answer in generate(reviewing, feedback.policy, asked, limits)]
    shown = [
        conversation.revision_messages(prompt, draft, [Round(feedback=said)])
        for (prompt, draft), said in zip(drafted, advised, strict=True)
    ]
    revisions = generate(talking, conversation.policy, shown, limits)
    return [
        Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=said, revision=revision),))
        for (prompt, draft), said, revision in zip(drafted, advised, revisions, strict=True)
    ]


def tokens(said: Sequence[Collaboration]) -> int:
    """Count the tokens that both agents said."""
    replies = [reply for one in said for reply in (*one.replies, one.rounds[0].feedback.reply)]
    return sum(reply.usage.output_tokens for reply in replies if reply is not None)


def contestants(limits: Sequence[int]) -> dict[str, Callable[[], list[Collaboration]]]:
    """Name both ways of rolling out, in both number formats."""
    exact, tokenizer = [new_model(), new_model()], new_tokenizer()
    half = [copy.deepcopy(model).to(torch.bfloat16) for model in exact]
    ours = copy.deepcopy(exact)
    for model in ours:
        fuse_blocks(model)  # as `load_causal_lm` does
        store_transposed(model)
    found: dict[str, Callable[[], list[Collaboration]]] = {}
    for name, models, dtype in (("float32", exact, None), ("bfloat16", half, torch.bfloat16)):
        copies = [dtype and DecodingCopy(model, dtype) for model in ours]
        policies = [
            LocalPolicy(model, tokenizer, copy=copied)
            for model, copied in zip(ours, copies, strict=True)
        ]
        pairs = [roles(policies, limit) for limit in limits]
        found[f"generate {name}"] = lambda m=models, p=pairs: turn_by_turn(m, p, limits)
        found[f"waltzrl {name}"] = lambda p=pairs: asyncio.run(gathered(p))
    return found


def measure(limits: Sequence[int], rounds: int) -> float:
    """Let them roll out in turn, print medians, and return how many times faster we are."""
    seconds: dict[str, list[float]] = {}
    ways = contestants(limits)
    for number in range(rounds + 1):
        for name, roll_out in ways.items():
            started = time.perf_counter()
            said = roll_out()
            if number:  # the first warms up
                seconds.setdefault(name, []).append(time.perf_counter() - started)
            assert tokens(said) == 3 * sum(limits)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"  {name:18} {median:6.2f} s {3 * sum(limits) / median:7.0f} tokens/s")
    ours, theirs = (
        min(median for name, median in medians.items() if name.startswith(side))
        for side in ("waltzrl", "generate")
    )
    return theirs / ours


def main() -> None:
    """Measure equal and different lengths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{given.threads} threads, {versions}, load {os.getloadavg()[0]:.1f}")
    ratios = {}
    for name, limits in LIMITS.items():
        print(f"{name} lengths, {sum(limits) / len(limits):.0f} tokens a turn on average")
        ratios[name] = measure(limits, given.rounds)
        print(f"  faster than generate: {ratios[name]:.2f}")
    print(f"ratio: {ratios['equal']:.2f}")


if __name__ == "__main__":
    main()
