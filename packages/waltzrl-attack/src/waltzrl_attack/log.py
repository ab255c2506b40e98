"""The log of a run of attacks: one path a line, safe to cut off at any byte.

It holds no personal data and no times: a run that was killed and resumed ends with the same log.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.rows import change_replies
from waltzrl.foundation.files import disk_errors, whole_lines
from waltzrl.records import Collaboration, Reply, Verdict
from waltzrl.store.privacy.scrubbing import Scrub, scrub_collaboration
from waltzrl_attack.attempts import AttackPath, Attempt, Goal, JobKey

LOG_NAME = "attacks.jsonl"


class AttackLog:
    """Appends the paths of a run to its folder's log."""

    def __init__(self, folder: Path, scrub: Scrub) -> None:
        """Keep paths in a folder; `scrub` takes personal data out of every text."""
        self.folder, self._path, self._scrub = folder, folder / LOG_NAME, scrub

    def open(
        self, goals: Mapping[JobKey, Goal], setup: str, judge: str
    ) -> dict[JobKey, AttackPath]:
        """Return the paths of an earlier run, and drop what it left of its last line.

        Args:
            goals: the scrubbed goal of each path that will be logged.
            setup: of this run.
            judge: the name of this run's judge.

        Raises:
            InputError: the log is of another run, is damaged, or cannot be written.
        """
        paths: dict[JobKey, AttackPath] = {}
        for number, path in enumerate(read_paths(self.folder), start=1):
            if (path.setup, path.judge, path.goal) != (setup, judge, goals.get(path.key)):
                raise InputError(
                    f"{self._path}:{number} is of another run ({path.attack!r} on "
                    f"{path.goal.id!r}; {path.setup}; judge {path.judge}), this one has {setup}; "
                    f"judge {judge}; choose another folder"
                )
            paths[path.key] = path
        with disk_errors(self._path), self._path.open("ab") as file:
            file.truncate(sum(map(len, whole_lines(self._path))))
        return paths

    def append(self, path: AttackPath) -> AttackPath:
        """Write a path; return it as it is kept.

        Raises:
            InputError: the disk is full.
        """
        kept = replace(
            path,
            goal=self.scrub_goal(path.goal),
            attempts=tuple(map(self._scrub_attempt, path.attempts)),
        )
        with disk_errors(self._path), self._path.open("ab") as file:
            # json, not msgspec.json: a policy may write half a character
            file.write(json.dumps(msgspec.to_builtins(kept)).encode() + b"\n")
        return kept

    def scrub_goal(self, goal: Goal) -> Goal:
        """Return a goal without personal data."""
        return scrub_collaboration(
            Collaboration(prompt=goal, draft=Reply(text="")), self._scrub
        ).prompt

    def _scrub_attempt(self, attempt: Attempt) -> Attempt:
        collaboration = attempt.collaboration
        if collaboration is not None:
            # How long a reply took differs from run to run.
            collaboration = change_replies(
                scrub_collaboration(collaboration, self._scrub),
                lambda reply: replace(reply, milliseconds=0.0),
            )
        return replace(
            attempt,
            text=self._scrub(attempt.text),
            collaboration=collaboration,
            verdicts=tuple(map(self._scrub_verdict, attempt.verdicts)),
        )

    def _scrub_verdict(self, verdict: Verdict) -> Verdict:
        answers = (replace(answer, text=self._scrub(answer.text)) for answer in verdict.answers)
        return replace(verdict, answers=tuple(answers))


def read_paths(folder: Path) -> list[AttackPath]:
    """Read the paths in a folder's log; none if it has none.

    Raises:
        InputError: the log cannot be read, or a line is not a path.
    """
    path = folder / LOG_NAME
    try:
        lines = list(whole_lines(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; choose another folder") from error
    paths = []
    for number, line in enumerate(lines, start=1):
        try:
            paths.append(msgspec.convert(json.loads(line), AttackPath))
        except ValueError as error:
            raise InputError(
                f"{path}:{number}: not the path of an attack ({error}); choose another folder"
            ) from error
    return paths
