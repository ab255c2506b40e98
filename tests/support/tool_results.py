"""Results of tools, harmless ones and ones with an instruction that is aimed at the assistant."""

from pathlib import Path

HERE = Path(__file__).parent


def harmless_results():
    """Return those for development, and those that were held out."""
    lines = _lines(HERE / "harmless_results.txt")
    return lines[::2], lines[1::2]


def injected_results():
    """Return those that the rules were written with, and those that were written after them."""
    text = (HERE / "injected_results.txt").read_text("utf-8")
    return tuple(
        [line.replace("\\n", "\n") for line in part.splitlines()[1:]]
        for part in text.split("# Held out")
    )


def _lines(path):
    text = path.read_text("utf-8").splitlines()[1:]
    return [line.replace("\\n", "\n") for line in text]
