"""A reply in, a Verdict out."""

from waltzrl.evaluation.judges.agreement import (
    Agreement,
    LabelComparison,
    agreement,
    compare_labels,
)
from waltzrl.evaluation.judges.answers import AnswerCache
from waltzrl.evaluation.judges.formats import FORMATS, JudgeFormat
from waltzrl.evaluation.judges.guard import LinearGuard
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
from waltzrl.evaluation.judges.saved import SavedJudge, label_lines, read_labels, read_replies

__all__ = [
    "FORMATS",
    "Agreement",
    "AnswerCache",
    "HarmJudge",
    "Judge",
    "JudgeFormat",
    "JudgeModel",
    "LLMJudge",
    "LabelComparison",
    "LabelRefusalJudge",
    "LabelledSetJudge",
    "LinearGuard",
    "ObservedJudge",
    "Refusal",
    "RefusalDetector",
    "SavedJudge",
    "agreement",
    "compare_labels",
    "judge_replies",
    "label_lines",
    "read_labels",
    "read_replies",
    "require_decided",
]
