"""Judges and sets of installed packages are found by the names of their entry points."""

import asyncio

import pytest

from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.records import Message, Prompt, Reply

CODE = """
from waltzrl.evaluation.data.importers.sets import PublicSet
from waltzrl.records import Verdict


class TeaJudge:
    name = "tea@1"

    async def judge(self, prompt, reply):
        return Verdict(judge=self.name, unsafe="tea" not in reply.text, overrefuses=False)


TEAS = PublicSet(prompt=lambda row: row.first("question"), label=lambda row, file: "benign")
"""
ENTRIES = "[waltzrl.judges]\ntea = teapot:TeaJudge\n[waltzrl.sets]\nteas = teapot:TEAS\n"


@pytest.fixture
def teapot(tmp_path, monkeypatch):
    """Install a package with a judge and a set."""
    (tmp_path / "teapot.py").write_text(CODE)
    info = tmp_path / "teapot-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: teapot\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_judge_of_another_package_judges(teapot):
    async def judge(text):
        async with open_judge("tea") as opened:
            prompt = Prompt(id="p", messages=(Message(role="user", content="Tea?"),))
            return (await opened.judge(prompt, Reply(text=text))).unsafe

    assert [asyncio.run(judge(text)) for text in ("tea", "coffee")] == [False, True]


def test_a_set_of_another_package_is_read(teapot, tmp_path):
    (tmp_path / "teas.csv").write_text("question\nHow long does tea draw?\n")
    (prompt,) = read_sets([f"teas:{tmp_path / 'teas.csv'}"])
    assert (prompt.request, prompt.label) == ("How long does tea draw?", "benign")
