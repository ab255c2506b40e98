"""The recipe of a gateway: from a TOML file, environment variables and `--set`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from waltzrl.agents.failsafe import OnFailure, OnOverload
from waltzrl.agents.fence import LONGEST_TEXT
from waltzrl.agents.refusals import DEFAULT
from waltzrl.agents.rules import CATEGORIES, DEFAULT_PACKS
from waltzrl.agents.rules_reviewer import CategoryAction, OnOtherLanguage
from waltzrl.agents.settings import FeedbackConfig, ReviewConfig
from waltzrl.budget import ModelPrice
from waltzrl.budget.settings import LedgerConfig
from waltzrl.errors import RecipeError
from waltzrl.foundation.logs import LogsConfig
from waltzrl.foundation.sources import DEFAULT as NOT_GIVEN
from waltzrl.foundation.sources import (
    Setting,
    Source,
    explain_settings,
    list_leaves,
    log_conflicts,
    merge_tables,
)
from waltzrl.foundation.validation import (
    Table,
    adapter_of,
    read_table,
    validate_table,
    with_overrides,
)
from waltzrl.gateway.environment import environment_sources, warn_of_unknown
from waltzrl.gateway.exchange import Api
from waltzrl.gateway.keys import Author, MediaPolicy
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.pairs import PAIR_FOLDER, pair_settings
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.gateway.synonyms import SYNONYMS
from waltzrl.gateway.unused import log_unused
from waltzrl.policies.settings import (
    NamedUpstreamConfig,
    UpstreamConfig,
    UpstreamName,
    check_fallbacks,
)
from waltzrl.store.audit.settings import AuditConfig
from waltzrl.store.memory.settings import MemoryConfig
from waltzrl.store.privacy.settings import PrivacyConfig, UpstreamPrivacyConfig

OPEN = ((), "pass", "tenant")
"""The permissions that every client has by default."""
OnLoadFailure = Literal["stop", "stage1"]
Share = Annotated[float, Field(ge=0, le=1)]
PageOrigin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*A-Z]+)$")]
"""An origin as browsers send it: a scheme, a host in lower case, and a port if it is not the
scheme's own."""
Language = Annotated[str, Field(pattern="^[a-z]{2}$")]
Text = Annotated[str, Field(min_length=1)]
# A header names it.
PolicyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files in PEM for clients that connect by HTTPS."""

    cert: Path
    """Certificate chain, the gateway's own certificate first."""
    key: Path
    """Private key of the certificate, without a password."""
    client_ca: Path | None = None
    """Certificates that sign those of the clients; None asks clients for no certificate."""


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Plans for tasks: `POST /v1/route`."""

    agents: Path | None = None
    """File of agents and rules; None for those that `waltzrl route` uses by default."""


@dataclass(frozen=True, kw_only=True)
class BundleRecipe:
    """Everything that determines a reply; it is released as a whole and identified by its hash."""

    upstream: UpstreamConfig
    upstreams: Mapping[UpstreamName, NamedUpstreamConfig] = field(default_factory=dict)
    """Further servers, by name, for the models that they name and as fallbacks."""
    enabled: bool = True
    """False forwards everything without review; it is still audited."""
    observe_only: bool = False
    """Review and log, but send every draft unchanged, to see what would be revised."""
    stage: Literal[1, 2] = 1
    """1: rules review. 2: the feedback model reviews too; what rules flag stays
    flagged."""
    feedback: FeedbackConfig | None = None
    """The feedback model; stage 2 needs one."""
    threshold: Share = 0.7
    """The safety, 1 - risk, below which a reply is unsafe; a higher threshold revises more."""
    max_rounds: Annotated[int, Field(ge=1)] = 1
    """Most revisions of a reply."""
    review_timeout_ms: Annotated[int, Field(ge=1)] = 10_000
    """Longest wait for a review by the model; then `review.on_overload` applies."""
    on_failure: OnFailure = "refuse"
    """If the model fails or cannot be read: decline, let the rules decide, or send the draft
    unreviewed. The first two decline whatever the rules rate as critical."""
    review: ReviewConfig = field(default_factory=ReviewConfig)
    on_other_language: OnOtherLanguage = "serve"
    """If a request is in a language that the reviewer does not read, as rules and classifiers read
    only English: go by what it says of the reply, or decline. A model that reviews in words, and a
    guard model, are taken to read all."""
    rules_flag_overrefusals: bool = False
    """Let the rules flag a refusal as an over-refusal if they find nothing in the request. They
    miss many harmful requests, and then ask the model to answer them."""
    refusals: Mapping[str, Mapping[Language, Text]] = field(default_factory=dict)
    """Texts of refusals by category, or `default`, and language; others are ours."""
    rules: tuple[str, ...] = DEFAULT_PACKS
    """Names of built-in rule packs, or TOML files."""
    rules_off: tuple[str, ...] = ()
    """Rules of these packs that are left out, such as `violence/killing`."""
    actions: Mapping[str, CategoryAction] = field(default_factory=dict)
    """What is done about findings, by category: `off` ignores them, `observe` records them and
    sends the reply, `revise` is the default, `refuse` asks for no revision."""
    allow_calls: tuple[str, ...] = ()
    """Tool calls that the rules for them let pass: TOOL, PACK/RULE, or TOOL:PACK/RULE."""
    text: str = ""
    """What replies must keep to, in words, such as "Never name competitors.": it is given to the
    model that reviews in words and, for a revision, to the one that answers. Rules and classifiers
    cannot read it."""
    examples: bool = True
    """Show the models the examples that `memory.examples` allows."""
    stream: StreamMode | None = None
    """How streams are reviewed; None is window in stage 1 and buffer in stage 2."""
    privacy: UpstreamPrivacyConfig = field(default_factory=UpstreamPrivacyConfig)

    def __post_init__(self) -> None:
        check_fallbacks(self.upstream, self.upstreams)
        _check_categories("refusals", self.refusals, (DEFAULT, *CATEGORIES))
        _check_categories("actions", self.actions, CATEGORIES)
        if len(self.text) > LONGEST_TEXT:
            raise ValueError(
                f"text: got {len(self.text)} characters, need {LONGEST_TEXT} or fewer; a model "
                "would not be given the rest"
            )
        if self.stage == 2 and self.feedback is None:
            raise ValueError(
                "stage 2 needs a feedback model; use --pair FOLDER for an exported pair, or --set "
                "feedback.model=NAME and, if it is on a server, --set "
                "feedback.server=http://host:8000/v1"
            )

    @property
    def on_overload(self) -> OnOverload:
        """What happens to a reply for which the model has no time."""
        return "pass" if self.observe_only else self.review.choice(self.on_failure)

    @property
    def stream_mode(self) -> StreamMode:
        if self.observe_only or not self.enabled:
            return StreamMode.AUDIT
        return self.stream or (StreamMode.WINDOW if self.stage == 1 else StreamMode.BUFFER)

    @property
    def bundle(self) -> "BundleRecipe":
        """The part that is released."""
        parts = {field.name: getattr(self, field.name) for field in fields(BundleRecipe)}
        # Of a gateway's privacy a bundle has only what decides what models get.
        return BundleRecipe(**{**parts, "privacy": self.privacy.sent})


@dataclass(frozen=True, kw_only=True)
class PolicyRecipe(BundleRecipe):
    """A policy by its name: the requests that it is for, and the bundle that serves them.

    What a recipe does not set of the bundle is as in the gateway's own.
    """

    models: tuple[str, ...] = ()
    """Patterns of the models whose requests it serves, such as `llama-*`, unless the API key has a
    policy."""
    apis: tuple[Api, ...] = ()
    """APIs whose requests it serves, unless the API key or the model has a policy."""


@dataclass(frozen=True, kw_only=True)
class GatewayRecipe(BundleRecipe):
    """Everything about a gateway but its address: the bundle it serves, and its operation."""

    on_load_failure: OnLoadFailure = "stop"
    """If the feedback model of stage 2 cannot be loaded: stop, or log an error and serve stage 1.
    `WALTZRL_STAGE=2` without a feedback model sets stage1."""
    stage2_percentage: Annotated[float, Field(ge=0, le=100)] = 100.0
    """Percentage of the conversations that use stage 2; the others use stage 1."""
    policies: Mapping[PolicyName, PolicyRecipe] = field(default_factory=dict)
    """Further bundles by name, for some keys, models or APIs; the key file says which keys."""
    policies_file: Path | None = None
    """File of tables `[policies.NAME]`, or folder of files NAME.toml; `policies` may change what
    they say."""
    pass_through: bool = False
    """Send other paths below `/v1` to the upstream, whose answers are then not reviewed."""
    origins: tuple[PageOrigin, ...] = ()
    """Origins of web pages whose scripts may use the API from a browser, such as
    `https://chat.example.org`; with keys also `*`, for every page."""
    workers: Annotated[int, Field(ge=1, le=32)] = 1
    """Processes that serve, on one port; each uses one core."""
    limits: Limits = field(default_factory=Limits)
    """Sizes, times and numbers of requests, for all workers together."""
    tls: TlsConfig | None = None
    """Serve HTTPS; None serves HTTP."""
    keys: Path | None = None
    """File of API keys; None accepts every client, on loopback only."""
    allow_fields: tuple[str, ...] = ()
    """Without keys: fields of requests that steer the reply, or are unknown, and are passed on
    nevertheless. With keys, each key has its own."""
    media: MediaPolicy = "pass"
    """Without keys: pass images, audio, video and files unseen, refuse them, or review images."""
    system_turns: Author = "tenant"
    """Without keys: who writes system turns and tools; the rules search a tenant's."""
    audit: AuditConfig | None = None
    """The audit log; None for none."""
    memory: MemoryConfig | None = None
    """The memory, which releases need as well; None for none."""
    routing: RoutingConfig | None = None
    """Plan tasks for agents; None for no such route."""
    budget: LedgerConfig | None = None
    """The ledger of costs, which the daily budgets of keys need; None for none."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    """Of models on servers, by their names; others are those of genai-prices."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """The treatment of personal data in the log and the memory, and in what models get."""
    logs: LogsConfig = field(default_factory=LogsConfig)
    """The format and the level of the gateway's own log lines."""
    traces: bool = False
    """Export OpenTelemetry traces; the variables OTEL_EXPORTER_OTLP_... configure where."""
    push_metrics: bool = False
    """Send the metrics of `/metrics` to the same place too, by OTLP."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("models", "apis"):
            named = Counter(each for one in self.policies.values() for each in getattr(one, key))
            if twice := [each for each, times in named.items() if times > 1]:
                raise ValueError(f"policies: {key} {twice[0]!r} has two policies; it can have one")
        if self.keys is not None and (self.allow_fields, self.media, self.system_turns) != OPEN:
            raise ValueError(
                "allow_fields, media and system_turns apply to a gateway without keys; set them "
                f"for each key in {self.keys}"
            )
        if self.keys is None and "*" in self.origins:
            raise ValueError(
                "origins = ['*'] needs keys: without them any web page could use this gateway "
                "from the browser of whoever opens it"
            )
        sees = self.stage == 2 and self.feedback is not None and self.feedback.vision
        if self.media == "review" and not sees:
            raise ValueError(
                "media = review needs a reviewer that sees images: stage 2 and feedback.vision"
            )

    @property
    def unrecorded(self) -> "GatewayRecipe":
        """The same without keys, which keeps and exports nothing but costs."""
        return replace(
            self,
            keys=None,
            audit=None,
            memory=None,
            routing=None,
            traces=False,
            push_metrics=False,
            origins=(),
        )


BUNDLE_KEYS = tuple(field.name for field in fields(BundleRecipe))
SENT_KEYS = tuple(field.name for field in fields(UpstreamPrivacyConfig))


def load_bundle(path: Path, base: BundleRecipe | None, overrides: Sequence[str]) -> BundleRecipe:
    """Read the recipe of a bundle as changes to another, such as the one that serves.

    Args:
        path: a TOML file.
        base: the other recipe; None for the defaults.
        overrides: `key=value`.

    Raises:
        RecipeError: the TOML, a key or a value is invalid, or a key is missing.
    """
    changes = read_table(path)
    table = merge_tables({} if base is None else bundle_table(base), changes)
    recipe = validate_table(BundleRecipe, with_overrides(table, overrides), str(path), SYNONYMS)
    sources = [Source(name=str(path), table=changes)]
    sources += [Source(name="--set", table=with_overrides({}, [text])) for text in overrides]
    log_unused(recipe, bundle_table(recipe), sources)
    return recipe


def bundle_table(recipe: BundleRecipe) -> Table:
    """Return a bundle's recipe with all its defaults, to be stored as JSON."""
    table: Table = adapter_of(BundleRecipe).dump_python(recipe, mode="json")
    return table


