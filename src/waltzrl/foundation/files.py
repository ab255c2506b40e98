"""Atomic writes of files and folders, and disk errors that tell the user what to do."""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from waltzrl.errors import InputError

Json: TypeAlias = "str | float | bool | Sequence[Json] | Mapping[str, Json] | None"


def cache_folder() -> Path:
    """Return the folder for what can be made again: WALTZRL_CACHE, or `waltzrl` in the user's.

    Raises:
        InputError: the user has no home, as some of a container have none.
    """
    if own := os.environ.get("WALTZRL_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waltzrl"
    except RuntimeError:
        raise InputError("this user has no home folder; name one by WALTZRL_CACHE") from None


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an flock on the file `path`; wait for whoever holds it.

    The operating system releases it when the process ends; the file remains and has no meaning.

    Raises:
        InputError: the folder cannot be written to.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace the file atomically: a reader, or a crash, sees the old content or the new.

    Args:
        path: the file, or a link to it; an existing one keeps its mode and its owner. A device or a
            pipe is written to.
        data: the new content.
        private: make a new file readable by its owner only.

    Raises:
        InputError: the folder cannot be written to, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.part")
    with disk_errors(path):
        if is_device(path):
            path.write_bytes(data)
            return
        try:
            # The mode is set before there is content, which nobody else may read in between.
            temporary.touch(mode=0o600 if private else 0o666)
            if target.exists():
                before = target.stat()
                # Only root gives a file to somebody else, and not to whom its container lacks.
                with suppress(OSError):
                    os.chown(temporary, before.st_uid, before.st_gid)
                temporary.chmod(before.st_mode)
            _write_to_disk(temporary.open("wb"), data)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_to_disk(target.parent)  # or the new name could be lost in a power failure


def is_device(path: Path) -> bool:
    """Return whether a path is a device or a pipe, such as /dev/null, which no file may replace."""
    try:
        mode = path.stat().st_mode
    except OSError:  # which writing tells, if it does not create the file
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def toml_value(value: object) -> str:
    """Return a text, a number, a boolean or a list of them as TOML."""
    if isinstance(value, float):
        return repr(value)  # JSON writes another infinity
    # TOML is JSON but for surrogate pairs and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_or_create(path: Path, fresh: bytes) -> bytes:
    """Return the content of a file; a missing one gets `fresh`, in one step, for its owner only.

    If another process is faster, its content stays.

    Raises:
        OSError: the file cannot be read or created.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            _write_to_disk(os.fdopen(descriptor, "wb"), fresh)
            _link_or_copy(Path(temporary), path)
        except FileExistsError:
            pass
        finally:
            Path(temporary).unlink()
        sync_to_disk(path.parent)
    return path.read_bytes()


def _link_or_copy(source: Path, path: Path) -> None:
    """Give a file another name, or a copy where the file system has no hard links.

    Raises:
        FileExistsError: another process has made the file meanwhile, which a rename would replace.
    """
    try:
        path.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write_to_disk(os.fdopen(descriptor, "wb"), source.read_bytes())


def _write_to_disk(file: BinaryIO, data: bytes) -> None:
    with file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Json) -> None:
    """Replace the file by the value as indented JSON with sorted keys, as `write_bytes` does."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which replaces `path` if the block succeeds.

    A link to a folder stays, and the folder is replaced.

    Raises:
        InputError: the folder cannot be written to, or the disk is full; the hidden folder is
            removed and `path` is unchanged.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.part")
    with disk_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            # A folder cannot be renamed onto one that has files, so for a moment there is none.
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, without a last line that a crash cut short.

    Each line keeps its line break, so that the sum of the lengths is the offset to append at.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise an operating system's error while writing to `path` as an InputError of one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write {path}: {reason}; free space there or choose another folder"
        ) from error
