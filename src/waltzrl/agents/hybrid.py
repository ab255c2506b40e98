"""Stage 2: a model and the rules review together; neither makes the other weaker."""

from dataclasses import replace
from typing import Final

from waltzrl.agents.calibration import UNCALIBRATED, ReviewerCalibration, estimate_overrefusal
from waltzrl.agents.rules_reviewer import OTHER, OVERREFUSAL, RulesReviewer, load_advice
from waltzrl.collaboration import Reviewer
from waltzrl.records import Feedback, Prompt, Reply

MODEL_SHARE = 0.7
RULES_SHARE = 0.3
CRITICAL = 0.9
"""The risk from which a part decides alone, and from which a reply is declined when no model has
reviewed it."""
UNREADABLE: Final = "unreadable"
"""The failure of a model whose feedback cannot be parsed."""


class HybridReviewer:
    """A model and the rules in the role of the feedback agent.

    The risk is 0.7 of the model's and 0.3 of the rules', or the model's alone or the rules' alone
    where that is higher and its owner is certain. A reply is unsafe if its risk is too high.
    Rules are certain of what they find in the reply itself, and of a harmful request only where
    the reply clearly complies; where they cannot tell, the model decides. What the rules doubt,
    or would flag, is then doubtful: a draft is worth a revision, and nothing is refused for it.
    """

    def __init__(
        self,
        model: Reviewer,
        rules: RulesReviewer,
        threshold: float = 0.7,
        calibration: ReviewerCalibration = UNCALIBRATED,
    ) -> None:
        """Combine the two.

        Args:
            model: gives a risk, or only labels.
            rules: give a risk.
            threshold: a reply whose safety, 1 - risk, is below it is unsafe.
            calibration: of the model: which refusals it may challenge, and the risks that its
                labels stand for. Without one it challenges none.
        """
        self.model = model
        self.rules = rules
        self.threshold = threshold
        self.calibration = calibration

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise.

        The model alone decides on over-refusal, as far as its calibration allows; otherwise only
        its probability is recorded. The advice is the model's, or the rules' if only
        they advise on the outcome; the category is the rules', or the model's if they name none.
        Feedback of the model that is not well-formed stays so, whatever the rules find.
        """
        evidence = await self.rules.gather(prompt, reply)
        rules = self.rules.feedback(evidence)
        model = await self.model.review(prompt, reply)
        rules_risk = rules.risk or 0.0
        if not model.well_formed:
            return replace(
                model,
                risk=rules_risk,
                rules_risk=rules_risk,
                rules=rules.rules,
                failure=model.failure or UNREADABLE,
            )
        model_risk = self.calibration.risk(model) if model.risk is None else model.risk
        both = MODEL_SHARE * model_risk + RULES_SHARE * rules_risk
        certain = model_risk if model_risk >= CRITICAL else 0.0
        risk = max(both, evidence.certain_risk, certain)
        unsafe = 1 - risk < self.threshold
        overrefuse = not unsafe and self.calibration.challenges(model)
        doubtful = not (unsafe or overrefuse) and (rules.unsafe or rules.doubtful)
        asks = unsafe or overrefuse or doubtful
        return replace(
            model,
            unsafe=unsafe,
            overrefuse=overrefuse,
            doubtful=doubtful,
            text=_choose_advice(model, rules, is_refusal=overrefuse) if asks else "",
            risk=risk,
            model_risk=model_risk,
            rules_risk=rules_risk,
            overrefusal_probability=estimate_overrefusal(model),
            category=(rules.category or model.category) if unsafe else "",
            rules=rules.rules,
        )


def _choose_advice(model: Feedback, rules: Feedback, *, is_refusal: bool) -> str:
    """Return the first advice, the model's before the rules', that agrees with the outcome."""
    for feedback in (model, rules):
        agrees = feedback.overrefuse if is_refusal else feedback.unsafe or feedback.doubtful
        if feedback.text and agrees:
            return feedback.text
    return load_advice()[OVERREFUSAL if is_refusal else OTHER]
