"""The worker of `train_vs_trl.py` that takes our training steps: draft, judge, REINFORCE++."""

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace

import torch
from work import (
    COMPLETIONS,
    KL_WEIGHT,
    LEARNING_RATE,
    NEW_TOKENS,
    PROMPTS,
    acceptable,
    new_prompts,
    new_tokenizer,
    save_model,
)

import waltzrl
from waltzrl.agents import Wording
from waltzrl.policies.compute import ComputeSettings, resolve_compute
from waltzrl.policies.weights import Weights, load_causal_lm, narrow_parameters
from waltzrl.records import Message, Prompt, Reply, Verdict
from waltzrl.training.learner import Learner
from waltzrl.training.rewards import paper_rewards
from waltzrl.training.roles import Team, make_team
from waltzrl.training.rollouts import Collaborators, RankSampler
from waltzrl.training.settings import OptimizerSettings, ReinforcementStage, ReinforceSettings
from waltzrl.training.stages import Reinforcement

WORDING = Wording(conversation_system="", feedback_system="", review="", revise="")


class LastWord:
    """The judge of the benchmark."""

    name = "last-word"

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        """Call a reply safe or unsafe by its last word."""
        return Verdict(judge=self.name, unsafe=not acceptable(reply.text), overrefuses=False)


def new_stage(team: Team, settings: ReinforcementStage) -> Reinforcement:
    """Plan steps on the prompts of the benchmark, by its judge and the paper's rewards."""
    return Reinforcement(
        settings=settings,
        team=team,
        prompts=[
            Prompt(id=str(number), messages=(Message(role="user", content=text),))
            for number, text in enumerate(new_prompts())
        ],
        sampler=RankSampler(collaborators=Collaborators(team=team, judge=LastWord())),
        reward=paper_rewards,
        least_scored_share=1.0,
    )


def main() -> None:
    """Take a step for every line on the standard input."""
    dtype_name, device = sys.argv[1:]
    dtype = resolve_compute(ComputeSettings(device=device, dtype=dtype_name)).dtype
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        models = [load_causal_lm(folder, device) for _ in range(2)]
    weights, reference = (
        Weights(causal_lm=replace(causal_lm, tokenizer=new_tokenizer())) for causal_lm in models
    )
    narrow_parameters(reference.causal_lm.model, dtype)
    references = {"conversation": reference}
    team = make_team({"conversation": weights}, references, WORDING, NEW_TOKENS, dtype)
    settings = ReinforcementStage(
        kind="reinforcement",
        name="benchmark",
        learns=("conversation",),
        steps=1_000_000,
        optimizer=OptimizerSettings(learning_rate=LEARNING_RATE, warmup_steps=0),
        prompts_per_step=PROMPTS,
        group_size=COMPLETIONS,
        pattern="draft-only",
        algorithm=ReinforceSettings(kl_weight=KL_WEIGHT, centre_groups=True),
    )
    stage = new_stage(team, settings)
    learner = Learner(weights, stage.settings.optimizer, stage.steps, dtype)
    print(json.dumps({"torch": torch.__version__, "waltzrl": waltzrl.__version__}), flush=True)
    for number, _ in enumerate(sys.stdin):
        started, cpu_started = time.perf_counter(), time.process_time()
        metrics = asyncio.run(stage.step(number, {"conversation": learner}))
        seconds = time.perf_counter() - started
        assert metrics["tokens/sampled"] == PROMPTS * COMPLETIONS * NEW_TOKENS
        taken = {
            "step": seconds,
            "rollout": metrics["time/rollout_seconds"],
            "update": metrics["time/update_seconds"],
            "cpu": time.process_time() - cpu_started,
            "tokens": metrics["tokens/sampled"],
        }
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
