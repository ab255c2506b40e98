"""The reward of a teacher's explanation: Reinforcement-Learned Teachers (arXiv 2506.08388).

    R = r_solution - r_divergence + r_format                                explanation_reward
    r_solution = a mean_t l_t + b min_t l_t,    l_t = log pi_s(s_t | q, z, s_<t)
    r_divergence = c mean_t d_t + e max_t d_t,
        d_t = log pi_T(z_t | q, s, z_<t) - log pi_s(z_t | q, z_<t)
    r_format = 0 if the student's reply with z can be read, else -f

q question, s solution, z explanation, pi_T the teacher, which is shown q and s, pi_s the frozen
student, which is shown q. An explanation earns much if the student finds the solution likely after
it, and would have found the explanation itself likely without having seen the solution. The second
is what keeps the teacher from writing down the solution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationCoefficients:
    """The weights of the terms; the defaults are those of the authors' recipe."""

    solution_mean: float = 1.0
    """a"""
    solution_min: float = 0.01
    """b; raise it when one token of the solutions stays unlikely."""
    divergence_mean: float = 3.0
    """c; raise it when explanations give the solution away."""
    divergence_max: float = 0.03
    """e"""
    format: float = 1.0
    """f; raise it when explanations are often cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredExplanation:
    """An explanation as teacher and student see it."""

    solution_logprobs: Sequence[float]
    """l_t: [S] of the solution's tokens, by the student, after question and explanation."""
    teacher_logprobs: Sequence[float]
    """[Z] log-probabilities of the explanation's tokens, by the teacher that sampled them."""
    student_logprobs: Sequence[float]
    """[Z] log-probabilities of the same tokens, by the student, after the question."""
    well_formed: bool

    @property
    def solution(self) -> float:
        """The mean of l_t, in nats."""
        return fmean(self.solution_logprobs)

    @property
    def divergences(self) -> list[float]:
        """d_t; one 0 for an explanation without tokens."""
        pairs = zip(self.teacher_logprobs, self.student_logprobs, strict=True)
        return [teacher - student for teacher, student in pairs] or [0.0]


def explanation_reward(scored: ScoredExplanation, coefficients: ExplanationCoefficients) -> float:
    """Reward one explanation: R above."""
    divergences = scored.divergences
    solution = coefficients.solution_mean * scored.solution + coefficients.solution_min * min(
        scored.solution_logprobs
    )
    divergence = coefficients.divergence_mean * fmean(
        divergences
    ) + coefficients.divergence_max * max(divergences)
    return solution - divergence - coefficients.format * (not scored.well_formed)
