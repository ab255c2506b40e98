"""What the model of a run's judge answered: kept in the run's folder, and all of one revision."""

import os
from pathlib import Path

import msgspec

from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.opening import judge_place, open_judge
from waltzrl.foundation.files import disk_errors, hold_lock, whole_lines
from waltzrl.records import Message, Prompt, Reply, Verdict

ANSWERS, ANSWERS_BEFORE = "judge-answers.jsonl", "judge-answers-before.jsonl"
LOCK = ".judge-answers.lock"
MOST_BYTES = 4 << 20


ASKED = Prompt(
    # By its label an answer is read; a judge need not read one about a harmless prompt.
    id="check",
    messages=(Message(role="user", content="What is 2 + 2?"),),
    label="unsafe",
)


async def require_judge(name: str, *, judges_prompts: bool = False) -> str:
    """Open a judge and, if it has a model, ask it about an exchange; return its name.

    The answer is kept nowhere: a run asks its judge anew.

    Args:
        name: as in `open_judge`.
        judges_prompts: as there.

    Raises:
        PolicyError: the judge's model did not answer.
        InputError: the name is invalid, or the answer is not in the format that was asked for.
    """
    async with open_judge(name, judges_prompts=judges_prompts) as judge:
        if not judge_place(name)[0]:
            return judge.name
        verdict = await judge.judge(ASKED, Reply(text="2 + 2 is 4."))
    if verdict.unsafe is None:
        said = "; ".join(repr(answer.text) for answer in verdict.answers) or "nothing"
        raise InputError(
            f"the judge {judge.name} cannot be read: of 2 + 2 it says {said}; name the kind that"
            " its model was trained as, or another model"
        )
    return judge.name


class KeptVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `ANSWERS`."""

    prompt: str
    """The prompt's id."""
    verdict: Verdict


class RunJudge:
    """A judge of a run; what its model answers is kept. A judge without a model writes nothing.

    All processes of a run, ranks and workers, keep their answers in the same files, one at a time.
    """

    def __init__(self, judge: Judge, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Continue the answers in a run's folder.

        Args:
            judge: labels the replies.
            folder: of the run.
            most_bytes: of `ANSWERS`; when it is full it replaces `ANSWERS_BEFORE`.
        """
        self.name = judge.name
        self._judge, self._folder, self._most_bytes = judge, folder, most_bytes
        self._revision: str | None = None
        """The revision of all answers of the run; None until the first is kept."""

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
        path = self._folder / ANSWERS
        # Ranks and workers append to the same file.
        with hold_lock(self._folder / LOCK), disk_errors(path):
            if self._revision is None:
                self._revision = self._last_revision()
            revision = judged.verdict.answers[-1].revision
            if self._revision not in {None, revision}:
                raise PolicyError(
                    f"the judge's model is of revision {revision!r}, and was of "
                    f"{self._revision!r} before in this run; serve that revision again, or choose "
                    "another run directory",
                    reason="judge changed",
                )
            self._revision = revision
            # Behind a torn line, this one would be lost with it.
            _drop_torn_line(path)
            with path.open("ab") as file:
                file.write(msgspec.json.encode(judged) + b"\n")
                full = file.tell() >= self._most_bytes
            if full:
                path.replace(self._folder / ANSWERS_BEFORE)

    def _last_revision(self) -> str | None:
        """Return the revision that answered last, in whichever process; None before any did."""
        for name in (ANSWERS, ANSWERS_BEFORE):
            path = self._folder / name
            lines = list(whole_lines(path)) if path.exists() else []
            if lines:
                last = msgspec.json.decode(lines[-1], type=KeptVerdict)
                return last.verdict.answers[-1].revision
        return None


def _drop_torn_line(path: Path) -> None:
    """Drop the end of a file that a process left when it died while it wrote."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        torn = file.read(1) not in {b"", b"\n"}
    if torn:
        os.truncate(path, sum(map(len, whole_lines(path))))


def forget_answers(folder: Path) -> None:
    """Delete the answers, so that the run begins anew."""
    for name in (ANSWERS, ANSWERS_BEFORE):
        (folder / name).unlink(missing_ok=True)
