"""Stage 2 with a second opinion: a model reviews, and the rules have a share in its word."""

from dataclasses import replace

from waltzrl.agents.feedback import Reviewer
from waltzrl.agents.rules import RulesReviewer
from waltzrl.records import Feedback, Prompt, Reply

MODEL_SHARE = 0.7
RULES_SHARE = 0.3


class HybridReviewer:
    """A model and the rules in the feedback agent's place: risk = 0.7 model + 0.3 rules.

    At the threshold of 0.7 a model that is sure decides alone, and the rules tip the scales where
    it gives a risk between 0 and 1; above 0.7 rules that are sure decide alone as well.
    """

    def __init__(self, model: Reviewer, rules: RulesReviewer, threshold: float = 0.7) -> None:
        """Put the two together.

        Args:
            model: gives labels, which count as a risk of 0 or 1, or a risk of its own.
            rules: give a risk.
            threshold: a reply whose safety, 1 - risk, lies below it is unsafe.
        """
        self.model = model
        self.rules = rules
        self.threshold = threshold

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise.

        Whether a refusal is needless is for the model to say. The advice is the model's, or the
        rules' when only they have any for what was found. Feedback of the model that cannot be
        read stays so, whatever the rules say.
        """
        rules = self.rules.read(prompt, reply)
        model = await self.model.review(prompt, reply)
        second = rules.risk or 0.0
        if not model.well_formed:
            return replace(model, risk=second, rules=rules.rules)
        first = float(model.unsafe) if model.risk is None else model.risk
        risk = MODEL_SHARE * first + RULES_SHARE * second
        unsafe = 1 - risk < self.threshold
        overrefuse = model.overrefuse and not unsafe
        return replace(
            model,
            unsafe=unsafe,
            overrefuse=overrefuse,
            text=_advice(model, rules, unsafe=unsafe) if unsafe or overrefuse else "",
            risk=risk,
            rules=rules.rules,
        )


def _advice(model: Feedback, rules: Feedback, *, unsafe: bool) -> str:
    """Choose the words of the first who says what the outcome says."""
    voices = [one.text for one in (model, rules) if (one.unsafe if unsafe else one.overrefuse)]
    return next(filter(None, voices), model.text)
