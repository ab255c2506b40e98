"""Real processes for the gateway's tests: an upstream, and the gateway in front of it."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import openai

from support.timing import wait_until

UPSTREAM = Path(__file__).with_name("upstream_process.py")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if "WALTZRL" not in name and name != "OPENAI_API_KEY"
}


@contextmanager
def running(command, **more):
    """Run a process for as long as the block runs."""
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@contextmanager
def upstream_process():
    """Run the upstream."""
    with running([sys.executable, str(UPSTREAM)], stdout=subprocess.PIPE) as process:
        yield Server(process, f"http://127.0.0.1:{process.stdout.readline().strip()}")


class Server:
    """A running server."""

    def __init__(self, process, url):
        self.process, self.url = process, url

    def seen(self):
        """Return the requests that an upstream got."""
        return json.loads(self.get("/seen")[2])

    def get(self, path, **headers):
        """Return status, headers and text."""
        return self.send(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send(urllib.request.Request(self.url + path, data, named))

    def send(self, request):
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, dict(response.headers), response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read().decode()

    def workers(self):
        """Return the process ids of a gateway's workers."""
        return self._processes(lambda of: (of / "comm").read_text().strip() == "waltzrl-worker")

    def recorders(self):
        """Return the process ids of its workers' recorders."""
        return self._processes(
            lambda of: "waltzrl.operations.online.recorder_opening" in (of / "cmdline").read_text()
        )

    def _processes(self, belongs):
        found = set()
        for pid in _descendants(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                if belongs(Path(f"/proc/{pid}")):
                    found.add(pid)
        return found

    def metric(self, name):
        """Return the sum of a metric's samples."""
        lines = self.get("/metrics")[2].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def _descendants(pid):
    with suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(child)


@contextmanager
def gateway_process(
    *arguments, log, largest_file_kb="unlimited", imports="", python=sys.executable
):
    """Run `waltzrl serve` on a free port; its output goes to the file `log`.

    A file that grows beyond `largest_file_kb` fails to be written, as on a full disk. It imports
    from the folder `imports` too. `python` is the interpreter of the environment that has it.
    """
    path = os.pathsep.join(filter(None, (str(imports), ENVIRONMENT.get("PYTHONPATH"))))
    limited = ["bash", "-c", f'ulimit -f {largest_file_kb}; exec "$@"', "-"]
    here = ["env", f"PYTHONPATH={path}"]
    command = [*limited, *here, python, "-m", "waltzrl", "serve", "--port", "0", *arguments]
    with log.open("w") as errors, running(command, stderr=errors) as process:
        yield Server(process, _address(process, log))


def _address(process, log):
    """Wait for the line that says where it listens."""

    def line():
        assert process.poll() is None, log.read_text()
        return re.search(r"clients use (https?://[^/]+)/v1", log.read_text())

    return wait_until(line, 180.0)[1]  # a reviewer's weights are read before


@contextmanager
def gateway_with_reviewer(name, imports, log):
    """Run a gateway with a reviewer from a folder; yield what asks it through OpenAI's client."""
    with upstream_process() as upstream:
        options = ("--upstream", f"{upstream.url}/v1", "--reviewer", name)
        with asked_gateway(*options, log=log, imports=imports, model="m") as answer:
            yield answer


@contextmanager
def asked_gateway(*options, log, imports, model):
    """Run a gateway with packages from a folder; yield what asks it through OpenAI's client."""
    with (
        gateway_process(*options, log=log, imports=imports) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):

        def answer(content):
            messages = [{"role": "user", "content": content}]
            chat = client.chat.completions.create(model=model, messages=messages, temperature=0)
            return chat.choices[0].message.content

        yield answer