def recipe_table(recipe: GatewayRecipe) -> Table:
    """Return a gateway's recipe with all its defaults, in JSON's types."""
    table: Table = adapter_of(GatewayRecipe).dump_python(recipe, mode="json")
    return table


def load_gateway(
    path: Path | None, options: Table, overrides: Sequence[str], environ: Mapping[str, str]
) -> GatewayRecipe:
    """Read a gateway's recipe; logs where a variable decides, and which settings have no effect.

    `WALTZRL_STAGE=2` without a feedback model means the pair in `models/waltzrl_stage2`, and
    stage 1 if it cannot be loaded, or for a reply that it cannot review.

    Args:
        path: a TOML file, or None. It has the lowest priority.
        options: settings of the command's own options, which override the environment.
        overrides: `key=value`, which override everything else.
        environ: environment variables, which override the file.

    Raises:
        RecipeError: the TOML, a variable, a key or a value is invalid, or a key is missing.
    """
    sources = _list_sources(path, options, overrides, environ)
    log_conflicts(sources)
    recipe = _validate_sources(path, sources)
    table = recipe_table(recipe)
    log_unused(recipe, table, sources)
    keys = [str(value) for key, value in list_leaves(table) if key.endswith("_env")]
    warn_of_unknown(environ, keys)
    return recipe


