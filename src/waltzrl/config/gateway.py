"""What a gateway is told: a TOML recipe, the requirement's variables, and `--set`."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from waltzrl.agents.failsafe import OnFailure
from waltzrl.config.environment import settings_from_environment
from waltzrl.config.validation import Table, validated, with_overrides
from waltzrl.data.jsonl import read_text
from waltzrl.errors import RecipeError
from waltzrl.privacy.detection import Kind
from waltzrl.privacy.redaction import Action
from waltzrl.rules import DEFAULT_PACKS
from waltzrl.serving.access import Limits
from waltzrl.serving.keys import StreamMode

Share = Annotated[float, Field(ge=0, le=1)]
Days = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """The model behind the gateway: a server, or weights in this process."""

    url: str | None = None
    """Of an OpenAI-compatible server, up to and without `/chat/completions`."""
    folder: str | None = None
    """Weights to load instead; clients know them by the folder's name."""
    wording: str = "plain"
    """How a revision is asked for: plain, or tiny for the demo's agents."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 1024
    """Of weights in this process: the longest reply."""
    api_key_env: str = "WALTZRL_UPSTREAM_KEY"
    """Variable that holds the key for it. When it is not set, and the gateway asks for no keys of
    its own, each client's key is passed on."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Longest silence: until the whole reply, or between the parts of a stream."""

    def __post_init__(self) -> None:
        if (self.url is None) == (self.folder is None):
            raise ValueError(
                "upstream needs a url or a folder, not both: say --upstream http://host:8000/v1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """The model that reviews in stage 2."""

    model: str
    """Its name behind `server`; without a server, a folder of weights for this process."""
    server: str | None = None
    wording: str = "labels_first"
    """labels_first for a model that was not trained to review, plain or tiny for one that was."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    api_key_env: str = "WALTZRL_FEEDBACK_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """What is written down of every decision."""

    folder: Path
    key: Path | None = None
    """Private key of the log, made when it is missing; None is the folder's name and `.key`."""
    contents: bool = False
    """Keep the words too, without personal data, so that a decision can be replayed."""
    contents_days: Days = 200.0
    """How long the words are kept; the log itself is never cut."""
    on_failure: Literal["refuse", "serve"] = "refuse"
    """When the log cannot be written: answer nothing, or answer unaudited and count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """What becomes of personal data and secrets in everything that is kept."""

    actions: Mapping[Kind, Action] = field(default_factory=dict)
    """For each kind redact, mask, hash, keep or seal; kinds that are not named are redacted."""
    key: Path | None = None
    """File of the key of `hash` and `seal`, made when it is missing; only they need one."""

    def __post_init__(self) -> None:
        if self.key is None and {"hash", "seal"} & set(self.actions.values()):
            raise ValueError("privacy.key names the file of the key that hash and seal need")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDays:
    """How long each kind of record is kept, counted from when it happened."""

    evaluations: Days = 200.0
    coaching: Days = 365.0
    training: Days = 365.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """What is remembered of everything that was served, and where."""

    url: str
    """sqlite:///FILE, or postgresql://USER@HOST/NAME for several gateways."""
    subject_key: Path = Path("runs/memory.key")
    """Key of the digests in the place of the names of users; replicas share it. Made when it is
    missing."""
    judge: str | None = None
    """Judges a sample of what left: `llm:MODEL@URL`, or `labelled:FILE` of prompts with labels."""
    judge_share: Share = 0.1
    """Of answers that are judged; a candidate's are judged all."""
    retention_days: RetentionDays = RetentionDays()
    consent: Literal["assumed", "asked"] = "assumed"
    """Whether the agents may learn from a request that does not say (X-Waltzrl-Learn: yes or no);
    a key may say it for all of its requests."""
    shadows_at_once: Annotated[int, Field(ge=1)] = 4
    """Answers of a shadow under way; with more, some are left out."""
    shadows_per_minute: Annotated[int, Field(ge=1)] = 600
    """What a shadow may cost."""
    niceness: Annotated[int, Field(ge=0, le=19)] = 19
    """Of the recorder: 19 takes what all others leave of the processors; 0 competes with them."""


@dataclass(frozen=True, kw_only=True)
class BundleRecipe:
    """What decides how an answer comes about; what is released, and named by its hash."""

    upstream: UpstreamConfig
    enabled: bool = True
    """False passes everything through unreviewed; it is still audited."""
    observe_only: bool = False
    """Review and write down, but send every draft as it is: to see what would be mended."""
    stage: Literal[1, 2] = 1
    """1: rules review. 2: the feedback model does, with the rules as a second opinion."""
    feedback: FeedbackConfig | None = None
    threshold: Share = 0.7
    """How safe a reply must be; higher mends more."""
    max_rounds: Annotated[int, Field(ge=1)] = 1
    """Revisions at most."""
    review_timeout_ms: Annotated[int, Field(ge=1)] = 10_000
    """Longest wait for one review by the model; what then happens, `on_failure` says."""
    on_failure: OnFailure = "refuse"
    """When no model could review: decline, let the rules decide, or send the draft unreviewed.
    What the rules hold to be critical is declined in the first two."""
    rules_flag_overrefusals: bool = True
    """Have a refusal mended when rules alone find nothing in the request. They often find nothing
    in a harmful one: say False where a model behind the gateway refuses well by itself."""
    rules: tuple[str, ...] = DEFAULT_PACKS
    """Names of packs of ours, or TOML files."""

    def __post_init__(self) -> None:
        if self.stage == 2 and self.feedback is None:
            raise ValueError(
                "stage 2 needs a feedback model: say --set feedback.model=NAME and, where it is "
                "behind a server, --set feedback.server=http://host:8000/v1"
            )


@dataclass(frozen=True, kw_only=True)
class GatewayRecipe(BundleRecipe):
    """Everything about a gateway but its address: what it serves, and how it is kept."""

    stage2_percentage: Annotated[float, Field(ge=0, le=100)] = 100.0
    """Share of the conversations that stage 2 sees; the others have stage 1."""
    stream: StreamMode | None = None
    """How streams leave; None is window in stage 1 and buffer in stage 2."""
    limits: Limits = field(default_factory=Limits)
    keys: Path | None = None
    """File of API keys; None lets everybody in, on loopback."""
    audit: AuditConfig | None = None
    """None keeps no log."""
    memory: MemoryConfig | None = None
    """None remembers nothing, and releases nothing."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    traces: bool = False
    """Send spans by OpenTelemetry, to where the variables OTEL_EXPORTER_OTLP_... say."""

    @property
    def stream_mode(self) -> StreamMode:
        if self.observe_only or not self.enabled:
            return "audit"
        return self.stream or ("window" if self.stage == 1 else "buffer")

    @property
    def bundle(self) -> BundleRecipe:
        """The part that is released."""
        return BundleRecipe(**{one.name: getattr(self, one.name) for one in fields(BundleRecipe)})


def load_bundle(path: Path, below: BundleRecipe | None, overrides: Sequence[str]) -> BundleRecipe:
    """Read the recipe of a bundle, on top of that of another, such as the one that serves.

    Raises:
        RecipeError: something is no TOML, unknown, missing, of the wrong type or impossible.
    """
    table = merged({} if below is None else bundle_table(below), _read(path))
    return validated(BundleRecipe, with_overrides(table, overrides), str(path))


def bundle_table(recipe: BundleRecipe) -> Table:
    """Return a bundle's recipe with every default spelt out, to be kept as JSON."""
    table: Table = TypeAdapter(BundleRecipe).dump_python(recipe, mode="json")
    return table


def load_gateway(
    path: Path | None, defaults: Table, overrides: Sequence[str], environ: Mapping[str, str]
) -> GatewayRecipe:
    """Read a gateway's recipe; what is said later wins.

    Args:
        path: a TOML file; None when everything is said otherwise.
        defaults: what a command says by itself.
        overrides: `key=value`.
        environ: variables, which count where the file is silent.

    Raises:
        RecipeError: something is no TOML, unknown, missing, of the wrong type or impossible.
    """
    read = {} if path is None else _read(path)
    table = merged(merged(settings_from_environment(environ), read), defaults)
    return validated(
        GatewayRecipe, with_overrides(table, overrides), str(path or "the gateway's recipe")
    )


def merged(below: Table, above: Table) -> Table:
    """Lay one table over another, inner tables too."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            value = merged(under, value)
        both[key] = value
    return both


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None
