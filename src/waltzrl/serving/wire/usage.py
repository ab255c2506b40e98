"""Token counts of all choices together."""

from collections.abc import Sequence

from waltzrl.records import total_usage
from waltzrl.serving.exchange import Answer


def total_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the tokens read and written for all answers, their drafts included.

    The APIs have no word for an unknown count: it is 0 there.
    """
    usage = total_usage(answer.reply for answer in answers)
    return (0, 0) if usage is None else (usage.input_tokens, usage.output_tokens)


def chat_usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Return the counts as chat completions spell them."""
    read, written = total_tokens(answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
