"""WaltzRL in miniature, on a CPU, in minutes."""

from waltzrl.demo.jobs import CalibrationJob, EvaluationJob, Job, TrainingJob
from waltzrl.demo.paper import PaperDemo

__all__ = ["CalibrationJob", "EvaluationJob", "Job", "PaperDemo", "TrainingJob"]
