"""The models of a run: a base that is loaded or created, and the roles that start from it."""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from waltzrl.agents import AttackerAgent, load_wording
from waltzrl.agents.exports import ATTACKER, ROLES, export_name, verify_export
from waltzrl.errors import CheckpointError
from waltzrl.foundation.files import whole_folder
from waltzrl.policies import Sampling
from waltzrl.policies.compute import Compute
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import (
    ADAPTER_CONFIG,
    CausalLM,
    Weights,
    add_adapters,
    copy_adapter,
    copy_model,
    library_disk_errors,
    load_adapters,
    load_causal_lm,
    map_causal_lm,
    narrow_parameters,
)
from waltzrl.training import ranks
from waltzrl.training.checkpoints import ADAPTERS, EXPORTED_BASE
from waltzrl.training.roles import Role, Team, decoding_copy, make_team
from waltzrl.training.settings import AgentSettings, AttackerSettings, ModelSettings, ModelSize
from waltzrl.training.sharding import ShardedWeights, shard_models

END, PAD = "<|end|>", "<|pad|>"
CHAT_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
FRAME = (
    "<conversation>", "</conversation>", "<reply>", "</reply>", "<feedback>", "</feedback>",
    '{"reasoning": "', '", "unsafe": true', '", "unsafe": false',
    ', "overrefuse": true, "feedback": "', ', "overrefuse": false, "feedback": "', '"}',
)  # fmt: skip
"""Fixed strings of the protocol; one token each keeps the small models' contexts short."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


INITIAL = "initial"
"""The adapter as a warm-up left it: both roles start from it, and it is their reference."""


def open_warm_up(models: ModelSettings, base: CausalLM, compute: Compute, seed: int) -> Weights:
    """Return what a warm-up teaches the turns of both roles: the base, or an adapter on it.

    Args:
        models: names the layout.
        base: is changed in place.
        compute: the base of adapters is in its dtype.
        seed: of an adapter's initial weights.
    """
    if models.layout != "adapters":
        return Weights(causal_lm=base)
    # PEFT draws an adapter's initial weights from torch's global generator.
    torch.manual_seed(seed)
    narrow_parameters(base.model, compute.dtype)
    return Weights(causal_lm=add_adapters(base, ROLES[:1], models.rank), adapter=ROLES[0])


def make_roles(
    models: ModelSettings,
    agents: AgentSettings,
    base: CausalLM,
    compute: Compute,
    seed: int,
    *,
    replays: bool = True,
) -> Team:
    """Start every role from the base: a copy each or one for both, and a frozen one; or adapters.

    Args:
        models: names the layout.
        agents: how the agents are prompted.
        base: is changed in place by the layout `adapters`, and learns in the layout `one-model`;
            with the adapter of a warm-up, if there was one.
        compute: the frozen weights, and decoding, are in its dtype.
        seed: of the adapters' initial weights.
        replays: see `make_team`.
    """
    wording = load_wording(agents.wording)
    if models.layout == "adapters":
        if isinstance(base.model, PeftModel):
            # A warm-up teaches the turns of both roles to the adapter of the first.
            shared, initial = copy_adapter(base, ROLES[0], (*ROLES[1:], INITIAL)), INITIAL
        else:
            torch.manual_seed(seed)
            narrow_parameters(base.model, compute.dtype)
            shared, initial = add_adapters(base, ROLES, models.rank), None
        weights = {role: Weights(causal_lm=shared, adapter=role) for role in ROLES}
        # Without a warm-up the adapter is None, which is the bare base.
        references = dict.fromkeys(ROLES, Weights(causal_lm=shared, adapter=initial))
        return make_team(weights, references, wording, agents.limits, compute.dtype)
    # One copy for both roles, because both start from the same weights.
    references = dict.fromkeys(ROLES, _freeze_copy(base, compute, split=_splits(models, replays)))
    if models.layout == "one-model":
        weights = dict.fromkeys(ROLES, Weights(causal_lm=base))
    else:
        weights = {role: Weights(causal_lm=_copy(base, split=_splits(models))) for role in ROLES}
    return make_team(weights, references, wording, agents.limits, compute.dtype, replays=replays)


def continue_roles(
    models: ModelSettings, agents: AgentSettings, compute: Compute, *, replays: bool = True
) -> Team:
    """Start each role from its own weights in an export, with a frozen copy as its reference.

    See `make_roles`.

    Raises:
        CheckpointError: the folder is not a whole export, or one without adapters where the layout
            is `adapters`; or they are those of another base.
    """
    assert models.pair is not None
    pair = Path(models.pair)
    verify_export(pair)
    if models.layout == "adapters":
        return _continue_adapters(pair, models.base, agents, compute)
    weights = {
        role: Weights(causal_lm=_load_base(str(pair / export_name(role)), models, compute))
        for role in ROLES
    }
    references: Mapping[str, Weights] = {
        role: _freeze_copy(own.causal_lm, compute, split=_splits(models, replays))
        for role, own in weights.items()
    }
    wording = load_wording(agents.wording)
    return make_team(weights, references, wording, agents.limits, compute.dtype, replays=replays)


def add_attacker(team: Team, attacker: AttackerSettings, compute: Compute) -> Team:
    """Return a team with an attacker beside the pair: a full model, and a frozen copy of it.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
    """
    causal_lm = load_causal_lm(attacker.base, compute.device)
    # Before the model is split over the ranks, after which it cannot be copied.
    reference = _freeze_copy(causal_lm, compute, split=False)
    (weights,) = shard_models({ATTACKER: Weights(causal_lm=causal_lm)}, compute.dtype).values()
    copied = weights.copy if isinstance(weights, ShardedWeights) else None
    policy = LocalPolicy(
        causal_lm.model,
        causal_lm.tokenizer,
        copy=copied or decoding_copy(causal_lm.model, compute.dtype),
    )
    sampling = Sampling(max_new_tokens=attacker.max_new_tokens, temperature=1.0)
    role = Role(
        agent=AttackerAgent(policy, attacker.wording, sampling),
        weights=weights,
        reference=reference,
    )
    return replace(team, roles={**team.roles, ATTACKER: role})


def _continue_adapters(
    pair: Path, base: str | ModelSize | None, agents: AgentSettings, compute: Compute
) -> Team:
    """Put each role's adapter on the base twice: one learns, the other is its reference."""
    assert not isinstance(base, ModelSize), "checked by the settings"
    causal_lm = load_causal_lm(base or find_exported_base(pair), compute.device)
    narrow_parameters(causal_lm.model, compute.dtype)
    learning = {role: _find_adapter(pair, role) for role in ROLES}
    initial = {f"initial-{role}": folder for role, folder in learning.items()}
    shared = load_adapters(causal_lm, learning | initial)
    if base is None and find_exported_base(pair) == str(pair / EXPORTED_BASE):
        shared = replace(shared, source=None)  # the next export takes the base with it
    weights = {role: Weights(causal_lm=shared, adapter=role) for role in ROLES}
    references = {role: Weights(causal_lm=shared, adapter=f"initial-{role}") for role in ROLES}
    return make_team(
        weights, references, load_wording(agents.wording), agents.limits, compute.dtype
    )


