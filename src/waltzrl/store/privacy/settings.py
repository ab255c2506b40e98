"""What a recipe says of personal data and secrets in what is stored and in what is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.store.privacy.detection import DEFAULT_REGIONS, Kind
from waltzrl.store.privacy.redaction import Action

UpstreamPrivacy = Literal["off", "mask", "pseudonymise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPrivacyConfig:
    """The treatment of personal data and secrets in what is sent to models on servers."""

    upstream: UpstreamPrivacy = "off"
    """What the scanner finds in a request leaves as it is (`off`), as a mask such as `[EMAIL]`
    (`mask`), or as a numbered stand-in such as `[EMAIL_1]`, which in the reply becomes what it
    stands for (`pseudonymise`). A feedback model on a server gets the same."""
    regions: tuple[str, ...] = DEFAULT_REGIONS
    """ISO 3166 codes of the countries whose telephone and national numbers are recognised as they
    are written there. Give those of your users; others only cost false alarms."""

    @property
    def sent(self) -> "UpstreamPrivacyConfig":
        """The part that decides what a model gets, and so its replies."""
        return UpstreamPrivacyConfig(upstream=self.upstream, regions=self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig(UpstreamPrivacyConfig):
    """The treatment of personal data and secrets in everything that is stored or sent."""

    actions: Mapping[Kind, Action] = field(default_factory=dict)
    """The action for each kind in what is stored: redact, mask, hash, keep or seal; other kinds are
    redacted."""
    key: Path | None = None
    """File of the key for `hash` and `seal`, created if missing; the other actions need none."""
    engine: Annotated[str, Field(pattern="^(patterns|presidio(:.+)?)$")] = "patterns"
    """patterns: our scanner. presidio: adds its recognizers of documents of those countries.
    presidio:PIPELINE adds names that an installed spaCy pipeline finds. Both take many times as
    long, in the processes that write memory and audit log; what is sent is searched by our scanner
    alone."""

    def __post_init__(self) -> None:
        if self.key is None and {"hash", "seal"} & set(self.actions.values()):
            raise ValueError("the actions hash and seal need a key file; set privacy.key")
