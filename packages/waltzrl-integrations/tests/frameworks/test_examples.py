"""The examples of the adapters, each run as a reader does, against a bad model."""

import runpy
import sys
from pathlib import Path

import pytest
from drivers import of_framework

from support.bad_model import REVISED, BadModel
from support.openai_server import serving

EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "integrations").glob("*.py"))


@pytest.mark.promise(
    "Adapters for frameworks",
    "The page about the adapters shows what is tested, and its examples run",
)
@pytest.mark.parametrize(
    "example",
    [pytest.param(path, id=path.stem, marks=of_framework(path.stem)) for path in EXAMPLES],
)
def test_an_example_of_an_adapter_revises(example, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with serving({"bad": BadModel()}) as server:
        monkeypatch.setattr(sys, "argv", [str(example), server.base_url, "bad"])
        runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [REVISED]
    assert server.requests


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_an_adapter_is_short(example):
    assert len(example.read_text().splitlines()) <= 30
