"""The site is built without a warning, and names every command, recipe key and promise."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from runpy import run_path

import pytest
import typer.main

from waltzrl.__main__ import app
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
    text = read_text(site, "reference/commands")
    for name in typer.main.get_command(app).commands:
        assert f"waltzrl {name}" in text


@pytest.mark.parametrize(("page", "recipe"), [("gateway", GatewayRecipe), ("training", Recipe)])
def test_every_key_of_a_recipe_is_on_its_page(site, page, recipe):
    text = read_text(site, f"reference/{page}-recipe")
    assert {field.name for field in fields(recipe)} <= set(re.findall(r"\w+", text))


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
