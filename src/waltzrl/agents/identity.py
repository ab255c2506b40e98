"""Identifies an agent by its name and a hash of its weights, and finds its calibration."""

import hashlib
from pathlib import Path

import msgspec

from waltzrl.agents import wording_name
from waltzrl.agents.calibration import CALIBRATION, ReviewerCalibration, load_calibration
from waltzrl.agents.opening import REVIEWER, GuardKind, reviewer_folder
from waltzrl.policies.gguf import find_gguf


def identify_agent(name: str, server: str | None) -> str:
    """Return the name of an agent, with a hash of local weights: `talk@1f3a9c02d4e5`.

    Raises:
        InputError: see `find_gguf`.
    """
    if server is not None:
        return f"{name} at {server.rpartition('@')[2].rstrip('/')}"
    if (gguf := find_gguf(name)) is not None:
        return f"{gguf.title}@{gguf.digest[:12]}"
    _kind, _, place = name.partition(":")  # such as saved:FILE
    folder = reviewer_folder(name)
    # What exists is a path, though it holds a colon.
    path = folder or Path(place if place and not Path(name).exists() else name)
    if not path.exists():  # a model on the Hugging Face hub
        return name
    digest = hashlib.sha256()
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        if part.is_file() and part.name != CALIBRATION:  # which is measured on the rest
            with part.open("rb") as file:
                digest.update(part.name.encode() + hashlib.file_digest(file, "sha256").digest())
    # Resolved, because the path `.` has no name.
    return f"{path.resolve().name if folder is None else place}@{digest.hexdigest()[:12]}"


def reviewer_name(
    model: str, server: str | None, wording: str, guard: GuardKind | None = None
) -> str:
    """Return what a calibration names its reviewer; only a model that writes has a wording."""
    agent = identify_agent(model, server)
    if model.startswith(REVIEWER):
        return agent
    return f"{agent}, " + (f"guard {guard}" if guard else f"wording {wording_name(wording)}")


def calibration_of(
    model: str,
    server: str | None,
    wording: str,
    file: str | None,
    guard: GuardKind | None = None,
) -> ReviewerCalibration | None:
    """Return the calibration of a reviewer; None if nobody measured it.

    Args:
        model: its name on the server, or its folder of weights.
        server: its URL; None in this process.
        wording: of its prompts.
        file: of the calibration; None for the one in the folder of weights, if there is one.
        guard: the kind of guard model that it is.

    Raises:
        InputError: the file is missing or damaged, or it is of another reviewer.
    """
    beside = (reviewer_folder(model) or Path(model)) / CALIBRATION
    if file is None and (server is not None or not beside.exists()):
        return None
    return load_calibration(Path(file or beside), reviewer_name(model, server, wording, guard))


def name_challenges(calibration: ReviewerCalibration | None) -> str:
    """Say which refusals a reviewer challenges, with a hash of its calibration, for logs."""
    if calibration is None:
        return "challenges from None"
    digest = hashlib.sha256(msgspec.json.encode(calibration)).hexdigest()[:12]
    return f"challenges from {calibration.challenge_from}@{digest}"
