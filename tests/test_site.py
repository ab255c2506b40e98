"""The site is built without a warning, and has what its pages from the code are made of."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from runpy import run_path

import pytest

from waltzrl import errors
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules.pack import SHIPPED_PACKS
from waltzrl.foundation.catalogue import METRICS
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.training.recipe import Recipe

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does; every warning, such as of a broken link, is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def read_text(site, page):
    """Return the text of a page without its tags."""
    return re.sub(r"<[^>]+>", "", (site / page / "index.html").read_text())


def test_every_command_has_a_part_of_its_page(site):
    page = (site / "reference/commands/index.html").read_text()
    parts = re.findall(r"<h2[^>]*>waltzrl (.+?)<", page)
    table = (ROOT / "docs/README.md").read_text().partition("| packages and extras | commands |")[2]
    rows = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")]
    assert sorted(parts) == sorted(name for row in rows for name in re.findall("`(.+?)`", row))


@pytest.mark.parametrize(("page", "recipe"), [("gateway", GatewayRecipe), ("training", Recipe)])
def test_every_key_of_a_recipe_is_on_its_page(site, page, recipe):
    text = read_text(site, f"reference/{page}-recipe")
    assert {field.name for field in fields(recipe)} <= set(re.findall(r"\w+", text))


def test_every_metric_is_on_its_page(site):
    assert METRICS.keys() <= set(re.findall(r"\w+", read_text(site, "reference/metrics")))


def test_every_rule_is_on_its_page_with_its_category_and_severity(site):
    cells = read_text(site, "reference/rules").splitlines()
    for rule in load_rulebook(SHIPPED_PACKS).rules:
        row = cells[cells.index(rule.id) :]
        assert row[1:4] == [rule.side, rule.category, f"{rule.severity:g}"]


def test_every_error_is_on_its_page(site):
    text = read_text(site, "reference/errors")
    tree = set(re.findall(r"[A-Z]\w+Error", errors.__doc__))
    assert tree <= set(re.findall(r"\w+", text))


def test_every_area_of_promises_has_a_table_of_its_tests(site):
    tool = run_path(str(ROOT / "tools/list_promises.py"))
    page = (site / "reference/promises/index.html").read_text()
    tests = set(re.findall(r"<code>(test_\w+)</code>", page))
    assert tests == {promise.test for promise in tool["read_promises"]() if promise.test}
    assert page.count("<table>") == len(tool["AREAS"])


def test_a_file_outside_of_the_documents_is_named_and_no_link(site):
    page = (site / "index.html").read_text()
    assert "<code>benchmarks/README.md</code>" in page
    assert 'href="../benchmarks' not in page
