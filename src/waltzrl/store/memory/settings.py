"""What a recipe says of the memory of what was served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.store.memory.schemas import MOST_EXAMPLES

Share = Annotated[float, Field(ge=0, le=1)]
Days = Annotated[float, Field(gt=0)]
ExampleReader = Literal["conversation", "feedback"]
"""An agent that is shown examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDays:
    """How long each kind of record is kept, in days since the event."""

    evaluations: Days = 200.0
    """Days for which every exchange is kept."""
    coaching: Days = 365.0
    """Days for which exchanges in which feedback led to a revision are kept, for `examples`."""
    training: Days = 365.0
    """Days for which samples to train on are kept, which `waltzrl collect` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The memory of what was served: where it is, and what it keeps."""

    url: str
    """sqlite:///FILE, or postgresql://USER@HOST/NAME if several gateways share it."""
    subject_key: Path = Path("runs/memory.key")
    """File of the key of the digests that replace user names, created if missing; replicas share
    it."""
    judge: str | None = None
    """Judge of a sample of replies: `llm:MODEL@URL`, or `labelled:FILE` of prompts with labels."""
    judge_share: Share = 0.1
    """Share of the replies to judge; a candidate's are all judged, and under a release at least as
    many of the serving bundle."""
    second_judge: str | None = None
    """Judges again, under a release, what the judge finds bad and a tenth of the rest: a candidate
    is not rolled back for errors of `judge` alone. In the form of `judge`."""
    examples: Annotated[int, Field(ge=0, le=MOST_EXAMPLES)] = 0
    """Most examples of similar coaching that ended well; measure with `waltzrl evaluate --set
    examples=URL` before you set it."""
    examples_for: tuple[ExampleReader, ...] = ("conversation",)
    """Whom they are shown: the model that replies, and with `feedback` the one that reviews, which
    without them stays the one that was calibrated, and catches what they spoil."""
    retention_days: RetentionDays = RetentionDays()
    consent: Literal["assumed", "asked"] = "assumed"
    """Whether training may use a request without the header X-Waltzrl-Learn: yes or no; an API key
    may set this for all of its requests."""
    shadows_at_once: Annotated[int, Field(ge=1)] = 4
    """Most concurrent replies of a shadow; further ones are skipped."""
    shadows_per_minute: Annotated[int, Field(ge=1)] = 600
    """Most replies of a shadow per minute, to limit its cost."""
    niceness: Annotated[int, Field(ge=0, le=19)] = 19
    """CPU niceness of the recorder process: 19 yields to all others; 0 competes equally."""

    def __post_init__(self) -> None:
        if self.second_judge is not None and self.judge is None:
            raise ValueError("second_judge judges again what judge did; set memory.judge too")