def explain_gateway(
    path: Path | None, options: Table, overrides: Sequence[str], environ: Mapping[str, str]
) -> list[Setting]:
    """List every setting of a gateway's recipe and its origin; passwords in URLs are hidden.

    Arguments and errors are those of `load_gateway`.
    """
    sources = _list_sources(path, options, overrides, environ)
    recipe = _validate_sources(path, sources)
    settings = explain_settings(recipe_table(recipe), sources)
    # Of a policy only what it changes.
    return [
        each
        for each in settings
        if each.origin != NOT_GIVEN or not each.key.startswith("policies.")
    ]


def _list_sources(
    path: Path | None, options: Table, overrides: Sequence[str], environ: Mapping[str, str]
) -> list[Source]:
    """Return where the settings come from, in ascending order of priority."""
    sources = [] if path is None else [Source(name=str(path), table=read_table(path))]
    sources += environment_sources(environ)
    sources.append(Source(name="command line", table=options))
    sources += [Source(name="--set", table=with_overrides({}, [text])) for text in overrides]
    table = _merge_sources(sources)
    if "policies_file" in table:
        file = Path(str(table["policies_file"]))
        # Below all others, so that they may change a policy of the file.
        sources.insert(0, Source(name=str(file), table={"policies": _read_policies(file)}))
    # The last source that sets it decides.
    stage = [source for source in sources if "stage" in source.table][-1:]
    if stage and stage[0].is_variable and table["stage"] == 2 and "feedback" not in table:
        # WALTZRL_STAGE=2 alone; an upstream that another source names is kept.
        default = pair_settings(PAIR_FOLDER, with_upstream="upstream" not in table)
        default |= {"on_load_failure": "stage1", "on_failure": "rules"}
        sources.insert(0, Source(name=stage[0].name, table=default, is_variable=True))
    return sources


