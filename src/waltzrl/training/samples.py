"""The single bridge from records to tensors.

Demonstrations and rollouts both become `Sample`s: the token ids that a policy was shown, the ids
that it replied or should reply, and, for a rollout, its score.

Shapes: B samples, S context and reply together, T reply tokens, V words of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from waltzrl.agents import ConversationAgent, FeedbackAgent
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.policies.local import LocalPolicy
from waltzrl.records import Demonstration, Message, Reply, Tokens
from waltzrl.training.packing import PackedSequence, pack_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn to learn from."""

    tokens: Tokens
    score: float = 0.0
    """The turn's reward; not used by supervised learning."""
    group: int = 0
    """A number that is equal for samples whose scores are compared with each other (the same
    prompt)."""
    stale: bool = False
    """Whether older weights sampled it than those that learn from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples as tensors: contexts and replies packed, what belongs to reply tokens padded."""

    pack: PackedSequence
    reply_ids_M: Tensor
    """The tokens of all replies, one reply after the other."""
    mask_BT: Tensor
    """A mask that is True on the tokens of the reply."""
    old_logprobs_BT: Tensor
    """The log-probabilities when sampled; 0 where the sample has none."""


def demonstration_sample(
    demonstration: Demonstration, conversation: ConversationAgent, feedback: FeedbackAgent
) -> Sample:
    """Return what the agent of the demonstrated turn would be shown, and should reply.

    Args:
        demonstration: its last turn is the example.
        conversation: renders drafts and revisions; over a local policy, whose tokenizer is used.
        feedback: renders reviews.
    """
    collaboration = demonstration.collaboration
    prompt, draft, rounds = collaboration.prompt, collaboration.draft, collaboration.rounds
    if not rounds:
        messages, target = conversation.draft_messages(prompt), draft.text
    elif (revision := rounds[-1].revision) is not None:
        messages, target = conversation.revision_messages(prompt, draft, rounds), revision.text
    else:
        example = rounds[-1].feedback
        messages = feedback.review_messages(prompt, collaboration.replies[-1])
        target = write_feedback(
            reasoning=example.reasoning,
            unsafe=example.unsafe,
            overrefuse=example.overrefuse,
            text=example.text,
        )
    policy = conversation.policy
    assert isinstance(policy, LocalPolicy)
    return make_imitated_sample(policy, messages, target)


def make_imitated_sample(policy: LocalPolicy, messages: Sequence[Message], target: str) -> Sample:
    """Return a turn that is shown `messages` and should reply `target`, in the policy's tokens.

    Its only special token is the last one: the data cannot end a turn, or begin another's.
    """
    ids = (*policy.text_ids(target), policy.end_id)
    return Sample(tokens=Tokens(prompt_ids=policy.render(messages), ids=ids, logprobs=()))


def make_scored_sample(reply: Reply, score: float, group: int) -> Sample:
    """Return a turn that a policy sampled, with its reward."""
    assert reply.tokens is not None, "a policy that learns keeps the tokens it sampled"
    return Sample(tokens=reply.tokens, score=score, group=group)


def collate(samples: Sequence[Sample], device: torch.device) -> Batch:
    """Put samples into one batch on `device`."""
    turns = [sample.tokens for sample in samples]
    length = max(len(turn.ids) for turn in turns)
    lengths = torch.tensor([len(turn.ids) for turn in turns], device=device)
    old = [[*turn.logprobs, *[0.0] * (length - len(turn.logprobs))] for turn in turns]
    return Batch(
        pack=pack_turns(turns, device),
        reply_ids_M=torch.tensor([token for turn in turns for token in turn.ids], device=device),
        mask_BT=torch.arange(length, device=device) < lengths[:, None],
        old_logprobs_BT=torch.tensor(old, device=device),
    )


def reply_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return [B, T] log-probabilities in nats of the reply tokens, 0 after each reply."""
    logprobs_M = batch.pack.logprobs(model, batch.reply_ids_M)
    # Row by row, the mask has the tokens in the order of `reply_ids_M`.
    return torch.zeros_like(batch.old_logprobs_BT).masked_scatter(batch.mask_BT, logprobs_M)


def divide_into_shares(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Divide the positions of samples, by length, into `count` shares of about as many tokens.

    Samples with the same prompt are in one share where possible, because there it is read once.
    """
    sizes = [len(sample.tokens.prompt_ids) + len(sample.tokens.ids) for sample in samples]
    divided: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for position in _order_by_shape(samples):
        # Where the middle of the sample falls in the tokens of all, cut into equal parts.
        divided[(2 * before + sizes[position]) * count // (2 * sum(sizes))].append(position)
        before += sizes[position]
    return divided


def micro_batches(samples: Sequence[Sample], token_limit: int) -> Iterator[list[int]]:
    """Yield positions of samples, of similar length together, within the limit per batch.

    Padded tokens count, a shared prompt only once. A sample longer than the limit is a micro-batch
    of its own.
    """
    turns = [sample.tokens for sample in samples]
    batch: list[int] = []
    prompts: set[tuple[int, ...]] = set()
    longest = 0
    for position in _order_by_shape(samples):
        prompt, reply = turns[position].prompt_ids, turns[position].ids
        longest = max(longest, len(reply))
        # Sorted by length, so this prompt is the longest of the batch and all are padded to it.
        size = len(prompts | {prompt}) * len(prompt) + (len(batch) + 1) * longest
        if batch and size > token_limit:
            yield batch
            batch, prompts, longest = [], set(), len(reply)
        batch.append(position)
        prompts.add(prompt)
    if batch:
        yield batch


def _order_by_shape(samples: Sequence[Sample]) -> list[int]:
    """Return the positions of samples, in the order of length and prompt."""
    turns = [sample.tokens for sample in samples]

    def shape(position: int) -> tuple[int, tuple[int, ...], int]:
        turn = turns[position]
        return len(turn.prompt_ids), turn.prompt_ids, len(turn.ids)

    return sorted(range(len(turns)), key=shape)
