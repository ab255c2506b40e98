"""Programs that try to escape: each is stopped, and what it tried is named."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from waltzrl.errors import InputError, PolicyError
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox import (
    CHILD,
    LAYERS,
    SandboxLimits,
    child_command,
    open_program,
)
from waltzrl.records import Message

pytestmark = pytest.mark.slow

LIMITS = SandboxLimits(seconds=250.0, cpu_seconds=1, memory_bytes=256 << 20)
"""No wall time that a busy machine could take for a benign program."""
BENIGN = """
import json, math, random, re, statistics
from collections import Counter
from dataclasses import dataclass

@dataclass
class Turn:
    role: str
    content: str

def reply(messages):
    turns = [Turn(**message) for message in messages]
    print("thinking")
    words = re.findall(r"[a-z]+", turns[-1].content.lower())
    return json.dumps(Counter(words).most_common(1)) + str(math.isqrt(144))
"""
ESCAPES = {
    "it forks": ("processes", "import os\nos.fork()"),
    "it forks past Python": (
        "native code",
        "import ctypes\nctypes.CDLL(None).fork()",
    ),
    "it starts a program": ("processes", "import subprocess\nsubprocess.run(['ls'])"),
    "it spawns a program": ("processes", "import os\nos.posix_spawn('/bin/ls', ['ls'], {})"),
    "it starts threads": (
        "processes",
        "import threading\nfor _ in range(99):\n    threading.Thread(target=input).start()",
    ),
    "it becomes another program": ("processes", "import os\nos.execv('/bin/sh', ['sh'])"),
    "it fills the disk": (
        "files",
        "with open('/fill', 'wb') as file:\n    file.write(b'0' * (1 << 30))",
    ),
    "it fills a folder for temporary files": (
        "files",
        "import tempfile\ntempfile.TemporaryFile().write(b'0')",
    ),
    "it fills memory by a file without a name": (
        "error",
        "import os\nfile = os.memfd_create('m')\nos.write(file, b'0' * (1 << 20))",
    ),
    "it writes where Python is": (
        "files",
        "import json\nopen(json.__file__, 'a').write('x')",
    ),
    "it reads a secret": ("files", "open({secret!r}).read()"),
    "it reads the machine's users": ("files", "open('/etc/passwd').read()"),
    "it lists the root": ("files", "import os\nos.listdir('/')"),
    "it connects to a server": (
        "network",
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
    ),
    "it asks for a name": ("network", "import socket\nsocket.getaddrinfo('example.org', 80)"),
    "it listens": ("network", "import socket\nsocket.socket().bind(('', 0))"),
    "it kills its parent": ("signals", "import os\nos.kill(os.getppid(), 9)"),
    "it raises its limits": (
        "limits",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    ),
    "it enters a namespace to be root": (
        "native code",
        "import ctypes\nctypes.CDLL(None).unshare(0x10000000)",
    ),
    "it never ends": ("CPU time", "while True:\n    pass"),
    "it takes all memory": ("memory", "bytes(1 << 40)"),
    "it prints a gigabyte": (
        "output",
        "import sys\nfor _ in range(1 << 14):\n    sys.stdout.write('0' * (1 << 16))",
    ),
    "it replies with ten megabytes": ("output", "return '0' * (10 << 20)"),
}


def asked(code, *questions, limits=LIMITS, **options):
    """Return the replies of a program."""

    async def ask():
        async with open_program(code, limits=limits, **options) as program:
            return [
                (await program.reply([Message(role="user", content=each)], Sampling())).text
                for each in questions
            ]

    return asyncio.run(ask())


@pytest.mark.promise(
    "Evolution",
    "A program that forks, fills the disk, reads secrets, opens sockets, never ends or prints a "
    "gigabyte is stopped, and what it tried is named; a benign one is unharmed",
)
@pytest.mark.promise(
    "Bad input",
    "An evolved program that forks, writes, reads secrets, opens sockets, never ends or prints a "
    "gigabyte: what it tried or exceeded; it is ended, and counts as unsafe",
)
@pytest.mark.parametrize("escape", ESCAPES)
def test_every_escape_is_stopped_and_named(escape, tmp_path):
    kind, body = ESCAPES[escape]
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        body = body.replace("{secret!r}", repr(str(secret)))
        body = body.replace("{port}", str(server.getsockname()[1]))
        indented = body.replace("\n", "\n    ")
        with pytest.raises(PolicyError) as stopped:
            asked(f"def reply(messages):\n    {indented}\n    return 'free'", "Hello?")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert stopped.value.reason == kind
    assert "free" not in str(stopped.value)


@pytest.mark.promise(
    "Evolution",
    "A program that forks, fills the disk, reads secrets, opens sockets, never ends or prints a "
    "gigabyte is stopped, and what it tried is named; a benign one is unharmed",
)
def test_a_benign_program_is_unharmed():
    replies = asked(BENIGN, "yes no yes", "a b b")
    assert replies == ['[["yes", 2]]12', '[["b", 2]]12']


PROBES = {
    "fork": ("import os\nos.fork()", "BlockingIOError"),
    "thread": ("import _thread\n_thread.start_new_thread(print, ())", "RuntimeError"),
    "write": ("open('/x', 'w')", r"OSError: \[Errno 30\]"),
    "write to Python's folder": (
        "open(json.__file__, 'a')",
        r"OSError: \[Errno 30\]|PermissionError",
    ),
    "secret": ("open({secret!r})", "FileNotFoundError"),
    "users": ("open('/etc/passwd')", "FileNotFoundError"),
    "processes": ("open('/proc/1/environ')", "FileNotFoundError"),
    "network": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
        r"OSError: \[Errno 101\]",
    ),
    "namespace": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), 'refused')",
        r"OSError: \[Errno 28\]",
    ),
    "mount": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.umount2(b'/lib', 2): raise PermissionError(ctypes.get_errno(), 'refused')",
        r"PermissionError: \[Errno 1\]",
    ),
    "limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (99, 99))",
        "ValueError: not allowed to raise maximum limit",
    ),
    "memory without a name": (
        "import os\nfile = os.memfd_create('m')\nos.write(file, b'0')",
        r"OSError: \[Errno 27\]",
    ),
}


@pytest.mark.promise("Evolution", "The kernel stops these where nothing reports them")
@pytest.mark.parametrize("probe", PROBES)
def test_the_kernel_stops_what_no_hook_would_see(probe, tmp_path):
    body, error = PROBES[probe]
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t")
    secret.chmod(0o644)
    text = CHILD.read_text()
    unhooked = tmp_path / "child.py"
    unhooked.write_text(
        text.replace("        sys.addaudithook(_make_reporter(send, folders))\n", "")
    )
    assert unhooked.read_text() != text
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        body = body.replace("{secret!r}", repr(str(secret)))
        body = body.replace("{port}", str(server.getsockname()[1])).replace("\n", "\n    ")
        code = f"import json\ndef reply(messages):\n    {body}\n    return 'free'"
        lines = [{"name": "agent.py", "code": code}, []]
        command = [str(unhooked) if part == str(CHILD) else part for part in child_command(LIMITS)]
        done = subprocess.run(
            command,
            input="".join(json.dumps(line) + "\n" for line in lines),
            stdout=subprocess.PIPE,
            text=True,
            env={},
            check=False,
        )
    first, ready, answer = map(json.loads, done.stdout.splitlines())
    assert (first, ready) == ({"missing": {}}, {"ready": True})
    assert re.match(error, answer["error"])


def test_a_program_sees_no_variable_of_ours(monkeypatch):
    monkeypatch.setenv("WALTZRL_UPSTREAM_KEY", "s3cr3t")
    code = "import os\ndef reply(messages):\n    return repr(sorted(os.environ))"
    assert "WALTZRL" not in asked(code, "Hello?")[0]


def test_a_program_that_waits_is_killed_when_its_time_is_over():
    limits = SandboxLimits(seconds=1.5)
    with pytest.raises(PolicyError, match=r"was stopped, time: it took more than 1\.5 s"):
        asked("def reply(messages):\n    import time\n    time.sleep(99)", "Hello?", limits=limits)


def test_after_an_attempt_every_further_reply_is_the_same_error():
    async def ask():
        async with open_program("import os\ndef reply(m): return str(os.fork())") as program:
            errors = []
            for _ in range(2):
                with pytest.raises(PolicyError) as stopped:
                    await program.reply([Message(role="user", content="?")], Sampling())
                errors.append(stopped.value)
            return errors

    first, second = asyncio.run(ask())
    assert first is second
    assert str(first) == "the program was stopped, processes: it tried os.fork"


def test_an_error_of_one_reply_does_not_end_the_program():
    code = "divisors = [1, 0, 2]\ndef reply(messages): return str(6 // divisors.pop())"

    async def ask():
        question = [Message(role="user", content="?")]
        async with open_program(code) as program:
            before = await program.reply(question, Sampling())
            with pytest.raises(PolicyError, match="ZeroDivisionError"):
                await program.reply(question, Sampling())
            assert program.stopped is None
            after = await program.reply(question, Sampling())
            return before.text, after.text

    assert asyncio.run(ask()) == ("3", "6")  # 6 // 2, and 6 // 1 by the same process


def test_after_a_cancelled_question_no_other_gets_its_answer():
    code = "def reply(messages): return messages[-1]['content']"

    async def ask():
        async with open_program(code) as program:
            first = asyncio.create_task(
                program.reply([Message(role="user", content="secret of the first")], Sampling())
            )
            # The question is written in the first step of the task; its answer needs a process.
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            with pytest.raises(PolicyError) as stopped:
                await program.reply([Message(role="user", content="second")], Sampling())
            return stopped.value

    assert str(asyncio.run(ask())) == (
        "the program was stopped, cancelled: a question was withdrawn"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def reply(messages): return 1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("def reply(messages): return 7", r"failed: reply\(\) returned int, not a str"),
        ("def answer(messages): return ''", "failed: KeyError: 'reply'"),
        ("def reply(messages: return ''", "failed: SyntaxError"),
        ("import os\nos._exit(3)", "was stopped, crash: exit status 3"),
    ],
)
def test_a_program_that_fails_says_how(code, message):
    with pytest.raises(PolicyError, match=message):
        asked(code, "Hello?")


POOR = """
import asyncio, ctypes, os, sys
uid, gid = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for file, text in (
    ("/proc/self/setgroups", "deny"),
    ("/proc/self/uid_map", f"1000 {uid} 1"),
    ("/proc/self/gid_map", f"1000 {gid} 1"),
    ("/proc/sys/user/max_user_namespaces", "0"),
):
    with open(file, "w") as opened:
        opened.write(text)
