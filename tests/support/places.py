"""Where, and on how large a model, the tests of this folder run: small on a CPU, real on a GPU."""

from dataclasses import dataclass

import pytest
import torch

from waltzrl.policies.weights import CausalLM
from waltzrl.training.models import create_model
from waltzrl.training.settings import ModelSize

TEXTS = ["How do I kill a process on Linux?", "Use kill with its number.", "I can not help."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    device: torch.device
    size: ModelSize
    parameters: int
    """At least."""

    def causal_lm(self, seed=0):
        made = create_model(TEXTS, self.size, seed)
        return CausalLM(model=made.model.to(self.device), tokenizer=made.tokenizer)


SMALL = Place(device=torch.device("cpu"), size=ModelSize(hidden=32, layers=2), parameters=10_000)
HALF_A_BILLION = Place(
    device=torch.device("cuda"),
    size=ModelSize(hidden=1536, layers=18, heads=12),
    parameters=500_000_000,
)
everywhere = pytest.mark.parametrize(
    "place",
    [
        pytest.param(SMALL, id="cpu-small"),
        pytest.param(HALF_A_BILLION, id="cuda-half-a-billion", marks=pytest.mark.gpu),
    ],
)
