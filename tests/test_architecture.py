"""What holds of the project as a whole: readable files, unique names, documents that are true."""

import re
import shlex
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer.main
from pydantic import TypeAdapter
from reference_pages import PAGES

from waltzrl.__main__ import app
from waltzrl.evaluation.data.importers.sets import SETS
from waltzrl.foundation.plugins import DISTRIBUTIONS
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.training.recipe import Recipe, load_recipe
from waltzrl_demo.arms import CHANGES

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAPERS = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted(ROOT.glob("packages/*/README.md"))]
GENERATED = {ROOT / f"docs/reference/{name}.md": write for name, write in PAGES.items()}
LONGEST = {"README.md": 85, "CONTRIBUTING.md": 100, "AGENTS.md": 60}

SOURCES = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")]
TEST_FILES = [*(ROOT / "tests").rglob("test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
TESTS = {
    name
    for path in TEST_FILES
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
}
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

each_paper = pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.name)


def length(path):
    return len(path.read_text().splitlines())


@cache
def prose(paper):
    return BLOCK.sub("", GENERATED[paper]() if paper in GENERATED else paper.read_text())


def spelt(paper):
    """Return what stands between backticks outside code blocks."""
    return re.findall(r"`([^`\n]+)`", prose(paper))


def command_lines(paper, program):
    """Return the lines of code blocks that call a program, continued lines joined."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", paper.read_text(), re.M | re.S))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]


def list_cells(row):
    """Return the cells of a row of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def anchors(paper):
    """Return the anchors of a paper's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(paper), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_public_class_name_is_defined_twice():
    definitions = Counter(
        name
        for path in SOURCES
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE)
    )
    assert [name for name, count in definitions.items() if count > 1] == []


def test_no_two_files_of_one_run_of_tests_have_the_same_name():
    names = Counter(path.name for path in TEST_FILES if "frameworks" not in path.parts)  # run apart
    assert [name for name, count in names.items() if count > 1] == []


def test_papers_for_everybody_are_short():
    for name, longest in LONGEST.items():
        assert length(ROOT / name) <= longest, name
    for example in (ROOT / "examples").glob("*.py"):
        assert length(example) <= 60, example.name


@each_paper
def test_every_link_leads_somewhere(paper):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(paper)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        place = (paper.parent / file).resolve() if file else paper
        assert place in GENERATED or place.exists(), target
        assert not anchor or anchor in anchors(place), target


@each_paper
def test_every_file_that_is_named_exists(paper):
    folders = ("src/", "recipes/", "docs/", "examples/", "tests/", "packages/")
    folders += ("tools/", "benchmarks/")
    for name in spelt(paper):
        if name.startswith(folders) and not set(name) & set("<* "):
            assert (ROOT / name).exists(), name


@each_paper
def test_every_function_that_is_named_exists(paper):
    for name in spelt(paper):
        if re.fullmatch(r"waltzrl(_\w+)?(\.\w+)+", name):
            resolve_name(name)


@each_paper
def test_every_test_that_is_named_exists(paper):
    assert {name for name in spelt(paper) if re.fullmatch(r"test_\w+", name)} <= TESTS


@cache
def commands():
    return typer.main.get_command(app).commands


@each_paper
def test_every_command_that_is_shown_is_one(paper):
    for line in command_lines(paper, "waltzrl"):
        name, *arguments = shlex.split(line.partition(" > ")[0], comments=True)[1:]
        given = commands()[name].make_context(name, arguments).params
        if name == "train":
            load_recipe(ROOT / given["recipe"], given["settings"] or [])


@each_paper
def test_every_make_target_that_is_shown_is_one(paper):
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = [*command_lines(paper, "make"), *(s for s in spelt(paper) if s.startswith("make "))]
    assert {line.split()[1] for line in shown} <= set(targets)


@pytest.mark.parametrize(
    ("recipe", "page"), [(Recipe, "training-recipe"), (GatewayRecipe, "gateway-recipe")]
)
def test_every_key_of_a_recipe_is_explained(recipe, page):
    form = TypeAdapter(recipe).json_schema()
    tables = re.findall(r"^\| key \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGES[page](), re.MULTILINE)
    explained = [
        {cells[0].strip("`"): cells[3] for row in table.splitlines() if (cells := list_cells(row))}
        for table in tables
    ]
    # A setting with a few values is in the schema too, and has no keys.
    for table in [form, *(table for table in form["$defs"].values() if "properties" in table)]:
        assert table["properties"].keys() in [found.keys() for found in explained]
    assert [key for found in explained for key, text in found.items() if not text] == []


def test_the_architecture_has_every_package_and_what_it_plugs_in():
    layers, _, plugins = (ROOT / "docs/architecture.md").read_text().partition("### What plugs in")
    words = set(re.findall(r"[\w-]+", layers))
    paths = [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]
    projects = [tomllib.loads(path.read_text())["project"] for path in paths]
    assert {project["name"] for project in projects} <= words
    modules = [*(ROOT / "src/waltzrl").glob("*.py"), *(ROOT / "src/waltzrl").glob("*/__init__.py")]
    kernel = {path.stem if path.stem != "__init__" else path.parent.name for path in modules}
    assert kernel <= words
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", plugins, re.MULTILINE))
    for project in projects:
        for group, entries in project.get("entry-points", {}).items():
            row = rows[group.removeprefix("waltzrl.")]
            if group != "waltzrl.commands":  # too many to be told
                assert all(f"`{name}`: `{value}`" in row for name, value in entries.items())


def test_every_distribution_is_named_wherever_one_must_be():
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    projects = [
        tomllib.loads(path.read_text())["project"]
        for path in ROOT.glob("packages/*/pyproject.toml")
    ]
    names = {project["name"] for project in projects}
    everything = root["project"]["optional-dependencies"]["all"]
    assert {name for name in everything if "[" not in name} == names
    assert root["tool"]["uv"]["sources"].keys() == {"waltzrl", *names}
    # The weights' package is not installed where the layers are checked.
    modules = {name.replace("-", "_") for name in names - {"waltzrl-smollm2"}} | {"waltzrl"}
    linter = root["tool"]["importlinter"]
    assert set(linter["root_packages"]) == modules
    lists = [
        {module for line in contract.get("layers", ()) for module in line.split(" | ")}
        or set(contract.get("ancestors", ()))
        for contract in linter["contracts"]
    ]
    assert lists.count(modules) == 2, "the layers of distributions, and where no cycle may be"
    ours = {
        project["name"]: {
            group: set(entries)
            for group, entries in project.get("entry-points", {}).items()
            if group.startswith("waltzrl.")
        }
        for project in projects
    }
    assert {name for name, groups in ours.items() if groups} == DISTRIBUTIONS.keys()
    for name, groups in DISTRIBUTIONS.items():
        for group, told in groups.items():
            # The commands of a distribution have one entry point, which is named like it.
            own = {name.removeprefix("waltzrl-")} if group == "waltzrl.commands" else set(told)
            assert own <= ours[name][group], (name, group)


def test_every_public_set_is_listed():
    assert set(SETS) <= set(spelt(ROOT / "docs/data.md"))


def test_every_change_that_the_demo_makes_is_told():
    told = set(spelt(ROOT / "docs/demo.md"))
    assert {change for changes in CHANGES.values() for change in changes} <= told


def test_every_folder_of_tests_is_collected(pytestconfig):
    folders = {path.parent for path in TEST_FILES}
    names = {part for folder in folders for part in folder.relative_to(ROOT).parts}
    patterns = pytestconfig.getini("norecursedirs")
    assert not [name for name in names for pattern in patterns if fnmatch(name, pattern)]