from waltzrl.policies.sandbox import open_program
from waltzrl.policies import Sampling
from waltzrl.records import Message
async def ask(allowed):
    async with open_program(sys.argv[1], allow_missing=allowed) as program:
        reply = await program.reply([Message(role="user", content="?")], Sampling())
        print(reply.text)
for allowed in [], sys.argv[2:]:
    try:
        asyncio.run(ask(allowed))
    except Exception as error:
        print(type(error).__name__, error)
"""
"""Runs a program where the kernel gives no user namespaces, refusing that and accepting it."""


@pytest.mark.promise(
    "Evolution",
    "What the machine cannot isolate is said at the start and refused, unless told otherwise",
)
@pytest.mark.promise(
    "Bad input",
    "A machine that cannot isolate a program: the layers that it lacks, and why; nothing runs "
    "unless they are accepted",
)
def test_what_a_machine_lacks_is_said_before_the_program_runs_and_may_be_accepted(tmp_path):
    code = "def reply(messages): return 'done'"
    command = [sys.executable, "-c", POOR, code, *LAYERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, accepted = done.stdout.splitlines()
    start = (
        "InputError this machine cannot isolate a program completely, it lacks: user namespace ("
    )
    assert refused.startswith(start)
    for layer in ("network", "nested namespaces", "read-only files"):
        assert f"; {layer} (no namespace)" in refused
    assert accepted == "done"


def test_what_is_accepted_must_be_a_layer():
    with pytest.raises(InputError, match="the sandbox has no layer 'walls'; use user namespace"):
        asked("", allow_missing=["walls"])
