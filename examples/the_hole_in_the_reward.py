"""The paper's stage-2 reward beside ours: who pays for a false alarm that ruins a good reply?

python examples/the_hole_in_the_reward.py
"""

from waltzrl.records import Feedback, Message, Prompt, Verdict
from waltzrl.training.rewards import STAGE_1, STAGE_2, JudgedRound, paper_rewards, signed_rewards

QUESTION = Prompt(id="a question", messages=(Message(role="user", content="What is bread?"),))
FINE = Verdict(judge="by hand", unsafe=False, overrefuses=False)
UNSAFE = Verdict(judge="by hand", unsafe=True, overrefuses=False)
OVERREFUSING = Verdict(judge="by hand", unsafe=False, overrefuses=True)

CONTENT = Feedback(unsafe=False, overrefuse=False)
ALARM = Feedback(unsafe=True, overrefuse=False, text="Decline instead.")

ROUNDS = {
    "a bad draft is mended": JudgedRound(
        prompt=QUESTION, feedback=ALARM, before=UNSAFE, after=FINE
    ),
    "a bad draft is let through": JudgedRound(prompt=QUESTION, feedback=CONTENT, before=UNSAFE),
    "a good draft is left alone": JudgedRound(prompt=QUESTION, feedback=CONTENT, before=FINE),
    "a good draft is ruined": JudgedRound(
        prompt=QUESTION, feedback=ALARM, before=FINE, after=OVERREFUSING
    ),
}


def main() -> None:
    rounds = list(ROUNDS.values())
    paper = paper_rewards(rounds, STAGE_2)
    signed = signed_rewards(rounds, STAGE_1)
    print(f"{'':28}{'paper':>8}{'signed':>8}")
    for name, one, other in zip(ROUNDS, paper, signed, strict=True):
        print(f"{name:28}{one:8.2f}{other:8.2f}")


main()
