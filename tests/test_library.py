"""What `import waltzrl` offers, and what it does not load."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import waltzrl

HEAVY = {
    *("aiohttp", "msgspec", "pydantic", "re2", "rich", "sqlalchemy", "torch", "transformers"),
    *("typer", "uvicorn"),
}
FOR_COMMANDS_AND_MODELS = HEAVY - {"aiohttp", "msgspec", "re2"}


def loaded(code):
    """Return the modules that a fresh interpreter has after some code."""
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_library_loads_nothing_else():
    modules = loaded("import waltzrl")
    assert modules & HEAVY == set()
    assert {name for name in modules if name.startswith("waltzrl")} == {"waltzrl"}


def test_the_records_come_without_a_client_or_the_rules():
    assert loaded("import waltzrl; waltzrl.Message; waltzrl.WaltzError") & HEAVY == {"msgspec"}


def test_a_guard_of_rules_needs_no_torch_and_nothing_of_the_gateways_server():
    assert loaded("import waltzrl; waltzrl.open_guard()") & FOR_COMMANDS_AND_MODELS == set()


def test_every_name_is_where_type_checkers_look_for_it():
    tree = ast.parse(inspect.getsource(waltzrl))
    (checked,) = (
        node for node in tree.body if isinstance(node, ast.If) and node.body[0].lineno < 60
    )
    found = {
        alias.name: statement.module for statement in checked.body for alias in statement.names
    }
    assert found == waltzrl._MODULES
    assert set(found) == set(waltzrl.__all__) <= set(dir(waltzrl))


@pytest.mark.parametrize("name", waltzrl.__all__)
def test_every_name_is_there_and_explained(name):
    value = getattr(waltzrl, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)


@pytest.mark.parametrize(
    "function",
    [
        *(waltzrl.open_guard, waltzrl.collaborate, waltzrl.guarded),
        *(waltzrl.Guard.review, waltzrl.Guard.assess, waltzrl.Guard.reply, waltzrl.Guard.revise),
    ],
    ids=lambda function: function.__name__,
)
def test_every_function_tells_its_arguments_and_errors(function):
    text = inspect.getdoc(function)
    assert "Raises:" in text
    _, _, arguments = text.partition("Args:")
    for name in inspect.signature(function).parameters:
        assert name == "self" or f"\n    {name}: " in arguments


def test_the_page_of_the_library_names_everything():
    page = (Path(__file__).parents[1] / "docs" / "library.md").read_text()
    names = [
        *waltzrl.__all__,
        *inspect.signature(waltzrl.open_guard).parameters,
        *(field.name for field in dataclasses.fields(waltzrl.GuardSettings)),
    ]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'waltzrl' has no attribute 'open_gard'"):
        waltzrl.open_gard  # noqa: B018


@pytest.mark.parametrize(
    "package",
    [
        *("waltzrl.agents", "waltzrl.evaluation"),
        *("waltzrl_evolution", "waltzrl_routing", "waltzrl_specialists"),
    ],
)
def test_every_name_of_a_package_is_imported_when_it_is_first_used(package):
    module = import_module(package)
    folder = Path(module.__file__).parent
    assert set(module.__all__) <= set(dir(module))
    (checked,) = (
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)
    )
    found = [alias.asname for statement in checked.body for alias in statement.names]
    assert sorted(found) == module.__all__, "what type checkers see is what there is"
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert not (folder / f"{name}.py").exists(), "a module would take the name's place"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - reading it is the test
