"""Who may ask, and what for: API keys, of which only hashes are kept, in a file for people.

    [[keys]]
    name = "search-team"
    sha256 = "4e0f..."                  # `waltzrl keys add` shows the key itself once
    created = 2026-11-05T10:00:00+00:00
    requests_per_minute = 600

A key is 256 random bits. Nobody finds those from their SHA-256, so the slow hashes that protect
passwords chosen by people would only cost time here. A key is looked up by its digest, which no
client can steer, so the time of a look-up tells nothing about any key.
"""

import ipaddress
import json
import logging
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import structs

from waltzrl.errors import InputError
from waltzrl.telemetry.files import write_bytes

SECONDS_BETWEEN_LOOKS = 1.0
"""A changed key file is in force this long after the change, at most."""

HEAD = "# API keys of the gateway. `waltzrl keys` rewrites this file and keeps no comments.\n"

StreamMode = Literal["buffer", "window", "speculative", "audit"]
DeskRole = Literal["viewer", "reviewer", "operator"]
"""What a key may do at the desk: each may do what those before it may."""
Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.@-]{1,64}$")]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]

log = logging.getLogger(__name__)


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Someone who asks, and what the gateway does for them."""

    name: Name
    requests_per_minute: Count | None = None
    """None does not limit."""
    burst: Count = 10
    """Requests that may come at once; counts only with `requests_per_minute`."""
    may_see_drafts: bool = False
    """May ask for the whole collaboration, drafts that were withheld included."""
    stream_modes: tuple[StreamMode, ...] = ("buffer",)
    """May ask for these beside the operator's own; by default the one that is never less strict."""
    may_learn: bool | None = None
    """Whether the agents may learn from its requests; None leaves it to the operator."""
    role: DeskRole | None = None
    """At the desk; None does not let in."""


ANONYMOUS = Caller(name="anonymous")


class Key(Caller, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller as the key file holds it. Keys of one name may overlap while they are rotated."""

    sha256: Digest
    """Of the key as the client sends it."""
    created: Instant
    expires: Instant | None = None
    disabled: bool = False

    @property
    def id(self) -> str:
        """What people call this key where several have one name."""
        return self.sha256[:8]

    @property
    def state(self) -> Literal["valid", "disabled", "expired"]:
        if self.disabled:
            return "disabled"
        if self.expires is not None and self.expires <= datetime.now(UTC):
            return "expired"
        return "valid"


class KeyRing:
    """Finds the caller behind a key, and follows the key file as it changes."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the key file; None opens the gateway to everybody, as `ANONYMOUS`.

        Raises:
            InputError: the file cannot be read, or a key in it is wrong.
        """
        self.stale = False
        """The file has changed and cannot be read; the keys before the change are in force."""
        self._path = path
        self._clock = clock
        self._looked = clock()
        self._stamp = None if path is None else _stamp(path)
        self._keys = {} if path is None else _by_digest(read_keys(path))

    def __len__(self) -> int:
        """Count the keys that open."""
        return sum(key.state == "valid" for key in self._keys.values())

    @property
    def is_open(self) -> bool:
        return self._path is None

    def find(self, key: str) -> Caller | None:
        """Return who sent this key, or None when it opens nothing."""
        if self._path is None:
            return ANONYMOUS
        self._follow(self._path)
        found = self._keys.get(sha256(key.encode()).digest())
        return found if found is not None and found.state == "valid" else None

    def named(self, key_id: str) -> list[Key]:
        """Return the valid keys of an id: one, none, or by a rare chance several."""
        if self._path is not None:
            self._follow(self._path)
        found = (key for key in self._keys.values() if key.id == key_id)
        return [key for key in found if key.state == "valid"]

    def _follow(self, path: Path) -> None:
        now = self._clock()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        stamp = _stamp(path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _by_digest(read_keys(path))
        except InputError as error:
            self.stale = True
            log.error("%s; the keys read before stay in force", error)  # noqa: TRY400 - one line
        else:
            self.stale = False
            log.warning("%s changed: %d keys are valid now", path, len(self))


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the key in `Authorization: Bearer` or `x-api-key`, whichever comes first, or "".

    Args:
        headers: with names in lower case, as ASGI gives them.
    """
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip().decode("latin-1")
        elif name == b"x-api-key":
            return value.strip().decode("latin-1")
    return ""


def check_bind(host: str, ring: KeyRing, *, open_to_all: bool) -> None:
    """Refuse to answer the network without keys, unless that was asked for by name.

    Raises:
        InputError: `host` is not loopback, there are no keys and `open_to_all` is False.
    """
    if ring.is_open and not open_to_all and not _is_loopback(host):
        raise InputError(
            f"without API keys the gateway answers this machine only, not {host}: make a key with "
            "`waltzrl keys add NAME --file keys.toml` and give --keys keys.toml, or say --open"
        )


def add_key(path: Path, policy: Mapping[str, object]) -> str:
    """Make a key, keep its hash in the file, and return the key, which is kept nowhere.

    Args:
        path: the key file; it is made when it is not there.
        policy: the name and other fields of `Key`.

    Raises:
        InputError: the file cannot be read or written, or a field is wrong.
    """
    secret = f"wz-{secrets.token_urlsafe(32)}"
    made = {
        "sha256": sha256(secret.encode()).hexdigest(),
        "created": datetime.now(UTC).replace(microsecond=0),
    }
    key = _checked({**policy, **made}, "the new key")
    _write(path, [*(read_keys(path) if path.exists() else []), key])
    return secret


def revoke_keys(path: Path, which: str) -> list[Key]:
    """Disable the keys of a name, or the one of an id, and return them.

    Raises:
        InputError: there is none, or the file cannot be read or written.
    """
    keys = read_keys(path)
    revoked = [key for key in keys if which in (key.name, key.id)]
    if not revoked:
        known = ", ".join(f"{key.name} ({key.id})" for key in keys) or "none"
        raise InputError(f"{path} has no key {which!r}; it has {known}")
    _write(path, [structs.replace(k, disabled=True) if k in revoked else k for k in keys])
    return revoked


def read_keys(path: Path) -> list[Key]:
    """Read a key file, checked to the last field.

    Raises:
        InputError: it cannot be read, a field is wrong, or two keys are the same.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as a key file: {error}") from error
    entries = tables.pop("keys", [])
    if tables or not isinstance(entries, list):
        raise InputError(f"{path}: need [[keys]] tables and nothing else, got {sorted(tables)}")
    keys = [_checked(entry, f"{path}: key {number}") for number, entry in enumerate(entries, 1)]
    if len({key.sha256 for key in keys}) < len(keys):
        raise InputError(f"{path}: two keys have the same sha256; delete one")
    return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what differs after any change of the file; None when it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - on the request path
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino


def _by_digest(keys: Iterable[Key]) -> dict[bytes, Key]:
    return {bytes.fromhex(key.sha256): key for key in keys}


def _checked(entry: object, place: str) -> Key:
    try:
        return msgspec.convert(entry, Key)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}") from None


def _write(path: Path, keys: Iterable[Key]) -> None:
    write_bytes(path, "\n".join([HEAD, *map(_table, keys)]).encode(), private=True)


def _table(key: Key) -> str:
    """Spell a key as TOML: what everybody must see, and what differs from the default."""
    defaults = {one.name: one.default for one in structs.fields(Key)}
    lines = [
        f"{name} = {_value(value)}\n"
        for name, value in structs.asdict(key).items()
        if value != defaults[name]
    ]
    return "".join(["[[keys]]\n", *lines])


def _value(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value)
