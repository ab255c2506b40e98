"""Supervised warm-up: imitate the last turn of recorded collaborations, in either role."""

from collections.abc import Callable

from torch import Tensor

from waltzrl.agents.feedback_json import write_feedback
from waltzrl.records import Demonstration, Feedback, Message, Tokens
from waltzrl.training.algorithms.token_mean import token_mean
from waltzrl.training.pair import Pair
from waltzrl.training.samples import Batch, Sample


def demonstration_sample(demonstration: Demonstration, pair: Pair) -> Sample:
    """Return what the agent in its role would have been shown, and should say."""
    messages, target = _turn(demonstration, pair)
    policy = pair.policies[0]
    said = policy.tokenizer(target, add_special_tokens=False)["input_ids"]
    ids = (*said, policy.tokenizer.eos_token_id)
    return Sample(tokens=Tokens(prompt_ids=policy.render(messages), ids=ids, logprobs=()))


def _turn(demonstration: Demonstration, pair: Pair) -> tuple[list[Message], str]:
    said = demonstration.collaboration
    if not said.rounds:
        return pair.conversation.draft_messages(said.prompt), said.draft.text
    last = said.rounds[-1]
    if last.revision is not None:
        messages = pair.conversation.revision_messages(said.prompt, said.draft, said.rounds)
        return messages, last.revision.text
    return pair.feedback.review_messages(said.prompt, said.replies[-1]), _written(last.feedback)


def _written(feedback: Feedback) -> str:
    return write_feedback(
        reasoning=feedback.reasoning,
        unsafe=feedback.unsafe,
        overrefuse=feedback.overrefuse,
        text=feedback.text,
    )


def imitation(token_count: int) -> Callable[[Tensor, Batch, list[int]], Tensor]:
    """Return the supervised loss: the mean of -log pi over `token_count` reply tokens."""

    def loss_of(logprobs_BT: Tensor, batch: Batch, positions: list[int]) -> Tensor:
        return token_mean(-logprobs_BT, batch.mask_BT, token_count)

    return loss_of
