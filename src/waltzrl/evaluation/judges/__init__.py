"""A reply in, a Verdict out."""

from waltzrl.evaluation.judges.agreement import (
    Agreement,
    VerdictComparison,
    agreement,
    compare_verdicts,
)
from waltzrl.evaluation.judges.answers import AnswerCache
from waltzrl.evaluation.judges.formats import FORMATS, JudgeFormat
from waltzrl.evaluation.judges.guard import LinearGuard
from waltzrl.evaluation.judges.guard_model_reviewer import GuardModelReviewer
from waltzrl.evaluation.judges.harm import HarmJudge
from waltzrl.evaluation.judges.judge import (
    Judge,
    LabelledSetJudge,
    LabelRefusalJudge,
    ObservedJudge,
    judge_replies,
    require_decided,
)
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.evaluation.judges.refusal import Refusal, RefusalDetector
from waltzrl.evaluation.judges.saved import (
    SavedJudge,
    judge_lines,
    read_replies,
    read_saved_verdicts,
)

__all__ = [
    "FORMATS",
    "Agreement",
    "AnswerCache",
    "GuardModelReviewer",
    "HarmJudge",
    "Judge",
    "JudgeFormat",
    "JudgeModel",
    "LLMJudge",
    "LabelRefusalJudge",
    "LabelledSetJudge",
    "LinearGuard",
    "ObservedJudge",
    "Refusal",
    "RefusalDetector",
    "SavedJudge",
    "VerdictComparison",
    "agreement",
    "compare_verdicts",
    "judge_lines",
    "judge_replies",
    "read_replies",
    "read_saved_verdicts",
    "require_decided",
]
