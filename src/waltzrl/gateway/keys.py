"""The key file: hashes of the API keys, and what each key may do.

    [[keys]]
    name = "search-team"
    sha256 = "4e0f..."                  # `waltzrl keys add` shows the key itself once
    created = 2026-11-05T10:00:00+00:00
    requests_per_minute = 600

A key is 256 random bits, which cannot be recovered from their SHA-256. The slow hashes that
protect passwords would only cost time here.
"""

import secrets
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import structs

from waltzrl.errors import InputError
from waltzrl.foundation.files import hold_lock, toml_value, write_bytes
from waltzrl.gateway.stream_modes import StreamMode

HEAD = "# API keys of the gateway. `waltzrl keys` rewrites this file and keeps no comments.\n"

DeskRole = Literal["viewer", "annotator", "reviewer", "operator"]
"""The rights of a key at the desk; each role includes those before it. An annotator labels; labels
of replies steer releases from a reviewer on.
"""
MediaPolicy = Literal["pass", "refuse", "review"]
Author = Literal["tenant", "operator"]
Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.@-]{1,64}$")]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Money = Annotated[float, msgspec.Meta(gt=0)]
# TOML also has times without a zone, which cannot be compared with the present.
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client, and what it may do."""

    name: Name
    requests_per_minute: Count | None = None
    """None: no limit."""
    burst: Count = 10
    """Requests that may arrive at once; applies only with `requests_per_minute`."""
    tokens_per_day: Count | None = None
    """Tokens that all its requests may use between two midnights (UTC), those of the reviews and
    revisions included; None: no limit."""
    usd_per_day: Money | None = None
    """US dollars that they may cost; None: no limit."""
    may_see_drafts: bool = False
    """May request the whole collaboration, withheld drafts included."""
    stream_modes: tuple[StreamMode, ...] = (StreamMode.BUFFER,)
    """Stream modes it may request besides the operator's; the default is the strictest one."""
    may_probe: bool = False
    """May mark its requests as probes, which the memory and all rates leave out."""
    may_learn: bool | None = None
    """True if the agents may learn from its requests; None: the operator decides."""
    role: DeskRole | None = None
    """Role at the desk; None has no access."""
    policies: tuple[str, ...] = ()
    """Names of policies: the first one serves it; the header `X-Waltzrl-Policy` may ask for each of
    them. None: what serves is chosen by the model and the API."""
    allow_fields: tuple[str, ...] = ()
    """Keys of requests that it may send besides those that every client may send."""
    media: MediaPolicy = "pass"
    """What happens to its images, audio, video and files, which reviewers do not see: they pass and
    the audit log says so, are refused, or are reviewed (images, by a model with vision)."""
    system_turns: Author = "tenant"
    """Who writes the system turns and tools of its requests: a tenant's are searched by the rules,
    as they may ask for harm; an operator's may name it freely."""

    @property
    def has_budget(self) -> bool:
        """Whether it may only use so much a day."""
        return self.tokens_per_day is not None or self.usd_per_day is not None


ANONYMOUS = Caller(name="anonymous")


class Key(Caller, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the key file. A name may have several keys, for instance during a rotation."""

    sha256: Digest
    """Hash of the key as the client sends it."""
    created: Instant
    expires: Instant | None = None
    disabled: bool = False

    @property
    def id(self) -> str:
        """A short id, which tells the keys of one name apart."""
        return self.sha256[:8]

    @property
    def state(self) -> Literal["valid", "disabled", "expired"]:
        if self.disabled:
            return "disabled"
        if self.expires is not None and self.expires <= datetime.now(UTC):
            return "expired"
        return "valid"


def add_key(path: Path, policy: Mapping[str, object]) -> str:
    """Make a key, add its hash to the file, and return the key, which is stored nowhere.

    Args:
        path: the key file; it is created if missing.
        policy: the name and other fields of `Key`.

    Raises:
        InputError: the file cannot be read or written, or a field is invalid.
    """
    secret = f"wz-{secrets.token_urlsafe(32)}"
    generated = {
        "sha256": sha256(secret.encode()).hexdigest(),
        "created": datetime.now(UTC).replace(microsecond=0),
    }
    key = _convert_key({**policy, **generated}, "the new key")
    with hold_lock(_lock_file(path)):
        _write_keys(path, [*(read_keys(path) if path.exists() else []), key])
    return secret


def revoke_keys(path: Path, name_or_id: str) -> list[Key]:
    """Disable the keys with a name, or the key with an id, and return them.

    Raises:
        InputError: no key matches, or the file cannot be read or written.
    """
    read_keys(path)  # a file that is missing is not locked
    with hold_lock(_lock_file(path)):
        keys = read_keys(path)
        revoked = [key for key in keys if name_or_id in (key.name, key.id)]
        if not revoked:
            known = ", ".join(f"{key.name} ({key.id})" for key in keys) or "none"
            raise InputError(f"{path} has no key {name_or_id!r}; it has {known}")
        _write_keys(path, [structs.replace(k, disabled=True) if k in revoked else k for k in keys])
    return revoked


def read_keys(path: Path) -> list[Key]:
    """Read and validate a key file.

    Raises:
        InputError: it cannot be read, a field is invalid, or two keys are the same.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as a key file: {error}") from error
    entries = tables.pop("keys", [])
    if tables or not isinstance(entries, list):
        raise InputError(f"{path}: need [[keys]] tables and nothing else, got {sorted(tables)}")
    keys = [_convert_key(entry, f"{path}: key {number}") for number, entry in enumerate(entries, 1)]
    if len({key.sha256 for key in keys}) < len(keys):
        raise InputError(f"{path}: two keys have the same sha256; delete one")
    return keys


def _convert_key(entry: object, place: str) -> Key:
    try:
        return msgspec.convert(entry, Key)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}") from None


def _lock_file(path: Path) -> Path:
    """Return the file that is locked while a key file is read, changed and written.

    Raises:
        InputError: there is no such folder.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    return target.with_name(f".{target.name}.lock")


def _write_keys(path: Path, keys: Iterable[Key]) -> None:
    write_bytes(path, "\n".join([HEAD, *map(_render_key, keys)]).encode(), private=True)


def _render_key(key: Key) -> str:
    """Write a key as TOML, without the fields that have their default value."""
    defaults = {key_field.name: key_field.default for key_field in structs.fields(Key)}
    lines = [
        f"{name} = {value.isoformat() if isinstance(value, datetime) else toml_value(value)}\n"
        for name, value in structs.asdict(key).items()
        if value != defaults[name]
    ]
    return "".join(["[[keys]]\n", *lines])
