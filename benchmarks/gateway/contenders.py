"""Who takes part: how each gateway is started, and where it answers."""

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from environments import BYTECODE, LITELLM, NEMO, make_peer, make_portkey
from processes import Server, start_server

HERE = Path(__file__).resolve().parent
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A gateway that the load goes through."""

    name: str
    command: tuple[str | Path, ...]
    port: int
    ready: str
    """Path that answers 200 once it serves."""
    env: Mapping[str, str] = field(default_factory=lambda: BYTECODE)
    headers: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"stream": {}})
    """Ways of streaming by name: the headers that ask for each."""

    @property
    def base(self) -> str:
        """The address, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, stack: ExitStack, core: int | str, log: Path) -> Server:
        """Start it on a core, until the stack ends it, and wait until it serves."""
        ready = self.base + self.ready
        return start_server(stack, self.command, ready, core=core, env=self.env, log=log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where contenders find things."""

    upstream: str
    """Address of the fixed upstream, without /v1."""
    folder: Path
    """For their files and logs."""
    python: Path
    """The interpreter of the core installation."""


def upstream(python: Path, port: int, delay_ms: float = 0.0) -> Contender:
    """The model that always says the same, behind everybody."""
    options = ("--port", str(port), "--delay-ms", str(delay_ms))
    return Contender(
        name="direct",
        command=(python, HERE / "upstream.py", *options),
        port=port,
        ready="/v1/models",
    )


def pass_through(place: Place, port: int) -> Contender:
    """Raw ASGI that reads nothing: the floor under every gateway in Python."""
    script = HERE / "passthrough.py"
    where = ("--upstream", place.upstream, "--port", str(port))
    return Contender(
        name="pass-through",
        command=(place.python, script, *where),
        port=port,
        ready="/v1/models",
    )


def waltzrl(place: Place, port: int) -> Contender:
    """Ours, everything on: keys, rate limit, rules both ways, audit log and metrics."""
    key, folder = "wz-bench", place.folder / "waltzrl"
    folder.mkdir()
    (folder / "keys.toml").write_text(
        f"""[[keys]]
name = "bench"
sha256 = "{sha256(key.encode()).hexdigest()}"
created = 2026-11-01T00:00:00+00:00
requests_per_minute = 60_000_000
burst = 1_000_000
"""
    )
    (folder / "gateway.toml").write_text(
        f"""stage = 1
keys = "{folder}/keys.toml"
[upstream]
url = "{place.upstream}/v1"
[audit]
folder = "{folder}/audit"
"""
    )
    options = ("--host", "127.0.0.1", "--port", str(port))
    return Contender(
        name="waltzrl",
        command=(place.python.with_name("waltzrl"), "serve", folder / "gateway.toml", *options),
        port=port,
        ready="/readyz",
        headers={"authorization": f"Bearer {key}"},
        streams={mode: {"x-waltzrl-mode": mode} for mode in ("window", "buffer")},
    )


def litellm(place: Place, port: int) -> Contender:
    """LiteLLM's proxy, one worker: no database, no callbacks, no key, quiet, production mode."""
    python = make_peer(LITELLM)
    recipe = place.folder / "litellm.yaml"
    recipe.write_text((HERE / "litellm.yaml").read_text().replace("UPSTREAM", place.upstream))
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DONT_SHOW_FEEDBACK_BOX": "True",
    }
    options = ("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    return Contender(
        name="LiteLLM",
        command=(python.with_name("litellm"), "--config", recipe, *options),
        port=port,
        ready="/health/readiness",
        env=BYTECODE | quiet,
    )


def portkey(place: Place, port: int) -> Contender:
    """Portkey's gateway: it routes and reviews nothing."""
    node, script = make_portkey()
    return Contender(
        name="Portkey",
        command=(node, script, f"--port={port}", "--headless"),
        port=port,
        ready="/",
        env={**BYTECODE, "NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"},
        headers={
            "authorization": "Bearer none",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"{place.upstream}/v1",
        },
        streams={},  # with Node.js 20 and 22 each ends with 500: "TypeError: immutable"
    )


def nemo(place: Place, port: int) -> Contender:
    """NeMo Guardrails' server, its faster engine: our rules as regular expressions both ways."""
    python = make_peer(NEMO)
    rails = place.folder / "nemo" / "bench"
    rails.mkdir(parents=True)
    ours = subprocess.run(
        [place.python, HERE / "rule_patterns.py"], capture_output=True, text=True, check=True
    )
    patterns = json.loads(ours.stdout)
    model = {"type": "main", "engine": "openai", "model": "bench"}
    sides = ("input", "output")
    checks = {side: {"flows": [f"regex check {side}"]} for side in sides}
    config = {
        "models": [model | {"parameters": {"base_url": f"{place.upstream}/v1"}}],
        "rails": checks | {"config": {"regex_detection": patterns}},
    }
    config["rails"]["output"]["streaming"] = {"enabled": True}
    (rails / "config.yml").write_text(json.dumps(config))
    options = ("--port", str(port), "--config", rails.parent, "--default-config-id", rails.name)
    quiet = {"OPENAI_API_KEY": "none", "DO_NOT_TRACK": "1", "NEMO_GUARDRAILS_IORAILS_ENGINE": "1"}
    return Contender(
        name="NeMo Guardrails",
        command=(python.with_name("nemoguardrails"), "server", *options, "--disable-chat-ui"),
        port=port,
        ready="/v1/rails/configs",
        env=BYTECODE | quiet,
    )
