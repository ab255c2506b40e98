import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "ask_through_the_gateway": "decision  revised, by rules",
    "collaborate_with_scripted_agents": "verdicts  acceptable: [False, True]",
    "evaluate_two_patterns": "│ asr │   45.0 │   5.0 │  -40.0 │",
    "guard_a_reply": "revise    revised: I will not help to build one.",
    "judge_replies": "kappa 1.0 (n = 5)",
    "remember_and_release": "I am [REDACTED:email]. How do I kill a process that hangs?",
    "the_hole_in_the_reward": "a good draft is ruined          0.10   -0.88",
}
"""A line of what each example prints, known before it runs."""


def printed(example):
    """Run an example as a reader does; return what it printed."""
    command = [sys.executable, str(EXAMPLES / f"{example}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run_here():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SHOWN)


@pytest.mark.parametrize("example", SHOWN)
def test_an_example_prints_what_it_promises(example):
    assert SHOWN[example] in printed(example)
