"""The time of a training step on 8 and 64 H100, worked out from parts that others measured.

python benchmarks/step_simulation.py    # prints the tables of docs/scale.md

Nothing here was run on a GPU: change a constant, and see what it changes.
"""

from dataclasses import dataclass
from math import ceil

BANDWIDTH = 3.35e12
"""Bytes a second of an H100 SXM's memory (NVIDIA's data sheet)."""
MEMORY = 80e9
"""Bytes of an H100 SXM."""
READ_SHARE = 0.6
"""Of that bandwidth, while a server decodes. Assumed; vLLM 0.23 had 0.77 at one request, with an 8B
model on an A100 (johnmusgrave.com, vLLM throughput-latency sweep on NVIDIA A100)."""
FLOPS = 989e12
"""Dense bfloat16 operations a second of an H100 SXM (NVIDIA's data sheet)."""
LEARN_SHARE = 0.3
"""Of that, in forward and backward passes. torchtitan's FSDP of an 8B model without compilation
learnt from 5,762 tokens a second on each of 8 H100 and 5,605 on each of 128, and with or without
compilation used 33 % to 39 % of the peak (its benchmarks/llama3_h100_202412_torchtitan.md). Our
sequences are shorter, so somewhat less is assumed."""
READ_PROMPT_SHARE = 0.4
"""Of that, while a server reads prompts. Assumed."""
NETWORK = 400e9 / 8
"""Bytes a second between machines, for each GPU (torchtitan's machines)."""
RANK = 32
"""Of an adapter."""
FREE_SHARE = 0.9
"""Of a GPU's memory, for weights, keys and values; vLLM's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Llama-shaped model."""

    parameters: float
    layers: int
    key_heads: int
    head: int
    """Elements of a head."""
    hidden: int
    intermediate: int
    server_gpus: int
    """That one server takes."""

    @property
    def token_bytes(self) -> int:
        """Of the keys and values of a token in bfloat16."""
        return 2 * 2 * self.layers * self.key_heads * self.head


EIGHT = Model(
    parameters=8.03e9,
    layers=32,
    key_heads=8,
    head=128,
    hidden=4096,
    intermediate=14_336,
    server_gpus=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step of both agents does: a draft, a review and a revision of every collaboration."""

    collaborations: int
    prompt: int = 400
    """Tokens of a prompt with instructions."""
    reply: int = 300
    """Mean tokens of a draft, and of a revision."""
    feedback: int = 100

    @property
    def turns(self) -> list[tuple[int, int]]:
        """(context, new tokens) of every turn."""
        first, both = self.prompt + self.reply, self.prompt + self.reply + self.feedback
        return [(self.prompt, self.reply), (first, self.feedback), (both, self.reply)]

    @property
    def learned(self) -> float:
        """Mean tokens of what each role learns from one collaboration."""
        draft, review, revision = (context + new for context, new in self.turns)
        return (draft + revision) / 2 + review


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of the parts of a step."""

    rollout: float
    update: float
    publish: float

    @property
    def total(self) -> float:
        """Sampling and learning take turns: what samples rests while others learn."""
        return self.rollout + self.update + self.publish


def rollout_seconds(model: Model, work: Work, gpus: int) -> float:
    """Return how long the servers on so many GPUs take for all collaborations, turn by turn."""
    servers = gpus // model.server_gpus
    rows = ceil(work.collaborations / servers)
    weights = 2 * model.parameters
    seconds = 0.0
    for context, new in work.turns:
        reading = 2 * model.parameters * rows * context
        seconds += reading / (FLOPS * READ_PROMPT_SHARE * model.server_gpus)
        kept = rows * (context + new / 2) * model.token_bytes
        seconds += new * (weights + kept) / (BANDWIDTH * READ_SHARE * model.server_gpus)
    return seconds


def fits(model: Model, work: Work, gpus: int) -> bool:
    """Return whether weights, keys and values of all collaborations fit on the servers."""
    servers = gpus // model.server_gpus
    rows = ceil(work.collaborations / max(1, servers))
    longest = sum(work.turns[-1])
    needed = 2 * model.parameters + rows * longest * model.token_bytes
    return servers > 0 and needed <= FREE_SHARE * MEMORY * model.server_gpus


def update_seconds(model: Model, work: Work, gpus: int) -> float:
    """Return how long the learners take with adapters and checkpointed activations.

    Forward, again forward, and the backward pass through frozen weights: 6 operations for each
    parameter and token; the learner's and the reference's own probabilities: 2 each.
    """
    tokens = work.collaborations * work.learned
    return (6 + 2 + 2) * model.parameters * tokens / (FLOPS * LEARN_SHARE * gpus)


def publish_seconds(model: Model) -> float:
    """Return how long two float32 adapters take to reach one machine; all get them at once."""
    hidden, keys = model.hidden, model.key_heads * model.head
    # Of q and o; of k and v; of gate, up and down: inputs and outputs.
    widths = 4 * hidden + 2 * (hidden + keys) + 3 * (hidden + model.intermediate)
    return 2 * 4 * RANK * widths * model.layers / NETWORK


def simulated(model: Model, work: Work, gpus: int, rollout_gpus: int) -> Step:
    """Return a step's parts where so many of the GPUs sample, and the others learn."""
    return Step(
        rollout=rollout_seconds(model, work, rollout_gpus),
        update=update_seconds(model, work, gpus - rollout_gpus),
        publish=publish_seconds(model),
    )


def best_split(model: Model, work: Work, gpus: int) -> int:
    """Return how many GPUs should sample for the shortest step."""
    split = range(model.server_gpus, gpus, model.server_gpus)
    possible = [sampling for sampling in split if fits(model, work, sampling)]
    return min(possible, key=lambda sampling: simulated(model, work, gpus, sampling).total)


def table() -> str:
    """Return the simulation as Markdown."""
    lines = [
        "| GPUs | collaborations | sample / learn | rollout s | update s | publish s | step s |"
        " collaborations a second |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpus, collaborations in ((8, 32), (8, 256), (64, 256), (64, 2048)):
        work = Work(collaborations=collaborations)
        sampling = best_split(EIGHT, work, gpus)
        step = simulated(EIGHT, work, gpus, sampling)
        lines.append(
            f"| {gpus} | {collaborations} | {sampling} / {gpus - sampling} |"
            f" {step.rollout:.1f} | {step.update:.1f} | {step.publish:.2f} |"
            f" {step.total:.1f} | {collaborations / step.total:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
