"""The shipped weights as a classifier of exchanges."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from waltzrl.agents.classifier import ExchangeProbabilities, ThresholdPoint
from waltzrl.errors import CheckpointError
from waltzrl.policies.compute import multiplies_bfloat16
from waltzrl.policies.weights import base_digest, load_causal_lm
from waltzrl_smollm2.model import LABELS, Classifier, Encoder, Shape

WEIGHTS = "weights/reviewer.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScale:
    """From logits z to the probabilities of `LABELS`: 1 / (1 + exp(-(weights z + shift)))."""

    weights: tuple[tuple[float, ...], ...]
    """Of each logit for each label: [labels][logits]."""
    shift: tuple[float, ...]
    curve: tuple[ThresholdPoint, ...]
    """See `ExchangeClassifier.curve`."""


class SmolLM2Classifier:
    """Labels exchanges in this process."""

    languages = ("en",)
    """By training/languages.py, at the threshold that serves it finds nothing in others."""

    def __init__(
        self, model: Classifier, encoder: Encoder, calibration: LabelScale, name: str
    ) -> None:
        self.name, self.curve = name, calibration.curve
        self._model, self._encoder = model, encoder
        self._weights = torch.tensor(calibration.weights)
        self._shift = torch.tensor(calibration.shift)

    def classify(self, exchanges: Sequence[tuple[str, str]]) -> list[ExchangeProbabilities]:
        """Label requests and replies, in one batch."""
        batch = self._encoder.batch(self._encoder.encode_all(exchanges))
        with torch.inference_mode():
            logits = torch.addmm(self._shift, self._model(*batch), self._weights.T)
        return [
            ExchangeProbabilities(**dict(zip(LABELS, row, strict=True)))
            for row in torch.sigmoid(logits).tolist()
        ]


def load_classifier(
    base: str, weights: Path | None = None, dtype: torch.dtype | None = None
) -> SmolLM2Classifier:
    """Load the base, and the adapters and the head onto it.

    Args:
        base: a name for `load_causal_lm`.
        weights: what `save_classifier` wrote; None for the weights that this package ships.
        dtype: of the layers; None is bfloat16 where the CPU has instructions for it, which takes
            half of the time, and float32 elsewhere.

    Raises:
        InputError: the base is missing.
        CheckpointError: the weights are damaged, or of another base.
    """
    weights = weights or Path(str(files("waltzrl_smollm2") / WEIGHTS))
    try:
        with safe_open(weights, "pt") as tensors:
            metadata = tensors.metadata()
            trained = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{weights}: no weights of a reviewer ({error}); install the package again"
        ) from error
    try:
        shape = msgspec.json.decode(metadata["shape"], type=Shape)
        scale = msgspec.json.decode(metadata["calibration"], type=LabelScale)
    except (KeyError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{weights}: no weights of a reviewer of this version ({error}); install the package "
            "again"
        ) from error
    causal_lm = load_causal_lm(base, torch.device("cpu"), torch.float32)
    if (digest := base_digest(causal_lm.model)) != metadata["base"]:
        raise CheckpointError(
            f"{base} has the weights {digest[:12]}, and the reviewer was trained on "
            f"{metadata['base'][:12]}; install the version of the base that this package names"
        )
    model = Classifier(causal_lm.model.model, shape)
    # Not strict, because the file has only what was trained.
    model.load_state_dict({name: value.float() for name, value in trained.items()}, strict=False)
    model.merge()
    # After the merge, so that the sums are rounded only once.
    model.base.to(dtype or (torch.bfloat16 if multiplies_bfloat16() else torch.float32))
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
    return SmolLM2Classifier(model.eval(), Encoder(causal_lm.tokenizer), scale, f"smollm2@{digest}")


def save_classifier(
    path: Path,
    trained: Mapping[str, Tensor],
    shape: Shape,
    calibration: LabelScale,
    base: str,
) -> None:
    """Write `Classifier.trained` in float16; `base` is the `base_digest` of its base."""
    metadata = {
        "base": base,
        "shape": json.dumps({name: getattr(shape, name) for name in Shape.__slots__}),
        "calibration": json.dumps(asdict(calibration)),
    }
    save_file({name: value.detach().half() for name, value in trained.items()}, path, metadata)
