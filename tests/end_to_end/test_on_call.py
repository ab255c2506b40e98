"""The page for people on call, walked command by command on a gateway with keys."""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.small_runs import run
from waltzrl.gateway.keys import add_key

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/on-call.md").read_text(), re.DOTALL)
SETTINGS, *COMMANDS = BLOCKS
EXPECTED = {
    "/readyz": '"status":"ready"',
    "--limit 20": "a greeting passes",
    "release show": "changed: threshold 0.7 -> 0.8",
    "release roll-back": "rolled back",
    "release history": "unsafe rate",
    "bundle diff": "threshold 0.7 -> 0.8",
    "bundle show": "made by a gateway's own recipe",
    "bundle list": "oncall",
    "release hold": ", held;",
    "release resume": "shadow;",
    "release advance": "canary 10 %;",
    "$ID --contents": "--- draft",
    "bundle,decision,rule": "violence/",
    "--count rule,who": "rule  who  count",
    "--count decision,who": "revised   oncall",
    "waltzrl_errors_total": "waltzrl_errors_total",
    "active": "waltzrl_waiting_requests",
    "flagged": 'waltzrl_flagged_total{category="violence_harm"}',
    "upstream_responses": 'status="200"',
    "review_failures": 'waltzrl_review_failures_total{cause="timeout"} 0.0',
    "df -h": "Mounted on",
    "audit verify": "ok: ",
    "own|feedback": "waltzrl_own_time_ms_count",
    "/healthz": '{"status":"alive"}',
    "memory_failing": "waltzrl_memory_failing 0.0",
    "night.csv": "total_ms",
}
"""A part of each command of the page -> what it prints."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Run lines of a shell beside a gateway with keys, which has answered one request."""
    folder = tmp_path_factory.mktemp("on-call")
    key = add_key(folder / "keys.toml", {"name": "oncall", "role": "operator", "may_probe": True})
    url = f"sqlite:///{folder}/memory.db"
    options = ("--keys", folder / "keys.toml", "--memory", url, "--audit", folder / "audit")
    settings = (f"memory.subject_key={folder}/memory.key", "audit.contents=true")
    options += tuple(word for setting in settings for word in ("--set", setting))
    (folder / "candidate.toml").write_text("threshold = 0.8\n")
    (folder / "waltzrl").write_text(f'#!/bin/sh\nexec {sys.executable} -m waltzrl "$@"\n')
    (folder / "waltzrl").chmod(0o755)
    with (
        upstream_process() as upstream,
        gateway_process(
            *("--upstream", f"{upstream.url}/v1", *map(str, options)), log=folder / "log"
        ) as gateway,
        pytest.MonkeyPatch.context() as patch,
    ):
        turns = [{"role": "user", "content": "How do I bake bread?"}]
        body = {"model": "unsafe", "messages": turns}
        bearer = {"Authorization": f"Bearer {key}"}
        answer = gateway.post("/v1/chat/completions", body, **bearer)
        assert answer[0] == 200, answer
        assert gateway.post("/v1/chat/completions", body)[0] == 401
        settings = {
            "COLUMNS": "200",
            "LOGNAME": "oncall",
            "NO_PROXY": "127.0.0.1",
            "GATEWAY": gateway.url,
            "WALTZRL_GATEWAY_KEY": key,
            "MEMORY": url,
            "LOG": str(folder / "audit"),
            "ID": answer[1]["x-request-id"],
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield told


def told(line):
    """Return what a line prints; commands of ours run in this process, which is quicker."""
    if not line.startswith("waltzrl"):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout
    command, _, _file = line.partition(" > ")
    printed = io.StringIO()
    with redirect_stdout(printed):
        status = run(*shlex.split(os.path.expandvars(command))[1:])
    assert status == 0, f"{line}\n{printed.getvalue()}"
    return printed.getvalue()


def propose():
    told("waltzrl release propose candidate.toml --plan quick --override test --memory $MEMORY")


def test_the_commands_of_the_page_run_as_they_are_written(shell):
    lines = [line for block in COMMANDS for line in block.splitlines()]
    propose()
    for line in lines:
        if "release hold" in line:  # the first was rolled back
            propose()
        (expected,) = [words for part, words in EXPECTED.items() if part in line]
        assert expected in shell(line), line
    assert len(lines) == len(EXPECTED)


def test_the_page_sets_every_variable_that_its_commands_use():
    used = set(re.findall(r"\$([A-Z]+)", "".join(COMMANDS)))
    exported = set(re.findall(r"^export ([A-Z_]+)=", SETTINGS, re.MULTILINE))
    assert exported == used | {"WALTZRL_GATEWAY_KEY"}
    for line in SETTINGS.splitlines():
        assert shlex.split(line, comments=True)[0] == "export"


def test_verify_without_a_key_says_what_to_set(shell, monkeypatch, capsys):
    monkeypatch.delenv("WALTZRL_GATEWAY_KEY")
    assert run("verify", "--gateway", f"{os.environ['GATEWAY']}/v1", "--limit", "1") == 1
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "set WALTZRL_GATEWAY_KEY to an API key of the gateway" in printed
