"""The cost of a round: what the feedback agent pays for a revision after the first.

    R_t - kappa 1{t > 0 and c_{t+1} exists}                       charge_rounds

R_t any reward of the feedback of round t, from 0; kappa the cost. The first revision is free, as in
the paper, whose collaborations have one round. A further one pays where it improves the reply more
often than kappa / alpha, less what its label earns. Feedback that accepts a revision pays nothing:
nobody chose that there is another review. Neither does the conversation agent, which does not
choose how many rounds there are.
"""

from collections.abc import Sequence

from waltzrl.training.rewards.paper import JudgedRound


def charge_rounds(
    rounds: Sequence[JudgedRound], rewards: Sequence[float], cost: float
) -> list[float]:
    """Subtract the cost from the rewards of further rounds that led to a revision: [N] in and out.

    With a cost of 0, rewards stay what they were, bit by bit.
    """
    return [
        reward - cost if judged.place > 0 and judged.after is not None else reward
        for judged, reward in zip(rounds, rewards, strict=True)
    ]
