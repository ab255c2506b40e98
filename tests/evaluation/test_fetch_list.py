import json

from support.small_runs import run
from waltzrl.evaluation.data.importers.sets import SETS


def test_every_public_set_has_its_page_and_its_licence(capsys):
    assert run("data", "fetch-list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["set"] for row in listed] == list(SETS)
    assert all(row["page"].startswith("https://") and row["licence"] for row in listed)


def test_only_the_sets_that_are_named_are_listed_and_an_unknown_one_is_an_error(capsys):
    assert run("data", "fetch-list", "or-bench") == 0
    assert "bench-llms/or-bench" in capsys.readouterr().out
    assert run("data", "fetch-list", "nothing") == 2
    assert "unknown set 'nothing'; known are xstest" in capsys.readouterr().err
