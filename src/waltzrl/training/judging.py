"""What the model of a run's judge answered: kept in the run's folder, and all of one revision."""

import os
from pathlib import Path

import msgspec

from waltzrl.errors import PolicyError
from waltzrl.judges import Judge
from waltzrl.records import Prompt, Reply, Verdict
from waltzrl.telemetry.files import disk_errors, whole_lines

ANSWERS, ANSWERS_BEFORE = "judge-answers.jsonl", "judge-answers-before.jsonl"
MOST_BYTES = 4 << 20


class KeptVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `ANSWERS`."""

    prompt: str
    """Its id."""
    verdict: Verdict


class RunJudge:
    """A judge of a run; what its model answers is kept. A judge without a model writes nothing."""

    def __init__(self, judge: Judge, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Continue the answers in a run's folder.

        Args:
            judge: labels the replies.
            folder: of the run.
            most_bytes: of `ANSWERS`; when it is full it replaces `ANSWERS_BEFORE`.

        Raises:
            InputError: the folder cannot be written to.
        """
        self.name = judge.name
        self._judge, self._folder, self._most_bytes = judge, folder, most_bytes
        self._revision = self._last_revision()

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        """Label `reply` as the judge does.

        Raises:
            PolicyError: the judge's model could not answer, or is not the one that the run began
                with.
            InputError: the answers cannot be written.
        """
        verdict = await self._judge.judge(prompt, reply)
        if verdict.answers:
            self._keep(KeptVerdict(prompt=prompt.id, verdict=verdict))
        return verdict

    def _keep(self, judged: KeptVerdict) -> None:
        revision = judged.verdict.answers[-1].revision
        if self._revision not in {None, revision}:
            raise PolicyError(
                f"the judge's model is of revision {revision!r}, and was of {self._revision!r} "
                "before in this run; serve that revision again, or choose another run directory",
                reason="judge changed",
            )
        self._revision = revision
        path = self._folder / ANSWERS
        with disk_errors(path), path.open("ab") as file:
            file.write(msgspec.json.encode(judged) + b"\n")
            full = file.tell() >= self._most_bytes
        if full:
            path.replace(self._folder / ANSWERS_BEFORE)

    def _last_revision(self) -> str | None:
        """Return the revision that answered last; drop a line that a crash cut short."""
        revision = None
        for name in (ANSWERS_BEFORE, ANSWERS):
            path = self._folder / name
            with disk_errors(path):
                lines = list(whole_lines(path)) if path.exists() else []
                if lines:
                    os.truncate(path, sum(map(len, lines)))
                    last = msgspec.json.decode(lines[-1], type=KeptVerdict)
                    revision = last.verdict.answers[-1].revision
        return revision


def forget_answers(folder: Path) -> None:
    """Delete the answers, so that the run begins anew."""
    for name in (ANSWERS, ANSWERS_BEFORE):
        (folder / name).unlink(missing_ok=True)
