"""Identifies an agent in logs: its name, and a hash of its weights if they can be read."""

import hashlib
from pathlib import Path


def identity(name: str, server: str | None) -> str:
    """Return the name of an agent, with a hash of local weights: `talk@1f3a9c02d4e5`."""
    if server is not None:
        return f"{name} at {server.rpartition('@')[2].rstrip('/')}"
    _kind, _, place = name.partition(":")  # such as saved:FILE
    path = Path(place if place and not Path(name).exists() else name)
    if not path.exists():  # a model on the Hugging Face hub
        return name
    digest = hashlib.sha256()
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        if part.is_file():
            with part.open("rb") as file:
                digest.update(part.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return f"{path.resolve().name}@{digest.hexdigest()[:12]}"
