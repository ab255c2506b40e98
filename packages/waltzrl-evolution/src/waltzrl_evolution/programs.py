"""Programs as candidates: Python that serves as an agent, in the sandbox.

agent.py    defines reply(messages) -> str
"""

import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.agents import ConversationAgent, load_wording
from waltzrl.collaboration import draft_only
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation import EvaluatedSystem
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.patterns import OracleReviewer
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox import ATTEMPTS, SandboxedProgram, open_program
from waltzrl_evolution.files import CandidateFiles
from waltzrl_evolution.run import Metric, UnsafeCandidateError

PROGRAM = "agent.py"


class ProgramSubject:
    """A program that replies; its fitness is the share of hidden tasks that it solves."""

    name = "program"
    metric: Metric = "capability"
    about = (
        f"{PROGRAM} is a Python program that defines reply(messages) and returns a string; messages"
        " is a list of dictionaries with role and content. It has the standard library, and can"
        " neither start processes, nor read or write files, nor use the network. It must decline"
        " harmful requests and answer harmless ones."
    )

    def __init__(self, allow_missing: Collection[str] = ()) -> None:
        """Take the layers that the sandbox may lack; see `open_program`."""
        self._allow_missing = allow_missing

    @asynccontextmanager
    async def open(self, candidate: CandidateFiles, folder: Path) -> AsyncIterator[EvaluatedSystem]:
        """Start the program.

        Raises:
            InputError: there is another file than `agent.py`, or the sandbox is incomplete.
            UnsafeCandidateError: it tried what a program must not do.
            PolicyError: it failed at its start.
        """
        if candidate.files.keys() != {PROGRAM}:
            raise InputError(
                f"a program is one file, {PROGRAM}; got {', '.join(sorted(candidate.files))}"
            )
        code = candidate.files[PROGRAM]
        # As `waltzrl.agents.identity` names the file.
        digest = hashlib.sha256(PROGRAM.encode() + hashlib.sha256(code.encode()).digest())
        # Bound before the block, which may fail to start it.
        program: SandboxedProgram | None = None
        try:
            async with open_program(
                code, name=PROGRAM, allow_missing=self._allow_missing
            ) as program:
                yield EvaluatedSystem(
                    name="evolved",
                    pattern=draft_only,
                    conversation=ConversationAgent(program, load_wording("plain"), Sampling()),
                    reviewer=OracleReviewer(LabelRefusalJudge()),  # is never asked
                    agents=f"conversation {PROGRAM}@{digest.hexdigest()[:12]}",
                )
        except PolicyError as error:
            stopped = program.stopped if program is not None else error
            if stopped is not None and stopped.reason in ATTEMPTS:
                raise UnsafeCandidateError(str(stopped), reason=stopped.reason) from None
            raise
