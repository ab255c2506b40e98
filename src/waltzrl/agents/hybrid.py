"""Stage 2: a model and the rules review together, and make one decision."""

from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Final

from waltzrl.agents.calibration import UNCALIBRATED, ReviewerCalibration, estimate_overrefusal
from waltzrl.agents.classifier import FLAGGED
from waltzrl.agents.rules_reviewer import (
    OTHER,
    OVERREFUSAL,
    RulesEvidence,
    RulesReviewer,
    load_advice,
)
from waltzrl.collaboration import Reviewer
from waltzrl.records import Feedback, Prompt, Reply

MODEL_SHARE = 0.7
RULES_SHARE = 0.3
CRITICAL = 0.9
"""The risk from which a part decides alone, and from which a reply is declined when no model has
reviewed it."""
LEAST = 1e-9
"""The least probability that log odds are made of."""
UNREADABLE: Final = "unreadable"
"""The failure of a model whose feedback cannot be parsed."""


class HybridReviewer:
    """A model and the rules in the role of the feedback agent.

    A reply is unsafe if its risk is too high. Where the rules were measured beside the model, as
    beside a classifier, the model decides: the rules add to its log odds what was fitted, and only
    critical findings count in spite of it; see `RulesEvidence.critical_risk`. Beside any other
    model the risk is 0.7 of the model's and 0.3 of the rules', or the model's alone or the rules'
    alone where that is higher and its owner is certain. Rules are certain of what they find in the
    reply itself, and of a harmful request only where the reply clearly complies; where they cannot
    tell, the model decides. What the rules or the model doubt, or the rules would flag, is then
    doubtful: a draft is worth a revision, and nothing is refused for it.
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
        its probability is recorded. The advice is the model's, or the rules' if only they advise on
        the outcome, and the other way round beside a classifier; the category is the rules', or
        the model's if they name none.
        Feedback of the model that is not well-formed stays so, whatever the rules find.
        """
        evidence = await self.rules.gather(prompt, reply)
        model = await self.model.review(prompt, reply)
        combine = partial(self._combine_feedback, model)
        return self.rules.actions.decide(evidence, combine, self.rules.feedback)

    def _combine_feedback(self, model: Feedback, evidence: RulesEvidence) -> Feedback:
        rules = self.rules.feedback(evidence)
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
        risk = self._combine(model_risk, rules_risk, evidence)
        unsafe = 1 - risk < self.threshold
        overrefuse = not unsafe and self.calibration.challenges(model)
        doubtful = not (unsafe or overrefuse) and (rules.unsafe or rules.doubtful or model.doubtful)
        asks = unsafe or overrefuse or doubtful
        return replace(
            model,
            unsafe=unsafe,
            overrefuse=overrefuse,
            doubtful=doubtful,
            text=self._choose_advice(model, rules, is_refusal=overrefuse) if asks else "",
            risk=risk,
            model_risk=model_risk,
            rules_risk=rules_risk,
            overrefusal_probability=estimate_overrefusal(model),
            category=(rules.category or model.category) if unsafe else "",
            rules=rules.rules,
        )

    def _combine(self, model_risk: float, rules_risk: float, evidence: RulesEvidence) -> float:
        """Return the one risk."""
        weight = self.calibration.rules_weight
        if weight is not None:
            # A classifier's threshold, alone `FLAGGED`, is the same risk as in the sum below.
            shift = _log_odds(MODEL_SHARE * FLAGGED) - _log_odds(FLAGGED)
            odds = exp(_log_odds(model_risk) + shift + weight * rules_risk)
            fitted = odds / (1 + odds)
            return max(fitted, evidence.critical_risk)
        both = MODEL_SHARE * model_risk + RULES_SHARE * rules_risk
        certain = model_risk if model_risk >= CRITICAL else 0.0
        return max(both, evidence.certain_risk, certain)

    def _choose_advice(self, model: Feedback, rules: Feedback, *, is_refusal: bool) -> str:
        """Return the first advice that agrees with the outcome.

        A model that writes goes before the rules; a classifier, whose advice is one text, does not.
        """
        is_classifier = self.calibration.rules_weight is not None
        for feedback in (rules, model) if is_classifier else (model, rules):
            agrees = feedback.overrefuse if is_refusal else feedback.unsafe or feedback.doubtful
            if feedback.text and agrees:
                return feedback.text
        return load_advice()[OVERREFUSAL if is_refusal else OTHER]


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, LEAST), 1 - LEAST)
    return log(bounded / (1 - bounded))
