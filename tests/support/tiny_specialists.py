"""Two specialists on a tiny base, who answer whatever they are asked with the same lines."""

import asyncio
import json
from dataclasses import replace

from support.tiny_models import tiny_model
from waltzrl.records import Message, Prompt
from waltzrl_specialists import FinetuningSettings, finetune, prepare_dataset

THINGS = ("ape", "bee", "cow", "dog", "elk", "fox", "gnu", "hen", "kid", "owl")
TASK = "Weigh it."


def write_set(folder, name, answer):
    """Write ten rows and two scenarios in which the answer is always the same."""
    folder.mkdir(exist_ok=True)
    rows = [{"prompt": f"{thing}?", "completion": f"Weight: {answer}\nok"} for thing in THINGS]
    checks = {"lines": {"Weight": answer}}
    held_out = [{"prompt": f"{text}?", "checks": checks} for text in ("rat", "yak")]
    for suffix, lines in (("", rows), (".scenarios", held_out)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}{suffix}.jsonl").write_text(text)
    return str(folder / f"{name}.jsonl")


def settings(base):
    return FinetuningSettings(base=base, epochs=12, batch_size=2, learning_rate=4e-2)


def train(folder, base, sets, report, **changes):
    datasets = [prepare_dataset(name, TASK) for name in sets]
    asyncio.run(finetune(datasets, folder, replace(settings(base), **changes), report))


def draft(agent, text):
    prompt = Prompt(id="p", messages=(Message(role="user", content=text),))
    return asyncio.run(agent.draft(prompt)).text


def save_base(folder):
    causal_lm = tiny_model(context=256)
    causal_lm.model.save_pretrained(folder)
    causal_lm.tokenizer.save_pretrained(folder)
    return str(folder)
