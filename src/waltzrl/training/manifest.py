"""Folders that vouch for every file in them by size and SHA-256.

The manifest is written last, so a folder without one was never finished.
"""

import hashlib
import json
from pathlib import Path

from waltzrl.errors import CheckpointError
from waltzrl.telemetry.files import Json, sync, write_json


def write_manifest(folder: Path, name: str) -> None:
    """Bring every file below the folder safely to the disk and list it in the manifest `name`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != name]
    for path in [*files, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync(path)
    listed: dict[str, Json] = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_digest(path),
        }
        for path in files
    }
    write_json(folder / name, {"files": listed})


def verify_manifest(folder: Path, name: str) -> None:
    """Check that every listed file is there and unaltered.

    Raises:
        CheckpointError: one is not, or the manifest itself is missing or damaged; names the file.
    """
    manifest = folder / name
    try:
        files = json.loads(manifest.read_bytes())["files"]
        expected = {path: (entry["bytes"], entry["sha256"]) for path, entry in files.items()}
    except FileNotFoundError as error:
        raise CheckpointError(f"{manifest} is missing; this folder was never finished") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest} is damaged; use another copy") from error
    for relative, (size, digest) in expected.items():
        _verify_file(folder / relative, size, digest)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the file's content in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify_file(path: Path, size: int, digest: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; use another copy")
    actual = path.stat().st_size
    if actual != size:
        raise CheckpointError(f"{path} has {actual} bytes, need {size}; use another copy")
    if file_digest(path) != digest:
        raise CheckpointError(f"{path} was altered after it was saved; use another copy")
