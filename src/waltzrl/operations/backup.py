"""Backups of what a gateway keeps: its memory with the releases, its audit log, and their keys.

    gateway's recipe -> folder: manifest.json, tables/*.jsonl, audit/*, keys/* -> gateway's recipe

A backup or a restore that fails leaves nothing behind. Without a memory no database is needed: what
copies its tables is imported where there is one.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from waltzrl import __version__
from waltzrl.errors import InputError
from waltzrl.foundation.files import (
    disk_errors,
    file_digest,
    sync_to_disk,
    whole_folder,
    whole_lines,
    write_bytes,
)
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.store.audit.note import NoteError, PublicKey
from waltzrl.store.audit.opening import log_key
from waltzrl.store.audit.verify import CHECKPOINTS, LogFault, VerifiedLog, verify
from waltzrl.store.memory.schemas import BACKUP_MANIFEST

MANIFEST, TABLES, AUDIT, KEYS = BACKUP_MANIFEST, "tables", "audit", "keys"
SUBJECT_KEY = "memory.key"
LOG_KEYS = ("", ".digest", ".pub")
"""The ends of the names of a log key's three files."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds."""

    waltzrl: str
    """Version that wrote it."""
    created: str
    """UTC, ISO 8601."""
    database_version: int | None
    """The version of the database's tables; None without a memory."""
    rows: dict[str, int]
    """Table -> number of rows."""
    records: int | None
    """The number of records of the audit log; None without one."""
    files: dict[str, str]
    """File -> SHA-256 in hex."""


