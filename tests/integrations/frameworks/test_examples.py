"""The examples of the adapters, each run as a reader does, against a bad model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.bad_model import BadModel
from support.openai_server import serving
from waltzrl.records import CANNED_REFUSAL

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "integrations").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_an_adapter_declines(example):
    with serving({"bad": BadModel()}) as server:
        done = subprocess.run(
            [sys.executable, str(example), server.base_url, "bad"],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
            env=os.environ | {"OPENAI_API_KEY": "none"},
        )
    assert done.stdout.splitlines() == [CANNED_REFUSAL]
    assert server.requests


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_an_adapter_is_short(example):
    assert len(example.read_text().splitlines()) <= 32
