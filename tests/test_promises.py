"""What is promised, and by which tests it is kept: the marks of the tests, and the page of them."""

import re
from collections import Counter
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = run_path(str(ROOT / "tools/list_promises.py"))


@pytest.fixture(scope="module")
def promises():
    return TOOL["read_promises"]()


def list_area(promises, area):
    return {promise.text for promise in promises if promise.area == area}


def test_every_promise_is_of_one_known_area(promises):
    areas = {promise.text: promise.area for promise in promises}
    assert [promise for promise in promises if promise.area != areas[promise.text]] == []
    assert set(areas.values()) == set(TOOL["AREAS"])


def test_no_test_names_a_promise_twice(promises):
    assert [promise for promise, count in Counter(promises).items() if count > 1] == []


def test_every_mark_is_read(promises):
    mark = re.compile(r"^[ @\w=]*pytest\.mark\.promise\(", re.MULTILINE)
    texts = (path.read_text() for path in TOOL["list_test_files"]())
    assert sum(len(mark.findall(text)) for text in texts) == len(promises)


def test_the_page_has_every_promise_with_its_tests(promises):
    rows = dict(row.split(" | ") for row in TOOL["write_promises"]().splitlines() if " | " in row)
    for promise in promises:
        names = re.findall(r"`(.+?)`", rows[f"| {promise.text}"])
        assert {promise.file, promise.test or promise.file} <= set(names)


def test_every_equation_has_its_tests(promises):
    page = (ROOT / "docs/equations.md").read_text()
    assert set(re.findall(r"`waltzrl[\w.]+`", page)) == list_area(promises, "Equations")


def test_every_requirement_has_its_tests(promises):
    page = (ROOT / "docs/requirements.md").read_text()
    tables = re.findall(r"^\| requirement \| here \|\n\| --- .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    names = {row.split(" | ")[0].removeprefix("| ") for row in "".join(tables).splitlines()}
    assert names == list_area(promises, "Requirements")
