"""A reply in, a Verdict out."""

from waltzrl.judges.agreement import Agreement, LabelComparison, agreement, compare_labels
from waltzrl.judges.answers import AnswerCache
from waltzrl.judges.formats import FORMATS, JudgeFormat
from waltzrl.judges.guard import LinearGuard
from waltzrl.judges.harm import HarmJudge
from waltzrl.judges.judge import (
    Judge,
    LabelledSetJudge,
    LabelRefusalJudge,
    ObservedJudge,
    judge_replies,
    require_decided,
)
from waltzrl.judges.llm import JudgeModel, LLMJudge
from waltzrl.judges.refusal import Refusal, RefusalDetector
from waltzrl.judges.saved import SavedJudge, label_lines, read_labels, read_replies

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