def _validate_sources(path: Path | None, sources: Sequence[Source]) -> GatewayRecipe:
    table = _merge_sources(sources)
    if "upstream" not in table:
        raise RecipeError(
            "no model to serve; use --upstream http://localhost:8000/v1, --pair FOLDER or --demo, "
            "or set upstream.url in a recipe"
        )
    name = str(path or "the gateway's recipe")
    return validate_table(GatewayRecipe, _complete_policies(table, name), name, SYNONYMS)


def _complete_policies(table: Table, source: str) -> Table:
    """Return a recipe's table in which each policy has all settings of its bundle.

    Raises:
        RecipeError: the policies are no table.
    """
    if "policies" not in table:
        return table
    own = {key: table[key] for key in BUNDLE_KEYS if key in table}
    if isinstance(privacy := own.get("privacy"), dict):  # the rest of it is the gateway's alone
        own["privacy"] = {key: privacy[key] for key in SENT_KEYS if key in privacy}
    complete = {
        name: merge_tables(own, changes) if isinstance(changes, dict) else changes
        for name, changes in _as_table(table["policies"], source).items()
    }
    return {**table, "policies": complete}


def _read_policies(path: Path) -> Table:
    """Read the policies of a file, or of a folder with a file for each.

    Raises:
        InputError: one cannot be read.
        RecipeError: one is not TOML, the file has other tables, or the folder has no file.
    """
    if path.is_dir():
        named: Table = {file.stem: read_table(file) for file in sorted(path.glob("*.toml"))}
        if not named:  # such as a folder that was not mounted: nobody may lose a policy by that
            raise RecipeError(f"{path} has no policies; need files NAME.toml, or no policies_file")
        return named
    table = read_table(path)
    if table.keys() != {"policies"}:
        raise RecipeError(f"{path}: need tables [policies.NAME] and nothing else")
    return _as_table(table["policies"], str(path))


def _as_table(value: object, source: str) -> Table:
    if not isinstance(value, dict):
        raise RecipeError(f"{source}: policies: got {value!r}, need tables [policies.NAME]")
    return value


def _check_categories(key: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    if unknown := given.keys() - set(known):
        raise ValueError(f"{key}: unknown category {min(unknown)!r}; use one of {', '.join(known)}")


def _merge_sources(sources: Sequence[Source]) -> Table:
    return reduce(merge_tables, (source.table for source in sources), {})
