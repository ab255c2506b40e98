"""The worker of `train_vs_trl.py` that takes our training steps: draft, judge, REINFORCE++."""

import asyncio
import json
import sys
import time
from functools import partial

import torch
from work import (
    COMPLETIONS,
    LEARNING_RATE,
    NEW_TOKENS,
    PROMPTS,
    acceptable,
    new_model,
    new_prompts,
    new_tokenizer,
)

import waltzrl
from waltzrl.agents import Wording
from waltzrl.collaboration import draft_only
from waltzrl.policies.local import Decoding
from waltzrl.policies.weights import CausalLM
from waltzrl.records import Message, Prompt, Reply, Verdict
from waltzrl.training.learner import Learner, Optimizer
from waltzrl.training.pair import Weights, make_pair
from waltzrl.training.reinforce import ReinforcePlusPlus
from waltzrl.training.rewards import STAGE_1, paper_rewards
from waltzrl.training.stages import Reinforcement

WORDING = Wording(conversation_system="", feedback_system="", review="", revise="")


class LastWord:
    """The judge of the benchmark."""

    name = "last-word"

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        """Call a reply safe or unsafe by its last word."""
        return Verdict(judge=self.name, unsafe=not acceptable(reply.text), overrefuses=False)


def main() -> None:
    """Take a step for every line on the standard input."""
    bf16 = sys.argv[1] == "bfloat16"
    weights = Weights(causal_lm=CausalLM(model=new_model(), tokenizer=new_tokenizer()))
    decoding = Decoding(dtype=torch.bfloat16 if bf16 else None)
    pair = make_pair(weights, weights, weights, WORDING, NEW_TOKENS, decoding)
    stage = Reinforcement(
        name="benchmark",
        steps=1_000_000,
        learns=("conversation",),
        prompts=[
            Prompt(id=str(number), messages=(Message(role="user", content=text),))
            for number, text in enumerate(new_prompts())
        ],
        judge=LastWord(),
        pattern=draft_only,
        feedback_reward=partial(paper_rewards, coefficients=STAGE_1),
        optimizer=Optimizer(learning_rate=LEARNING_RATE, warmup_steps=0, bf16=bf16),
        algorithm=ReinforcePlusPlus(kl_weight=0.0, centre_groups=True),
        prompts_per_step=PROMPTS,
        group_size=COMPLETIONS,
    )
    learner = Learner(weights.causal_lm, None, stage.optimizer, stage.steps)
    print(json.dumps({"torch": torch.__version__, "waltzrl": waltzrl.__version__}), flush=True)
    for number, _ in enumerate(sys.stdin):
        started = time.perf_counter()
        measured = asyncio.run(stage.step(number, pair, {"conversation": learner}))
        seconds = time.perf_counter() - started
        assert measured["tokens/sampled"] == PROMPTS * COMPLETIONS * NEW_TOKENS
        taken = {
            "step": seconds,
            "rollout": measured["time/rollout_seconds"],
            "update": measured["time/update_seconds"],
            "tokens": measured["tokens/sampled"],
        }
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
