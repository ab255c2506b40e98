"""Checks of what a gateway needs: packages, a model that answers, an audit log, a memory.

None changes anything: what a gateway creates at its first start counts as fine while it is missing.
"""

import os
import platform
import re
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from pathlib import Path
from time import perf_counter

import msgspec

from waltzrl import __version__
from waltzrl.errors import PolicyError, RequestError, WaltzError
from waltzrl.gateway.bundles import Bundles
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.policies import RemotePolicy, Sampling
from waltzrl.policies.chat_completion import Json
from waltzrl.records import Prompt
from waltzrl.store.audit.note import NoteError, PublicKey
from waltzrl.store.audit.opening import log_key
from waltzrl.store.audit.verify import LogFault, verify
from waltzrl_verify.checks import Check

SHORT = Sampling(max_new_tokens=16)
PROBE = {"X-Waltzrl-Probe": "yes"}
"""The header of a request that a gateway's memory leaves out."""
NEEDS_KEY = "; set WALTZRL_GATEWAY_KEY to an API key of the gateway"
REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?")
"""A distribution's name and, in the metadata of a package, the extra that it belongs to."""


class _Models(msgspec.Struct):
    """What `GET /v1/models` answers."""

    data: list["_Model"]


class _Model(msgspec.Struct):
    id: str


def installation_check() -> Check:
    """Check that every package is installed that the core needs, and name the extras."""
    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("waltzrl") or ():
        if match := REQUIREMENT.match(requirement):
            name, extra = match.groups(default="")
            extras.setdefault(extra, []).append(name)
    missing = {extra: [n for n in names if not _is_installed(n)] for extra, names in extras.items()}
    # What belongs to no extra is needed by the core.
    absent = missing.pop("", [])
    complete = [extra for extra, names in missing.items() if not names]
    return Check(
        name="installation",
        passed=not absent,
        detail=f"missing: {', '.join(absent)}; pip install waltzrl again"
        if absent
        else f"waltzrl {__version__}, Python {platform.python_version()}; "
        f"extras: {', '.join(complete) or 'none'}",
    )


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


async def upstream_check(
    bundles: Bundles, recipe: GatewayRecipe, prompt: Prompt, model: str | None
) -> Check:
    """Ask the model that drafts for a short reply; weights are loaded."""
    try:
        upstream = (await bundles.open(recipe.bundle)).upstream
        name = model or (await upstream.models(None))[0].id
        body: dict[str, Json] = {
            "model": name,
            "messages": [{"role": turn.role, "content": turn.content} for turn in prompt.messages],
            "temperature": 0.0,
            "max_tokens": SHORT.max_new_tokens,
        }
        started = perf_counter()
        answer = await upstream.complete(body, None)
    except WaltzError as error:
        missing = isinstance(error, RequestError) and error.status == 404
        advice = "; the URL probably has to end in /v1, or there is no such model"
        return Check(name="upstream", passed=False, detail=f"{error}{advice if missing else ''}")
    except IndexError:
        return Check(name="upstream", passed=False, detail="lists no models; name one: --model")
    return _describe_reply("upstream", name, answer.reply.full_text, started)


def _describe_reply(check: str, model: str, text: str, started: float) -> Check:
    milliseconds = (perf_counter() - started) * 1e3
    detail = f"{model} replied with {len(text)} characters, {milliseconds:.0f} ms"
    return Check(name=check, passed=bool(text.strip()), detail=detail)


async def gateway_checks(
    url: str, api_key: str | None, prompt: Prompt, model: str | None
) -> AsyncIterator[Check]:
    """Check that a gateway is ready and answers.

    Args:
        url: of the gateway, ending in `/v1`.
        api_key: for the gateway; None if it needs none.
        prompt: that it must answer.
        model: None for the first that it lists.
    """
    # The health of a gateway is beside its API, and not below /v1.
    root = url.rstrip("/").removesuffix("/v1")
    async with RemotePolicy(root, "", retries=0) as probe:
        try:
            answer = await probe.get("/readyz")
            ready, detail = True, str(msgspec.json.decode(answer, type=_Readiness))
        except (PolicyError, msgspec.DecodeError) as error:
            ready, detail = False, f"{error}; give the URL of a waltzrl gateway that runs"
    yield Check(name="gateway", passed=ready, detail=detail)
    if ready:
        yield await _check_reply(url, api_key, prompt, model)


class _Readiness(msgspec.Struct):
    """What `GET /readyz` answers when the gateway is ready."""

    status: str
    checks: dict[str, dict[str, str]]

    def __str__(self) -> str:
        states = ", ".join(f"{name} {part['status']}" for name, part in self.checks.items())
        return f"{self.status}: {states}"


async def _check_reply(url: str, api_key: str | None, prompt: Prompt, model: str | None) -> Check:
    async with RemotePolicy(url, model or "", api_key=api_key, headers=PROBE) as policy:
        try:
            if not model:
                models = msgspec.json.decode(await policy.get("/models"), type=_Models)
                policy.model = models.data[0].id
            started = perf_counter()
            reply = await policy.reply(prompt.messages, SHORT)
        except IndexError:
            return Check(name="reply", passed=False, detail="lists no models; name one: --model")
        except (PolicyError, msgspec.DecodeError) as error:
            refused = isinstance(error, PolicyError) and error.reason == "HTTP 401"
            advice = NEEDS_KEY if refused else ""
            return Check(name="reply", passed=False, detail=f"{error}{advice}")
    return _describe_reply("reply", policy.model, reply.text, started)


def audit_check(recipe: GatewayRecipe) -> Iterator[Check]:
    """Verify the audit log, if the recipe has one: every record and every signature."""
    if recipe.audit is None:
        return
    folder, key = recipe.audit.folder, log_key(recipe.audit)
    if not folder.exists():
        yield _check_creatable("audit", folder)
        return
    try:
        public = PublicKey.parse(key.with_name(f"{key.name}.pub").read_text("utf-8"))
        result = verify(folder, public)
    except (NoteError, OSError) as error:
        yield Check(name="audit", passed=False, detail=str(error))
        return
    writable = os.access(folder, os.W_OK)
    yield Check(
        name="audit",
        passed=not isinstance(result, LogFault) and writable,
        detail=str(result) if writable else f"{folder} is not writable",
    )


def memory_check(recipe: GatewayRecipe) -> Iterator[Check]:
    """Count what is in the memory, if the recipe has one."""
    if recipe.memory is None:
        return
    try:
        yield _memory_check(recipe.memory.url)
    except WaltzError as error:
        yield Check(name="memory", passed=False, detail=str(error))


def _memory_check(url: str) -> Check:
    from waltzrl.store.database import open_database, reading  # raises without SQLAlchemy

    engine = open_database(url)
    file = Path(engine.url.database or "")
    if engine.dialect.name == "sqlite" and not file.exists():
        return _check_creatable("memory", file)
    from sqlalchemy import func, inspect, select

    from waltzrl.store.memory.tables import ITEMS

    try:
        with reading(engine) as connection:
            if not inspect(connection).has_table(ITEMS.name):
                return Check(name="memory", passed=True, detail="is empty")
            count = connection.execute(select(func.count()).select_from(ITEMS)).scalar_one()
    finally:
        engine.dispose()
    return Check(name="memory", passed=True, detail=f"{count} records, {engine.dialect.name}")


def _check_creatable(name: str, path: Path) -> Check:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    writable = os.access(folder, os.W_OK)
    return Check(
        name=name,
        passed=writable,
        detail=f"{path} is created at the first start"
        if writable
        else f"{path} cannot be created: {folder} is not writable",
    )