def create_backup(recipe: GatewayRecipe, folder: Path) -> Manifest:
    """Copy what the recipe of a gateway keeps into a new folder; the gateway may go on.

    Raises:
        InputError: the recipe keeps nothing, the folder exists, or cannot be written; the log or a
            key is missing, or the log does not verify.
        StorageError: the database is unavailable.
    """
    if recipe.memory is None and recipe.audit is None:
        raise InputError("the recipe has neither a memory nor an audit log; name what it keeps")
    if folder.exists():
        raise InputError(f"{folder} exists; a backup needs a new folder")
    # Announced first: an erasure must know of the copies before there are any.
    with _announce_backup(recipe, folder), whole_folder(folder) as part, disk_errors(folder):
        # Before anything is in it: the copies hold what users said, and keys.
        part.chmod(0o700)
        for name in (TABLES, AUDIT, KEYS):
            (part / name).mkdir()
        version, rows = _dump_memory(recipe, part / TABLES)
        log = _copy_log(recipe, part / AUDIT)
        for name, path in _list_key_files(recipe).items():
            write_bytes(part / KEYS / name, _read_key(path), private=True)
        files = _list_files(part)
        manifest = Manifest(
            waltzrl=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            database_version=version,
            rows=rows,
            records=None if log is None else log.records,
            files={name: file_digest(part / name) for name in files},
        )
        for name in files:
            # The manifest comes last, so that its presence vouches for every file.
            sync_to_disk(part / name)
        write_bytes(part / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def read_backup(folder: Path) -> Manifest:
    """Read a backup's manifest, and check every file of it.

    Raises:
        InputError: it is no backup, or a file is missing, altered or too many.
    """
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{folder} is not a backup: {error}") from None
    present = {name for name in _list_files(folder) if name != MANIFEST}
    # Too many count as well: a restore would copy them.
    if different := present ^ manifest.files.keys():
        raise InputError(f"{folder}: {min(different)} is missing or too many; use another backup")
    for name, digest in manifest.files.items():
        if file_digest(folder / name) != digest:
            raise InputError(f"{folder}/{name} was altered; use another backup")
    return manifest


def restore_backup(recipe: GatewayRecipe, folder: Path) -> Manifest:
    """Restore a backup to where the recipe of a gateway keeps things, which must be empty.

    Raises:
        InputError: the backup is damaged; the recipe lacks a place for a part of it, or the
            place is not empty.
        StorageError: the database is unavailable, or does not hold what was restored.
    """
    manifest = read_backup(folder)
    if manifest.database_version is not None:
        _require_setting(recipe.memory is not None, "a memory: set memory.url")
    if manifest.records is not None:
        _require_setting(recipe.audit is not None, "an audit log: set audit.folder")
    with _remove_on_failure() as created:
        _restore_keys(recipe, folder / KEYS, created)
        if recipe.audit is not None and manifest.records is not None:
            _restore_log(folder / AUDIT, recipe.audit.folder, created)
            _verify_log(recipe.audit.folder, log_key(recipe.audit))
        # Last, because what the database has committed cannot be taken back on a failure.
        if recipe.memory is not None and manifest.database_version is not None:
            from waltzrl.operations.backup_tables import fill_tables

            version = manifest.database_version
            fill_tables(recipe.memory.url, folder / TABLES, manifest.rows, version)
    return manifest


@contextmanager
def _announce_backup(recipe: GatewayRecipe, folder: Path) -> Iterator[None]:
    """Let `waltzrl erase` know of the backup, unless the block fails."""
    if recipe.memory is None:
        yield
        return
    from waltzrl.operations.backup_tables import announce_backup

    with announce_backup(recipe.memory.url, folder / MANIFEST):
        yield


def _dump_memory(recipe: GatewayRecipe, folder: Path) -> tuple[int | None, dict[str, int]]:
    """Copy the memory, if there is one; return the database's version and its rows by table."""
    if recipe.memory is None:
        return None, {}
    from waltzrl.operations.backup_tables import dump_tables

    return dump_tables(recipe.memory.url, folder)


def _copy_log(recipe: GatewayRecipe, target: Path) -> VerifiedLog | None:
    """Copy an audit log that may grow meanwhile, and verify the copy.

    Checkpoints are copied first, so that the copy holds every record that they cover.
    """
    if recipe.audit is None:
        return None
    source = recipe.audit.folder
    if not (source / CHECKPOINTS).is_file():
        raise InputError(f"{source} holds no audit log; give the folder that the gateway logs to")
    shutil.copyfile(source / CHECKPOINTS, target / CHECKPOINTS)
    # Contents that expire meanwhile leave a file of the last kind before theirs is deleted.
    for kind in ("decisions-*.jsonl", "contents-*.jsonl", "erased-*.jsonl"):
        for path in sorted(source.glob(kind)):
            copy = target / path.name
            try:
                with copy.open("wb") as file:
                    file.writelines(whole_lines(path))
            except FileNotFoundError:
                copy.unlink()
    return _verify_log(target, log_key(recipe.audit))


def _verify_log(folder: Path, key: Path) -> VerifiedLog:
    try:
        public = PublicKey.parse(_read_key(key.with_name(f"{key.name}.pub")).decode())
    except NoteError as error:
        raise InputError(f"{key}.pub: {error}") from None
    result = verify(folder, public)
    if isinstance(result, LogFault):
        raise InputError(f"the copy of the audit log in {folder} does not verify: {result}")
    return result


def _restore_log(source: Path, target: Path, created: list[Path]) -> None:
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is not empty; restore into a new folder")
    with whole_folder(target) as part:
        for path in source.iterdir():
            shutil.copyfile(path, part / path.name)
            sync_to_disk(part / path.name)
    created.append(target)


def _restore_keys(recipe: GatewayRecipe, source: Path, created: list[Path]) -> None:
    for name, target in _list_key_files(recipe).items():
        if not (source / name).exists():
            continue
        key = (source / name).read_bytes()
        if target.exists() and target.read_bytes() != key:
            raise InputError(f"{target} is another key; move it away, or set another file for it")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, key, private=True)
            created.append(target)


def _list_key_files(recipe: GatewayRecipe) -> dict[str, Path]:
    """Return the files of keys, by their name in a backup."""
    files: dict[str, Path] = {}
    if recipe.memory is not None:
        files[SUBJECT_KEY] = recipe.memory.subject_key
    if recipe.audit is not None:
        key = log_key(recipe.audit)
        files |= {f"audit.key{end}": key.with_name(f"{key.name}{end}") for end in LOG_KEYS}
    return files


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; without its key a restored memory or log is of "
            "no use; name the gateway's own files"
        ) from None


@contextmanager
def _remove_on_failure() -> Iterator[list[Path]]:
    """Remove the files and folders that the block created, if it fails."""
    created: list[Path] = []
    try:
        yield created
    # Also an interruption must leave nothing behind that looks like a restored gateway.
    except BaseException:
        for path in created:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _require_setting(condition: bool, needed: str) -> None:
    if not condition:
        raise InputError(f"the backup needs {needed}; see `waltzrl backup restore --help`")


def _list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
