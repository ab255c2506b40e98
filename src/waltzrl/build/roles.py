"""From a recipe's models to both roles on their weights; device and dtype are chosen here."""

import copy
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from waltzrl.agents import load_wording
from waltzrl.config.training import Compute, Recipe
from waltzrl.errors import RecipeError
from waltzrl.policies.local import Decoding, LocalPolicy
from waltzrl.policies.weights import CausalLM, add_adapters, load_causal_lm, narrow
from waltzrl.records import Demonstration, Message, Prompt
from waltzrl.telemetry.files import whole_folder
from waltzrl.training.export import CONVERSATION, FEEDBACK, verify_export
from waltzrl.training.pair import Pair, RoleName, Weights, make_pair
from waltzrl.training.scratch import create_model

BASE = "base"
"""Folder inside a run of a base that was made from scratch."""

transformers_logging.disable_progress_bar()  # one bar for the run says more


def use_compute(compute: Compute) -> tuple[torch.device, torch.dtype]:
    """Set the number of threads; return the device and the dtype to compute in.

    Raises:
        RecipeError: CUDA was asked for and is not there.
    """
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    has_cuda = torch.cuda.is_available()
    if compute.device == "cuda" and not has_cuda:
        raise RecipeError("compute.device is cuda, but torch sees no GPU; say cpu or auto")
    cuda = has_cuda and compute.device != "cpu"
    half = compute.dtype == "bfloat16" or (compute.dtype == "auto" and cuda)
    return torch.device("cuda" if cuda else "cpu"), torch.bfloat16 if half else torch.float32


def load_base(
    recipe: Recipe, folder: Path, prompts: Sequence[Prompt], demonstrations: Sequence[Demonstration]
) -> CausalLM:
    """Load the base, or make it anew; a base that was made is kept in the run's folder.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
        InputError: the folder cannot be written to.
    """
    device, _ = use_compute(recipe.compute)
    base = recipe.models.base
    assert base is not None, "a recipe is checked when it is read"
    if isinstance(base, str):
        return load_causal_lm(base, device)
    made = folder / BASE
    if not made.exists():
        fresh = create_model(_texts(recipe, prompts, demonstrations), base, recipe.seed)
        with whole_folder(made) as unfinished:
            fresh.model.save_pretrained(unfinished)
            fresh.tokenizer.save_pretrained(unfinished)
    return load_causal_lm(str(made), device)


def forget_base(folder: Path) -> None:
    """Delete a base that was made for a run, so that it is made anew."""
    shutil.rmtree(folder / BASE, ignore_errors=True)


def load_policy(name_or_path: str, *, in_thread: bool = False) -> LocalPolicy:
    """Load a policy to be evaluated or served, on what `use_compute` chooses by itself.

    Args:
        name_or_path: of a model in Hugging Face format.
        in_thread: keep the event loop free while it decodes, as a server must.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
    """
    device, dtype = use_compute(Compute())
    causal_lm = load_causal_lm(name_or_path, device, dtype)
    decoding = Decoding(in_thread=in_thread)
    return LocalPolicy(causal_lm.model, causal_lm.tokenizer, decoding=decoding)


def make_single(recipe: Recipe, base: CausalLM) -> Pair:
    """Put both roles on the base itself, to be warmed up; only one role's weights are kept."""
    weights = Weights(causal_lm=base)
    wording = load_wording(recipe.agents.wording)
    pair = make_pair(weights, weights, weights, wording, recipe.agents.max_new_tokens)
    return replace(pair, weights={"conversation": weights})


def make_roles(recipe: Recipe, base: CausalLM) -> Pair:
    """Lay out both roles on the base: two copies and a frozen third, or two adapters on it."""
    _, dtype = use_compute(recipe.compute)
    wording, words = load_wording(recipe.agents.wording), recipe.agents.max_new_tokens
    if recipe.models.layout == "adapters":
        torch.manual_seed(recipe.seed)
        narrow(base.model, dtype)
        shared = add_adapters(base, recipe.models.rank)
        conversation, feedback, frozen = (
            Weights(causal_lm=shared, adapter=adapter)
            for adapter in ("conversation", "feedback", None)
        )
        return make_pair(conversation, feedback, frozen, wording, words)
    conversation, feedback = (
        Weights(causal_lm=replace(base, model=copy.deepcopy(base.model))) for _ in range(2)
    )
    frozen = _frozen(base, dtype)
    return make_pair(conversation, feedback, frozen, wording, words, _decoding(dtype))


def continue_roles(recipe: Recipe) -> Pair:
    """Put each role on its own weights of an exported pair, beside a frozen copy of them.

    Raises:
        CheckpointError: the folder is no whole export.
    """
    assert recipe.models.pair is not None, "a recipe is checked when it is read"
    folder = Path(recipe.models.pair)
    verify_export(folder)
    device, dtype = use_compute(recipe.compute)
    talking, reviewing = (
        load_causal_lm(str(folder / name), device) for name in (CONVERSATION, FEEDBACK)
    )
    references: dict[RoleName, Weights] = {
        "conversation": _frozen(talking, dtype),
        "feedback": _frozen(reviewing, dtype),
    }
    pair = make_pair(
        Weights(causal_lm=talking),
        Weights(causal_lm=reviewing),
        references["conversation"],
        load_wording(recipe.agents.wording),
        recipe.agents.max_new_tokens,
        _decoding(dtype),
    )
    return replace(pair, references=references)


def _frozen(causal_lm: CausalLM, dtype: torch.dtype) -> Weights:
    """Copy a model that stays as it is."""
    model = copy.deepcopy(causal_lm.model)
    narrow(model, dtype)
    model.requires_grad_(False)
    return Weights(causal_lm=replace(causal_lm, model=model))


def _decoding(dtype: torch.dtype) -> Decoding:
    return Decoding(dtype=None if dtype == torch.float32 else dtype)


def _texts(
    recipe: Recipe, prompts: Iterable[Prompt], demonstrations: Sequence[Demonstration]
) -> Iterator[str]:
    """Yield whatever a tokenizer made for this run should know the words of."""
    wording = load_wording(recipe.agents.wording)
    yield from (wording.conversation_system, wording.feedback_system, wording.review)
    yield wording.revise
    collaborations = [demonstration.collaboration for demonstration in demonstrations]
    for prompt in (*prompts, *(said.prompt for said in collaborations)):
        yield from _contents(prompt.messages)
    for said in collaborations:
        yield from (reply.text for reply in said.replies)
        for turn in said.rounds:
            yield from (turn.feedback.text, turn.feedback.reasoning)


def _contents(messages: Iterable[Message]) -> Iterator[str]:
    return (message.content for message in messages)
