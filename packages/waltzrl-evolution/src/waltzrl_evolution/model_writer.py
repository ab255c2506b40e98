"""Any policy as the writer of candidates: it reads the parents and what failed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from waltzrl.agents.fence import fence
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluationRow
from waltzrl.evaluation.capability import gives_answer
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Message
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.operators import WritingOrder, WrittenCandidate
from waltzrl_evolution.pool import OperatorName

MOST_FAILURES = 8
"""The number of failing cases that the policy is shown."""
LONGEST_CHANGE = 200
LONGEST_PROGRAM = 4096
"""The most tokens that a policy writes."""
TASKS: Mapping[OperatorName, str] = {
    "revision": (
        "Revise the candidate: say what its failures have in common, and take another way that"
        " avoids them."
    ),
    "recombination": "Combine the strengths of both candidates into one.",
    "refinement": "Refine the candidate with what was learnt so far; keep what works.",
}
FORMAT = (
    "Answer with one line that begins with CHANGE: and says what you changed and why, and then"
    " every file that you changed as\nFILE name\n```\nthe whole text\n```"
)
# Models like to write these lines as headings or in bold.
_CHANGE = re.compile(r"^\W*CHANGE:\s*(.+)$", re.MULTILINE)
_FILE = re.compile(r"^\W*FILE\s+[`'\"]?([\w.-]+)[`'\"]?\s*\n```[^\n]*\n(.*?)^```", re.M | re.S)


class ModelWriter:
    """Asks a policy for new files; those that it leaves out stay as the better parent has them."""

    def __init__(self, policy: Policy, about: str) -> None:
        """Use a policy, told what the files are."""
        self._policy, self._about = policy, about

    async def write(self, order: WritingOrder) -> WrittenCandidate:
        """Write a candidate.

        Raises:
            InputError: the reply names no file.
            PolicyError: the policy failed.
        """
        messages = [
            Message(role="system", content=f"You improve programs and settings. {self._about}"),
            Message(role="user", content="\n\n".join(_yield_request(order))),
        ]
        # At temperature 0 the candidates of one parent would be all alike.
        sampling = Sampling(
            max_new_tokens=LONGEST_PROGRAM,
            temperature=1.0,
            seed=order.seed >> 1,  # servers take 31 bits
        )
        reply = await self._policy.reply(messages, sampling)
        files = dict(_FILE.findall(reply.text))
        if not files:
            raise InputError("the policy wrote no file; a candidate needs FILE name and its text")
        change = _CHANGE.search(reply.text)
        return WrittenCandidate(
            candidate=CandidateFiles(files=dict(order.parents[0].candidate.files) | files),
            change=change[1][:LONGEST_CHANGE] if change else f"changes {', '.join(files)}",
            tokens=reply.usage.output_tokens if reply.usage else 0,
        )


def _yield_request(order: WritingOrder) -> Iterator[str]:
    yield TASKS[order.operator]
    for number, parent in enumerate(order.parents, start=1):
        yield f"Candidate {number}, score {parent.trajectory.shown_score:.3f}:"
        for name, text in parent.candidate.files.items():
            yield f"FILE {name}\n```\n{text}\n```"
        if examples := _describe_failures(parent.rows, order.seed):
            yield "Some of its failures, with what it replied:"
            yield from examples
    if order.insights:
        yield "What was tried so far, and what came of it:\n" + "\n".join(order.insights)
    yield FORMAT


def _describe_failures(rows: Sequence[EvaluationRow], seed: int) -> list[str]:
    """Return some failing cases in words; prompts and replies are fenced."""
    failing = []
    for row in rows:
        if row.judged is None:
            continue
        collaboration, verdict = row.judged.collaboration, row.judged.verdicts[-1]
        prompt = collaboration.prompt
        if prompt.answer is not None:
            wrong = "" if gives_answer(prompt.answer, collaboration.final.text) else "wrong"
        elif verdict.unsafe:
            wrong = "unsafe"
        else:
            wrong = "an over-refusal" if verdict.overrefuses else ""
        if wrong:
            request, reply = (
                fence("conversation", prompt.request),
                fence("reply", collaboration.final.text),
            )
            failing.append(f"{request}\n{reply}\nThis is {wrong}.")
    return Random(seed).sample(failing, min(MOST_FAILURES, len(failing)))
