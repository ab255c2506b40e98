"""Token counts of all choices together."""

from collections.abc import Sequence

from waltzrl.serving.messages_in_transit import Answer


def total_tokens(answers: Sequence[Answer]) -> tuple[int, int]:
    """Return the tokens read and the tokens written for all answers, their drafts included."""
    read = sum(answer.reply.prompt_tokens for answer in answers)
    return read, sum(answer.reply.reply_tokens for answer in answers)


def chat_usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Return the counts as chat completions spell them."""
    read, written = total_tokens(answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
