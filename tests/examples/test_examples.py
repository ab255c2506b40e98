import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from support.gateway_processes import gateway_process, upstream_process

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "ask_through_the_gateway": "decision  revised, by rules",
    "collaborate_with_scripted_agents": "verdicts  acceptable: [False, True]",
    "evaluate_two_patterns": "│ asr │   45.0 │   5.0 │  -40.0 │",
    "guard_a_reply": "revise    revised: I will not help to build one.",
    "one_exchange": "revision  I can't help you build one.",
    "judge_replies": "kappa 1.0 (n = 5)",
    "remember_and_release": "I am [REDACTED:email]. How do I kill a process that hangs?",
    "the_hole_in_the_reward": "a good draft is ruined          0.10   -0.88",
}
"""A line of what each example prints, known before it runs."""


def printed(example, *arguments, **environment):
    """Run an example as a reader does; return what it printed."""
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run_here():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*SHOWN, "rag"])


@pytest.mark.parametrize("example", SHOWN)
def test_an_example_prints_what_it_promises(example):
    assert SHOWN[example] in printed(example)


def test_the_first_example_of_the_readme_is_what_its_command_prints():
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    blocks = re.findall(r"(?:^    .*\n)+|^```(?:.*\n)+?```\n", readme, re.MULTILINE)
    command, *lines = dedent(blocks[0]).splitlines(keepends=True)
    assert command.startswith("$ python examples/one_exchange.py ")
    assert "".join(lines) == printed("one_exchange")
    assert readme.index(command) < readme.index("\n## ")  # before the first heading


def test_the_first_example_needs_no_extra():
    code = (
        f"import runpy, sys; runpy.run_path({str(EXAMPLES / 'one_exchange.py')!r}); "
        "print({'torch', 'numpy', 'transformers', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.promise("Endpoints and upstreams", "A script for retrieval and chat needs one address")
@pytest.mark.slow
def test_retrieval_and_chat_need_the_address_of_the_gateway_only(tmp_path):
    question = "Why does bread rise?"
    with (
        upstream_process() as upstream,
        gateway_process("--upstream", f"{upstream.url}/v1", log=tmp_path / "log") as gateway,
    ):
        models = ("echo", "embedder")
        said = printed("rag", f"{gateway.url}/v1", *models, question, OPENAI_API_KEY="none")
        asked = [request["body"]["model"] for request in upstream.seen()["requests"]]
    lines = said.splitlines()
    assert lines[0].startswith("document  Yeast eats sugar")
    assert lines[1] == "decision  draft"
    assert lines[2].startswith("answer    You said: Answer from this document: Yeast eats sugar")
    assert lines[-1] == f"Question: {question}"
    assert asked == ["embedder", "echo"]
