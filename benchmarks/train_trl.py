"""The worker of `train_vs_trl.py` that takes TRL's training steps: generate, reward, GRPO."""

import json
import sys
import tempfile
import time
from collections.abc import Sequence

import torch
import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback
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

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # TRL writes its own lines


class Trainer(trl.GRPOTrainer):
    """GRPOTrainer with a clock around its rollout."""

    rollout_seconds = 0.0

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict:
        started = time.perf_counter()
        scored = super()._generate_and_score_completions(inputs)
        self.rollout_seconds = time.perf_counter() - started
        return scored


class OnDemand(TrainerCallback):
    """Lets a step begin when a line arrives, and answers with what it took."""

    trainer: Trainer

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Wait for a line."""
        if not sys.stdin.readline():
            sys.exit()
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Answer; weights have moved and gradients are cleared."""
        seconds = time.perf_counter() - self.started
        rollout = self.trainer.rollout_seconds
        taken = {
            "step": seconds,
            "rollout": rollout,
            "update": seconds - rollout,
            "cpu": time.process_time() - self.cpu_started,
            "tokens": PROMPTS * COMPLETIONS * NEW_TOKENS,
        }
        print(json.dumps(taken), file=ANSWERS, flush=True)


def reward(
    completions: list[list[dict[str, str]]], completion_ids: Sequence[Sequence[int]], **_: object
) -> list[float]:
    """Pay as our conversation reward does."""
    assert all(len(ids) == NEW_TOKENS for ids in completion_ids)
    return [float(acceptable(said[-1]["content"])) for said in completions]


def main() -> None:
    """Train, step by step on demand."""
    folder = tempfile.mkdtemp()
    save_model(folder)
    dtype, device = sys.argv[1:]
    config = trl.GRPOConfig(
        output_dir=folder,
        use_cpu=device == "cpu",
        bf16=dtype == "bfloat16",
        max_steps=1_000_000,
        per_device_train_batch_size=PROMPTS * COMPLETIONS,
        num_generations=COMPLETIONS,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        beta=KL_WEIGHT,
        model_init_kwargs={"dtype": "float32"},
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,  # on by default; it saves memory and costs time
        optim="adamw_torch_fused",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    on_demand = OnDemand()
    on_demand.trainer = Trainer(
        model=folder,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in new_prompts()]
        ),
        processing_class=new_tokenizer(),
        callbacks=[on_demand],
    )
    versions = {"trl": trl.__version__, "transformers": transformers.__version__}
    print(json.dumps(versions | {"torch": torch.__version__}), file=ANSWERS, flush=True)
    on_demand.trainer.train()


if __name__ == "__main__":
    main()
