"""Trained specialists as agents: one base in memory, and an adapter for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waltzrl.agents import ConversationAgent
from waltzrl.errors import CheckpointError, InputError
from waltzrl.foundation.jsonl import read_text
from waltzrl.policies import Sampling
from waltzrl.policies.compute import ComputeSettings, resolve_compute
from waltzrl.policies.local import Decoding, LocalPolicy
from waltzrl.policies.weights import load_adapters, load_causal_lm, narrow_parameters
from waltzrl_specialists.datasets import TOGETHER
from waltzrl_specialists.finetuning import ADAPTER, MAX_NEW_TOKENS, SPECIALIST, wording_of


class TrainedSpecialist(msgspec.Struct, frozen=True, kw_only=True):
    """What training wrote about a specialist."""

    name: str
    title: str
    system: str
    source: str
    base: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialistAgents:
    """Specialists on one base."""

    trained: Mapping[str, TrainedSpecialist]
    """The specialists as training described them, by name."""
    agents: Mapping[str, ConversationAgent]
    """The agents, each with its own adapter and system prompt, by name."""
    bare: Mapping[str, ConversationAgent]
    """The base alone with the system prompt of each, by name."""
    together: Mapping[str, ConversationAgent]
    """The adapter that learnt from several sets, with the system prompt of each of them, by name;
    empty where it was not asked for or not trained."""


def read_trained_specialists(
    folder: Path, names: Sequence[str] = ()
) -> dict[str, TrainedSpecialist]:
    """Return the specialists in a folder of `finetune` whose training is over, by name.

    Args:
        folder: of all.
        names: of those wanted; none is all.

    Raises:
        InputError: one that is wanted is not trained, none is, or they have several bases.
    """
    there = sorted(path.parent for path in folder.glob(f"*/{ADAPTER}"))
    trained = {
        place.name: _read_specialist(place / SPECIALIST)
        for place in there
        if place.name != TOGETHER or TOGETHER in names
    }
    missing = [name for name in names if name not in trained]
    if missing or not trained:
        raise InputError(
            f"{folder} has {', '.join(trained) or 'no trained specialist'}, need"
            f" {', '.join(missing) or 'at least one'}; run waltzrl specialists train"
        )
    wanted = {name: trained[name] for name in names or trained}
    # One name for each base: two names are enough to say what is wrong.
    bases = {specialist.base: name for name, specialist in wanted.items()}
    if len(bases) > 1:
        (base, name), (other, second), *_ = bases.items()
        raise InputError(
            f"{name} was trained on {base}, {second} on {other}; train those of one base in a"
            " folder of their own"
        )
    return wanted


def open_specialists(
    folder: Path,
    names: Sequence[str] = (),
    *,
    in_thread: bool = False,
    together: bool = False,
) -> SpecialistAgents:
    """Load the base once and put the adapters of the specialists on it.

    Args:
        folder: of `finetune`.
        names: of the specialists; none is all that are trained.
        in_thread: keep the event loop free while one replies, as a server must.
        together: load the adapter that learnt from several sets too, where there is one.

    Raises:
        InputError: a specialist is not trained, or was on another base than the others.
        CheckpointError: the base or an adapter is missing or damaged.
    """
    trained = read_trained_specialists(folder, names)
    learnt_together: list[str] = []
    if together and (folder / TOGETHER / ADAPTER).exists():
        joint = read_trained_specialists(folder, [*trained, TOGETHER])[TOGETHER]
        # The source of what `join_datasets` joins is the names of its sets.
        learnt_together = [name for name in trained if name in joint.source.split(", ")]
    compute = resolve_compute(ComputeSettings())
    base = load_causal_lm(next(iter(trained.values())).base, compute.device)
    narrow_parameters(base.model, compute.dtype)
    adapters = [*trained, TOGETHER] if learnt_together else list(trained)
    shared = load_adapters(base, {name: folder / name / ADAPTER for name in adapters})
    sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS)
    decoding = Decoding(in_thread=in_thread, clamp=in_thread)

    def agent(name: str, adapter: str | None) -> ConversationAgent:
        policy = LocalPolicy(shared.model, shared.tokenizer, adapter, decoding=decoding)
        return ConversationAgent(policy, wording_of(trained[name].system), sampling)

    return SpecialistAgents(
        trained=trained,
        agents={name: agent(name, name) for name in trained},
        bare={name: agent(name, None) for name in trained},
        together={name: agent(name, TOGETHER) for name in learnt_together},
    )


def integrate_with_agent(name: str, folder: Path) -> ConversationAgent:
    """Return a trained specialist as a conversation agent, for `collaborate` or a guard.

    Raises:
        InputError: it is not trained.
        CheckpointError: the base or the adapter is missing or damaged.
    """
    return open_specialists(folder, [name]).agents[name]


def _read_specialist(path: Path) -> TrainedSpecialist:
    try:
        return msgspec.json.decode(read_text(path), type=TrainedSpecialist)
    except (msgspec.DecodeError, InputError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); train this specialist again") from None
