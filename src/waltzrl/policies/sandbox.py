"""A program as a policy, in a process that can reach nothing.

It has its own user, mount, process and network namespaces, sees Python's own folders alone and all
of them read-only, can start no process and write no file, has limits on CPU time and memory, no
variables of the environment and no capabilities, and is killed when it takes or writes too much.
"""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from waltzrl.errors import InputError, PolicyError, ProgramError
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox_child import FORBIDDEN
from waltzrl.records import Message, Reply

LAYERS = (
    *("user namespace", "nested namespaces", "network", "read-only files"),
    *("limits", "capabilities"),
)
"""The layers of isolation, each of which a machine may be unable to give."""
SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
"""The folders of shared libraries."""
CHILD = Path(__file__).with_name("sandbox_child.py")
ATTEMPTS = tuple(FORBIDDEN)
"""The `PolicyError.reason` of a program that tried what it must not do."""
RAISED = {
    "MemoryError": "memory",
    "BlockingIOError": "processes",
    "RuntimeError: can't start new thread": "processes",
}
"""The limit that a program ran into, by the beginning of the error that it raised."""
ERROR = "error"
"""The `PolicyError.reason` of a program that raised an error, and goes on."""
# The soft limit is the hard one, so the kernel sends SIGKILL for CPU time and not SIGXCPU.
SIGNALS = {9: "CPU time", 25: "files"}
"""The limit that a program ran into, by the signal that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a program may use."""

    seconds: float = 10.0
    """The wall time of its start, and of each reply."""
    cpu_seconds: int = 60
    """The CPU time of its process, in all."""
    memory_bytes: int = 512 << 20
    """The size of its address space."""
    reply_bytes: int = 256 << 10
    printed_bytes: int = 64 << 10
    """The most that it may print on standard output and standard error, in all; the text is thrown
    away."""