def find_exported_base(pair: Path) -> str:
    """Return where the base of an export's adapters is: in the export, or where they say.

    Raises:
        CheckpointError: the export has no adapters.
    """
    if (pair / EXPORTED_BASE).is_dir():
        return str(pair / EXPORTED_BASE)
    try:
        config = json.loads((_find_adapter(pair, ROLES[0]) / ADAPTER_CONFIG).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{pair} has no adapters to continue from: its agents were trained as two models;"
            " set models.layout to two-models"
        ) from None
    return str(config["base_model_name_or_path"])


def _find_adapter(pair: Path, role: str) -> Path:
    """Return the folder of an adapter: that of an export, or the agent of a package."""
    beside = pair / ADAPTERS / role
    return beside if beside.is_dir() else pair / export_name(role)


def _freeze_copy(causal_lm: CausalLM, compute: Compute, *, split: bool) -> Weights:
    """Copy a model that will not learn."""
    copied = _copy(causal_lm, split=split)
    copied.model.requires_grad_(False)
    if not split:
        narrow_parameters(copied.model, compute.dtype)
        copied.model.to(compute.device)
    return Weights(causal_lm=copied)


def _copy(causal_lm: CausalLM, *, split: bool) -> CausalLM:
    """Copy a model; what will be split shares its values until then, and is not read."""
    if split:
        return replace(causal_lm, model=copy_model(causal_lm.model, torch.Tensor.detach))
    return replace(causal_lm, model=copy.deepcopy(causal_lm.model))


def _splits(models: ModelSettings, drafts: bool = False) -> bool:
    """Return whether ranks split a full model; not a reference that drafts."""
    return ranks.count_ranks() > 1 and models.layout != "adapters" and not drafts


def _load_base(name_or_path: str, models: ModelSettings, compute: Compute) -> CausalLM:
    """Load a model whole, or only map the file of one that will be split."""
    if _splits(models):
        return map_causal_lm(name_or_path)
    return load_causal_lm(name_or_path, compute.device)


def open_base(
    models: ModelSettings, created: Path, texts: Iterable[str], compute: Compute, seed: int
) -> CausalLM:
    """Load the base that a recipe names, or create it in the run's folder and load it from there.

    Args:
        models: names the base, or the size of a model to create.
        created: folder for a created base; one that is already there is loaded.
        texts: whose words a created tokenizer knows.
        compute: the device to load to; of models that ranks will split, the files are mapped.
        seed: of created weights.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
        InputError: the folder is not writable.
    """
    base = models.base
    assert base is not None, "a recipe without a base has a pair"
    if isinstance(base, str):
        return _load_base(base, models, compute)
    if not created.exists():
        fresh = create_model(texts, base, seed)
        with whole_folder(created) as unfinished, library_disk_errors():
            fresh.model.save_pretrained(unfinished)
            fresh.tokenizer.save_pretrained(unfinished)
    # Loaded also where it was just made: a resumed run starts from the same weights.
    return replace(_load_base(str(created), models, compute), source=None)


def create_model(texts: Iterable[str], size: ModelSize, seed: int) -> CausalLM:
    """Create a Llama-shaped model with random weights that knows the words of `texts`."""
    tokenizer = create_tokenizer(texts)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(1, size.heads // 2),
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CausalLM(model=LlamaForCausalLM(config).eval(), tokenizer=tokenizer)


def create_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Create a tokenizer with one token for every word of `texts`; other text becomes bytes."""
    split = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\w\s]+|\s+"), behavior="isolated")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(piece for piece, _ in split.pre_tokenize_str(text))
    # Unigram prefers the most probable pieces: whole words first, bytes only where no word fits.
    vocabulary = [
        ("<|unk|>", 0.0),
        *((f"<0x{value:02X}>", -20.0) for value in range(256)),
        *((word, -1.0) for word in sorted(words)),
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    special = [AddedToken(text, special=True, normalized=False) for text in (PAD, END, *CHAT_ROLES)]
    tokenizer.add_special_tokens(special)
    # Not special, because the text of a reply leaves special tokens out.
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in FRAME])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
