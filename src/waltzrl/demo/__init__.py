"""WaltzRL in miniature, on a CPU, in minutes."""

from waltzrl.demo.jobs import EvaluationJob, Job, TrainingJob
from waltzrl.demo.paper import PaperDemo

__all__ = ["EvaluationJob", "Job", "PaperDemo", "TrainingJob"]
