"""A reply in, a Verdict out."""

from waltzrl.judges.agreement import Agreement, agreement
from waltzrl.judges.guard import LinearGuard
from waltzrl.judges.judge import Judge, judge_replies
from waltzrl.judges.labelled import LabelRefusalJudge
from waltzrl.judges.llm import LLMJudge
from waltzrl.judges.recorded import RecordedJudge
from waltzrl.judges.refusal import Refusal, RefusalDetector
from waltzrl.judges.saved import label_lines

__all__ = [
    "Agreement",
    "Judge",
    "LLMJudge",
    "LabelRefusalJudge",
    "LinearGuard",
    "RecordedJudge",
    "Refusal",
    "RefusalDetector",
    "agreement",
    "judge_replies",
    "label_lines",
]
