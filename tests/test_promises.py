"""What is promised, and by which tests it is kept: the marks of the tests, and the page of them."""

import re
from collections import Counter
from pathlib import Path
from runpy import run_path
from typing import get_args

import pytest

from waltzrl.store.audit.verify import Kind

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
    mark = re.compile(r"^(?:([A-Z]\w+) = |[ @\w=]*)pytest\.mark\.promise\(", re.MULTILINE)
    count = 0
    for path in TOOL["list_test_files"]():
        text = path.read_text()
        for name in mark.findall(text):
            # A mark with a name counts wherever the name stands.
            count += len(re.findall(rf"^@{name}$", text, re.MULTILINE)) if name else 1
    assert count == len(promises)


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


def test_every_legal_duty_that_we_address_has_its_tests(promises):
    page = (ROOT / "docs/compliance.md").read_text()
    left_to_others = {
        "AI Act 50(1), (2): people know that they talk to a machine, and its texts are marked",
        "GDPR 30: a record of processing",
    }
    duties = {
        f"{law} {article}: {duty}"
        for law, table in re.findall(
            r"^## (?:EU )?([\w ]+), Regulation.*\n\n((?:\|.*\n)+)", page, re.M
        )
        for article, duty, _ in (row[2:].split(" | ", 2) for row in table.splitlines()[2:])
    }
    assert left_to_others < duties
    assert duties - left_to_others == list_area(promises, "Legal duties")


def test_every_fault_of_an_audit_log_has_its_tests(promises):
    page = (ROOT / "docs/audit.md").read_text()
    faults = {f"`{kind}`" for kind in get_args(Kind)}
    assert faults == list_area(promises, "Faults of an audit log")
    assert faults <= set(re.findall(r"^\| (`[\w-]+`) \|", page, re.MULTILINE))
