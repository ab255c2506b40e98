"""Prints every promise with the tests that keep it, as Markdown, from the marks of the tests.

python tools/list_promises.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

AREAS = {
    "Do no harm": "",
    "What reviewers see": "",
    "Rules": "",
    "Settings": "",
    "Policies": "",
    "Endpoints and upstreams": "",
    "Operation": "",
    "Logs": "",
    "Metrics": "",
    "Audit": "",
    "Faults of an audit log": "`docs/audit.md` says what a fault means.",
    "Personal data": "",
    "Legal duties": "An article and its duty; `docs/compliance.md` says how it is addressed.",
    "Evidence of a release": "",
    "Labels": "",
    "Trials": "",
    "Examples from the memory": "",
    "Routing": "",
    "Command line": "",
    "Adapters for frameworks": "Each test runs with every framework, in every way to call it.",
    "MCP": "",
    "Routed tasks": "",
    "Training": "",
    "Evaluation": "",
    "Evolution": "",
    "Specialists": "",
    "Cost": "",
    "Teacher": "",
    "Bad input": "A problem, and what the one line about it names.",
    "Equations": "A function that computes an equation of `docs/equations.md`.",
    "Requirements": "A name of the requirements; `docs/requirements.md` says where it is found.",
}
"""The areas of promises in the order of the page, and a sentence where one is needed."""


class Promise(NamedTuple):
    """A promise of a test, or of a file of tests, which fails if it does not hold."""

    area: str
    text: str
    file: str
    """The path of the file from the root of the repository."""
    test: str
    """The name of the test; empty for all tests of the file."""


def read_promises() -> list[Promise]:
    """Return what the marks of all tests say, file by file; the tests are read, not imported."""
    return [
        Promise(area, text, str(path.relative_to(ROOT)), test)
        for path in list_test_files()
        for area, text, test in read_marks(ast.parse(path.read_text("utf-8")))
    ]


def list_test_files() -> list[Path]:
    """Return the files of tests of the kernel, then those of the packages."""
    return [
        path
        for folder in (ROOT / "tests", *sorted(ROOT.glob("packages/*/tests")))
        for path in sorted(folder.rglob("test_*.py"))
    ]


def read_marks(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield area, text and test of each mark; one in `pytestmark` is of the whole file."""
    named = {
        ast.unparse(statement.targets[0]): statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
    }
    for statement in module.body:
        marks, test = [], ""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks, test = statement.decorator_list, statement.name
        elif (
            isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        ):
            value = statement.value
            marks = value.elts if isinstance(value, ast.List) else [value]
        for decorator in marks:
            # A mark of several tests may have a name.
            mark = named.get(ast.unparse(decorator), decorator)
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                area, text = (ast.literal_eval(argument) for argument in mark.args)
                yield area, text, test


def write_promises() -> str:
    """Return the page of all promises, a table for each area."""
    tables: dict[str, dict[str, list[Promise]]] = {area: {} for area in AREAS}
    for promise in read_promises():
        tables[promise.area].setdefault(promise.text, []).append(promise)
    parts = ["# Promises and their tests\n\nMade from the marks of the tests.\n"]
    for area, table in tables.items():
        rows = [f"| {text} | {name_tests(promises)} |" for text, promises in table.items()]
        sentence = f"{AREAS[area]}\n\n" if AREAS[area] else ""
        head = "| promise | tests |\n| --- | --- |\n"
        parts.append(f"## {area}\n\n{sentence}{head}" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def name_tests(promises: list[Promise]) -> str:
    """Return the names of tests behind those of their files, as the cell of a Markdown table."""
    files: dict[str, list[str]] = {}
    for promise in promises:
        names = files.setdefault(promise.file, [])
        if promise.test:
            names.append(f"`{promise.test}`")
    return "; ".join(
        f"`{file}`: {', '.join(names)}" if names else f"`{file}`" for file, names in files.items()
    )


if __name__ == "__main__":
    print(write_promises(), end="")
