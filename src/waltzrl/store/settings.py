"""What a recipe says of what is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.records import MOST_EXAMPLES
from waltzrl.store.privacy.detection import DEFAULT_REGIONS, Kind
from waltzrl.store.privacy.redaction import Action

Share = Annotated[float, Field(ge=0, le=1)]
Days = Annotated[float, Field(gt=0)]
ExampleReader = Literal["conversation", "feedback"]
"""An agent that is shown examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """The audit log of every decision."""

    folder: Path
    key: Path | None = None
    """File of the log's private key, created if missing; None is FOLDER.key beside the folder."""
    contents: bool = False
    """True keeps the texts too, without personal data, so that decisions can be replayed."""
    contents_days: Days = 200.0
    """The time for which the texts are kept; the log itself is never shortened."""
    on_failure: Literal["refuse", "serve"] = "refuse"
    """The behaviour when the log cannot be written: refuse requests, or serve unaudited replies and
    count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """The treatment of personal data and secrets in everything that is stored."""

    actions: Mapping[Kind, Action] = field(default_factory=dict)
    """The action for each kind: redact, mask, hash, keep or seal; other kinds are redacted."""
    key: Path | None = None
    """File of the key for `hash` and `seal`, created if missing; the other actions need none."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    """ISO 3166 codes of the countries whose telephone and national numbers are recognised as they
    are written there. Give those of your users; others only cost false alarms."""
    engine: Annotated[str, Field(pattern="^(patterns|presidio(:.+)?)$")] = "patterns"
    """patterns: our scanner. presidio: adds its recognizers of documents of those countries.
    presidio:PIPELINE adds names that an installed spaCy pipeline finds. Both take many times as
    long, in the processes that write memory and audit log."""

    def __post_init__(self) -> None:
        if self.key is None and {"hash", "seal"} & set(self.actions.values()):
            raise ValueError("the actions hash and seal need a key file; set privacy.key")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDays:
    """How long each kind of record is kept, in days since the event."""

    evaluations: Days = 200.0
    coaching: Days = 365.0
    training: Days = 365.0


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
