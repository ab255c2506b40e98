"""The copy of a run at a URL, from which the run goes on where its folder is gone.

At the URL are the files of the run's folder, under the same names: first those of the run, then
each checkpoint's, and its manifest when all of these are there, so that a half copy has none.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from waltzrl.errors import RecipeError, WaltzError
from waltzrl.foundation.texts import describe_error, without_credentials
from waltzrl.training.checkpoints import (
    MANIFEST,
    STEP,
    checkpoint_path,
    describe_damage,
    find_outdated,
    step_of,
)
from waltzrl.training.rollouts import PUBLISHED
from waltzrl.training.run_recipe import is_begun, require_no_foreign
from waltzrl.training.validation import best_validation

logger = logging.getLogger(__name__)

LEFT_OUT = {PUBLISHED, "servers", "wandb"}
"""Folders of a run that mean nothing to another machine."""
FETCHING = ".fetching"
"""File in a run's folder until all of a copy is there."""

ReadFile = Callable[[str], bytes]
"""A function that returns the content of a file of a run by its name."""


class RunCopy:
    """The folder of a run, and its copy at a URL of any file system that fsspec knows."""

    def __init__(self, url: str, folder: Path) -> None:
        """Find the file system, and try to write to it.

        Raises:
            RecipeError: a package for it is missing, or it cannot be written to.
        """
        self._url, self._folder = without_credentials(url), folder
        self._stamps: dict[str, tuple[int, int]] = {}
        """Size and time of the run's files when they were copied."""
        self._whole: set[str] = set()
        """The checkpoints that are known to be whole there."""
        with self._required("written to"):
            self._store, root = fsspec.url_to_fs(url)
            self._root = str(root).rstrip("/")
            self._write(".writable", b"")
            self._store.rm_file(self._place(".writable"))

    def fetch(self, require_same: Callable[[ReadFile], None]) -> None:
        """Fill a folder without checkpoints with what its run needs to go on, if that is there.

        That is the newest whole checkpoint of each of its parts, and the best validated one.

        Args:
            require_same: raises an error if the files of the copy are of another run.

        Raises:
            RecipeError: they are, or the URL cannot be read.
        """
        with self._required("read"):
            names = self._list()
            found = [name.removesuffix(f"/{MANIFEST}") for name in names if _is_manifest(name)]
            if not found:
                return
            require_same(self._read)
            unfinished = self._folder / FETCHING
            # A run that has learnt is ahead of its copy, unless it was a fetch that was cut short.
            if is_begun(self._folder) and not unfinished.exists():
                return
            if not unfinished.exists():
                require_no_foreign(self._folder)
            unfinished.touch()
            # The files before the checkpoints: the journal says below which one is the best.
            self._get(name for name in names if not STEP.search(name))
            parts: dict[Path, list[Path]] = {}
            for path in sorted(map(self._folder.joinpath, found), key=step_of, reverse=True):
                parts.setdefault(path.parent, []).append(path)
            for checkpoints in parts.values():
                any(self._fetch_checkpoint(path, names) for path in checkpoints)  # the first whole
            best = best_validation(self._folder)
            if best is not None:
                path = checkpoint_path(self._folder / "checkpoints", best.step)
                if self._name(path) in found and not path.exists():
                    self._fetch_checkpoint(path, names)
            unfinished.unlink()

    def keep(
        self, checkpoints: Path, step: int, keep_last: int, milestones: Collection[int]
    ) -> None:
        """Copy the checkpoint just saved, and all else that is new; delete as `prune_checkpoints`.

        Where that fails it is a warning, and the next call copies what is missing.
        """
        with self._warned():
            self._copy_files()
            saved = checkpoint_path(checkpoints, step)
            self._copy_checkpoint(saved)
            for path in self._folder.glob("**/checkpoints/step-*"):
                if path != saved and not self._holds(path):
                    self._copy_checkpoint(path)
            inside = self._name(checkpoints)
            # What is really there, because an earlier deletion may have failed.
            there = {int(found[1]) for name in self._list(inside) if (found := STEP.search(name))}
            for old in find_outdated(there, step, keep_last, milestones):
                self._delete(self._name(checkpoint_path(checkpoints, old)))

    def keep_files(self) -> None:
        """Copy what is new in the run's files; see `keep`."""
        with self._warned():
            self._copy_files()

    def _copy_files(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            name = self._name(path)
            top, *others = name.split("/")
            hidden = any(part.startswith(".") for part in (top, *others))
            if hidden or STEP.search(name) or top in LEFT_OUT or not path.is_file():
                continue
            state = path.stat()
            stamp = (state.st_size, state.st_mtime_ns)
            if self._stamps.get(name) != stamp:
                self._write(name, path.read_bytes())
                self._stamps[name] = stamp

    def _copy_checkpoint(self, path: Path) -> None:
        manifest = path / MANIFEST
        if not manifest.exists():
            return
        # Else the manifest of an earlier copy would list files that have other contents by now.
        self._delete(self._name(path))
        files = [file for file in path.rglob("*") if file.is_file() and file != manifest]
        targets = [self._place(self._name(file)) for file in files]
        for parent in {target.rpartition("/")[0] for target in targets}:
            self._store.makedirs(parent, exist_ok=True)
        self._store.put(list(map(str, files)), targets)
        self._write(self._name(manifest), manifest.read_bytes())
        self._whole.add(self._name(path))

    def _holds(self, path: Path) -> bool:
        """Return whether the copy has this very checkpoint."""
        name, manifest = self._name(path), path / MANIFEST
        there = self._name(manifest)
        if name in self._whole:
            return True
        if not (manifest.exists() and self._store.exists(self._place(there))):
            return False
        if same := self._read(there) == manifest.read_bytes():
            self._whole.add(name)
        return same

    def _fetch_checkpoint(self, path: Path, names: Iterable[str]) -> bool:
        """Return whether the checkpoint is here now, and whole."""
        inside = f"{self._name(path)}/"
        self._get(name for name in names if name.startswith(inside))
        if damage := describe_damage(path):
            logger.warning("%s: %s", self._url, damage)
            shutil.rmtree(path, ignore_errors=True)
        return not damage

    def _list(self, inside: str = "") -> list[str]:
        """Return the names of all files there, or in one folder."""
        self._store.invalidate_cache()  # of listings
        found = self._store.find(self._place(inside).rstrip("/"))
        names = [name.removeprefix(f"{self._root}/") for name in found]
        # A key of a bucket may be any text, and none may lead out of the folder.
        return [name for name in names if ".." not in name.split("/")]

    def _get(self, names: Iterable[str]) -> None:
        chosen = list(names)
        paths = [self._folder / name for name in chosen]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._store.get(list(map(self._place, chosen)), list(map(str, paths)))

    def _read(self, name: str) -> bytes:
        content: bytes = self._store.cat_file(self._place(name))
        return content

    def _write(self, name: str, content: bytes) -> None:
        place = self._place(name)
        self._store.makedirs(place.rpartition("/")[0], exist_ok=True)
        with self._store.transaction:  # so that no file is cut short
            self._store.pipe_file(place, content)

    def _delete(self, name: str) -> None:
        place = self._place(name)
        if self._store.exists(place):
            self._store.rm(place, recursive=True)

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    @contextmanager
    def _required(self, what: str) -> Iterator[None]:
        """Name the key in an error of the file system: each has its own."""
        try:
            yield
        except WaltzError:
            raise
        except Exception as error:
            raise RecipeError(
                f"checkpointing.copies: {self._url} cannot be {what}: {describe_error(error)}; "
                "correct the URL or the access to it, or leave the key out"
            ) from error

    @contextmanager
    def _warned(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the boundary: training must go on
            text = "checkpointing.copies: %s is not up to date: %s; the next checkpoint tries again"
            logger.warning(text, self._url, describe_error(error))


def _is_manifest(name: str) -> bool:
    # The slashes let a name without folders be taken apart too.
    *_, folder, file = f"//{name}".split("/")
    return file == MANIFEST and STEP.fullmatch(folder) is not None