class SandboxedProgram:
    """A policy that is a Python program with a function `reply(messages) -> str`.

    `messages` is a list of objects with `role` and `content`. An error that it raises fails one
    reply. A program that tried what it must not do, or ran into a limit, is ended, and every
    further reply is the same error; so is one whose reply was cancelled, because it may still be at
    it.
    """

    def __init__(self, process: Process, limits: SandboxLimits) -> None:
        """Talk to a child that is ready; `open_program` starts one."""
        self._process, self._limits = process, limits
        self._turn = asyncio.Lock()
        self._failure: ProgramError | None = None
        self._printed = asyncio.create_task(self._count_printed())

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the program's reply; `sampling` is not told to it.

        Raises:
            PolicyError: it failed, or tried what it must not do; `reason` names which.
        """
        started = perf_counter()
        turns = [{"role": message.role, "content": message.content} for message in messages]
        async with self._turn:
            text = await self._ask(turns, "text")
        return Reply(text=str(text), milliseconds=(perf_counter() - started) * 1000)

    async def start(self, name: str, code: str, allow_missing: Collection[str]) -> None:
        """Send the program; see `start_program`.

        Raises:
            InputError: the machine does not give a layer.
            PolicyError: as `reply`.
        """
        missing = await self._ask(None, "missing")
        assert isinstance(missing, dict)
        if refused := {layer: why for layer, why in missing.items() if layer not in allow_missing}:
            named = "; ".join(f"{layer} ({why})" for layer, why in refused.items())
            raise InputError(
                f"this machine cannot isolate a program completely, it lacks: {named}; allow user "
                "namespaces (of `waltzrl evolve` --allow-missing LAYER accepts that)"
            )
        await self._ask({"name": name, "code": code}, "ready")

    @property
    def stopped(self) -> PolicyError | None:
        """Why the program was ended; None while it runs."""
        return self._failure

    async def close(self) -> None:
        """End the program, and all that it started."""
        self._kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # ends a child that was not yet bound to its parent's end
        with contextlib.suppress(ValueError):
            while await self._process.stdout.read(1 << 16):
                """Throw away what nobody asked for, so that the pipe is closed."""
        await self._process.wait()
        await asyncio.wait({self._printed})  # which a cancellation does not end

    async def _ask(self, question: object, expected: str) -> object:
        """Return the child's answer; None asks nothing, and waits for what it says by itself."""
        if self._failure is not None:
            raise self._failure
        assert self._process.stdin is not None
        try:
            # Not `wait_for`, which in Python 3.11 may swallow a cancellation.
            async with asyncio.timeout(self._limits.seconds):
                if question is not None:
                    self._process.stdin.write(json.dumps(question).encode() + b"\n")
                    await self._process.stdin.drain()
                return await self._read_answer(expected)
        except asyncio.CancelledError:
            # Its answer is still to come, and would be read as that of the next question.
            self._failure = self._failure or _make_failure("cancelled", "a question was withdrawn")
            self._kill()
            raise
        except TimeoutError:
            self._failure = _make_failure("time", f"it took more than {self._limits.seconds:g} s")
        except (BrokenPipeError, ConnectionResetError):
            self._failure = await self._explain_end()
        except ProgramError as error:
            if error.reason == ERROR:
                raise
            self._failure = error
        await self.close()
        raise self._failure

    async def _read_answer(self, expected: str) -> object:
        """Read the next line.

        Raises:
            PolicyError: it is another than the expected one, too long, or missing.
        """
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:  # longer than the stream's limit
            raise _make_failure("output", "its reply is too long") from None
        if not line.endswith(b"\n"):
            raise await self._explain_end()
        try:
            answer = json.loads(line)
            if expected in answer:
                return answer[expected]
            if "attempt" in answer:
                raise _make_failure(str(answer["attempt"]), f"it tried {answer['event']}")
            raise _name_error(str(answer["error"]))
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
            raise _make_failure("output", "what it wrote is no reply") from None

    async def _explain_end(self) -> ProgramError:
        """Say why the child ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.seconds):
                code = await self._process.wait()
                await asyncio.wait({self._printed})  # which a cancellation does not end
            if self._failure is not None:
                return self._failure
            # The isolated child exits with 128 plus the signal that ended the program.
            signal = -code if code < 0 else code - 128
            kind = SIGNALS.get(signal, "crash")
            return _make_failure(kind, f"signal {signal}" if signal > 0 else f"exit status {code}")
        return _make_failure("time", "it closed its output and went on")

    async def _count_printed(self) -> None:
        """Throw away what the program prints, and end it when that is too much."""
        assert self._process.stderr is not None
        printed = 0
        while chunk := await self._process.stderr.read(1 << 16):
            printed += len(chunk)
            if printed > self._limits.printed_bytes:
                most = self._limits.printed_bytes
                self._failure = _make_failure("output", f"it printed more than {most:,} bytes")
                self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


async def start_program(
    code: str,
    *,
    name: str = "agent.py",
    limits: SandboxLimits | None = None,
    allow_missing: Collection[str] = (),
) -> SandboxedProgram:
    """Start a program, which the caller closes.

    Args:
        code: defines `reply`.
        name: for its error messages.
        limits: what it may use.
        allow_missing: of `LAYERS`, those without which it may run all the same.

    Raises:
        InputError: the machine does not give another layer; nothing of the program has run.
        PolicyError: the program failed at its start.
    """
    limits = limits or SandboxLimits()
    if unknown := set(allow_missing) - set(LAYERS):
        raise InputError(f"the sandbox has no layer {min(unknown)!r}; use {', '.join(LAYERS)}")
    process = await asyncio.create_subprocess_exec(
        *child_command(limits),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        # A reply is one line, and this is the longest that the stream reads.
        limit=limits.reply_bytes,
        env={},
        cwd="/",
        # Ctrl-C in a terminal is for the caller, which then closes the program.
        start_new_session=True,
    )
    program = SandboxedProgram(process, limits)
    try:
        await program.start(name, code, allow_missing)
    except BaseException:
        await program.close()
        raise
    return program


@asynccontextmanager
async def open_program(
    code: str,
    *,
    name: str = "agent.py",
    limits: SandboxLimits | None = None,
    allow_missing: Collection[str] = (),
) -> AsyncIterator[SandboxedProgram]:
    """Start a program for the duration of the block; see `start_program`."""
    program = await start_program(code, name=name, limits=limits, allow_missing=allow_missing)
    try:
        yield program
    finally:
        await program.close()


def child_command(limits: SandboxLimits) -> list[str]:
    """Return the command of the child process, isolated from site-packages and variables."""
    config = json.dumps(asdict(limits) | {"folders": _list_folders()})
    return [sys.executable, "-I", "-S", "-B", str(CHILD), config]


def _list_folders() -> list[str]:
    """Return the folders that Python itself needs, none within another."""
    prefix = Path(sys.base_prefix)
    needed = {str(prefix / "lib"), *(folder for folder in SYSTEM_FOLDERS if Path(folder).is_dir())}
    return sorted(
        folder for folder in needed if not any(folder.startswith(f"{other}/") for other in needed)
    )


def _make_failure(kind: str, what: str) -> ProgramError:
    return ProgramError(f"the program was stopped, {kind}: {what}", reason=kind)


def _name_error(error: str) -> ProgramError:
    """Name the error that a program raised; what ran into a limit is named by the limit."""
    for beginning, kind in RAISED.items():
        if error.startswith(beginning):
            return _make_failure(kind, error)
    return ProgramError(f"the program failed: {error}", reason=ERROR)
