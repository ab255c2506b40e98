"""Two roles of a few thousand weights each, as full models or as adapters on one base."""

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from waltzrl.training.checkpoints import RoleState

WORDS = ("<pad>", "<end>", "<unk>", "how", "do", "i", "kill", "a", "process", "use", "no", ":")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}<end>{% endfor %}"


def tokenizer():
    words = {word: index for index, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def model(seed):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    ).eval()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def full_models(seed):
    """Make both roles as models of their own."""
    roles = {}
    for offset, name in enumerate(("conversation", "feedback")):
        own = model(seed + offset)
        roles[name] = RoleState(
            model=own, tokenizer=tokenizer(), optimizer=optimizer(own.parameters())
        )
    return roles


def adapters(seed):
    """Make both roles as LoRA adapters, none of them zero, on one frozen base."""
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    shared = get_peft_model(model(seed), config, adapter_name="conversation")
    shared.add_adapter("feedback", config)
    roles = {}
    for name in ("conversation", "feedback"):
        own = [value for key, value in shared.named_parameters() if f".{name}." in key]
        for parameter in own:
            torch.nn.init.normal_(parameter.requires_grad_(), std=0.5)
        roles[name] = RoleState(model=shared, tokenizer=tokenizer(), optimizer=optimizer(own))
    return roles


def activate(role, name):
    """Make the role's adapter the active one, where it is an adapter."""
    if hasattr(role.model, "peft_config"):
        role.model.set_adapter(name)
        for key, parameter in role.model.named_parameters():
            parameter.requires_grad_(f".{name}." in key)


def learn(roles, steps):
    """Take the optimiser steps of these numbers, each on tokens that its number decides."""
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        for name, role in roles.items():
            activate(role, name)
            ids = torch.randint(len(WORDS), (2, 6), generator=draw)
            loss = role.model(input_ids=ids, labels=ids).loss
            role.optimizer.zero_grad()
            loss.backward()
            role.optimizer.step()
