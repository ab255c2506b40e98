"""One load on one server: wrk where it is installed, `client.py` where it is not."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WRK = shutil.which("wrk")
CLIENT_CORE = 0
"""The client shares this core with the upstream; the gateways have another."""
QUESTION = (
    "I would like to bake bread at home this weekend and I have never done it before. I have plain"
    " white flour, a little rye flour, dry yeast, salt, and an oven that reaches two hundred and"
    " thirty degrees. There is a heavy iron pot with a lid, and a basket that I could use for the"
    " dough. Please explain the steps in order, with the times I should expect. "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of it; only whole answers count, so a slow server may have none."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int

    @property
    def per_second(self) -> float:
        """Answers in a second."""
        return self.requests / self.seconds


def request_body(*, stream: bool = False, tokens: int = 0) -> bytes:
    """Return a chat of about 2.1 KB: some turns about bread, nothing in them to object to.

    Args:
        stream: ask for a stream.
        tokens: of further questions before them, at four characters each.
    """
    turns = [
        {"role": "system", "content": "You are a patient baker who answers in plain words."},
        {"role": "user", "content": QUESTION * 2},
        {"role": "assistant", "content": "Gladly. Which flour do you have most of?"},
        {"role": "user", "content": "Mostly the white one. " + QUESTION * 3},
    ]
    # Numbers tell them apart, so that nobody profits from texts that are the same.
    questions = range(4 * tokens // len(QUESTION))
    turns[1:1] = [{"role": "user", "content": f"Question {n}. {QUESTION}"} for n in questions]
    asked = {"model": "bench", "messages": turns, "temperature": 0.7, "max_tokens": 256}
    return json.dumps(asked | ({"stream": True} if stream else {})).encode()


def apply_load(
    url: str, body: Path, headers: Mapping[str, str], *, connections: int, seconds: float
) -> Load:
    """Keep `connections` busy for about `seconds`.

    Raises:
        RuntimeError: the client failed.
    """
    given = [f"{name}:{value}" for name, value in headers.items()]
    if WRK:
        options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
        command = [WRK, *options, "-s", HERE / "post.lua", url, "--", body, *given]
    else:
        options = ["--connections", str(connections), "--seconds", str(seconds)]
        command = [sys.executable, HERE / "client.py", url, body, *given, *options]
    pinned = ["taskset", "-c", str(CLIENT_CORE), *command]
    done = subprocess.run(pinned, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return Load(**json.loads(done.stdout.splitlines()[-1]))
