"""The pages of the documents' site that are made from the code and its tests."""

import ast
import dataclasses
import inspect
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer.main
from list_promises import write_promises
from typer.core import TyperGroup

from waltzrl import errors
from waltzrl.__main__ import app
from waltzrl.agents.rules.pack import SHIPPED_PACKS, read_shipped
from waltzrl.foundation.catalogue import GATEWAY_METRICS, MEMORY_METRICS
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.operations.monitoring.files import metrics_table
from waltzrl.training.recipe import Recipe


def write_commands() -> str:
    """Return the page of all commands with their options."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup), "waltzrl has commands"
    parts = ["# Commands\n\nMade from the code; `waltzrl COMMAND --help` prints the same.\n"]
    for path, command in list_commands(group, ("waltzrl",)):
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        rows = [
            (
                f"`{' '.join((*option.opts, *option.secondary_opts))}`",
                escape_cell(getattr(option, "help", "") or ""),
            )
            for option in command.params
            if option.name != "help"
        ]
        table = write_table(("option", ""), rows) if rows else ""
        parts.append(f"## {' '.join(path)}\n\n{help_text}\n\n{table}")
    return "\n".join(parts)


def list_commands(
    group: TyperGroup, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group with its path; a group that runs alone is one too."""
    for name, command in group.commands.items():
        if not isinstance(command, TyperGroup):
            yield (*path, name), command
            continue
        if command.invoke_without_command:
            yield (*path, name), command
        yield from list_commands(command, (*path, name))


def write_recipe(title: str, recipe: type) -> str:
    """Return the page of all keys of a recipe, a table for each of its tables."""
    parts = [f"# {title}\n\nMade from the code. A key without a default must be given.\n"]
    tables = list(dict.fromkeys(list_tables(recipe, "")))
    forms = Counter(name for name, _ in tables)
    for name, table in tables:
        heading = f"{name}: {table.__name__}" if forms[name] > 1 else name
        parts.append(f"## {heading}\n\n{read_docstring(table)}\n" if name else "")
        rows = [
            (f"`{key}`", kind, default, escape_cell(text))
            for key, kind, default, text in list_keys(table)
        ]
        parts.append(write_table(("key", "type", "default", ""), rows))
    return "\n".join(parts)


def list_tables(table: type, name: str) -> Iterator[tuple[str, type]]:
    """Yield a dataclass of settings, and those that its fields hold, with their dotted names."""
    yield name, table
    for key, hint in get_type_hints(table, include_extras=True).items():
        for inner in list_types(hint):
            if dataclasses.is_dataclass(inner) and key in table.__dataclass_fields__:
                yield from list_tables(inner, f"{name}.{key}".strip("."))


def list_types(hint: Any) -> Iterator[type]:  # noqa: ANN401 - any annotation
    """Yield the classes that an annotation names."""
    if get_origin(hint) in {Union, UnionType, Annotated, tuple}:
        for part in get_args(hint):
            yield from list_types(part)
    elif get_args(hint):
        yield from list_types(get_args(hint)[-1])
    elif isinstance(hint, type):
        yield hint


def list_keys(table: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and explanation of the fields of a dataclass.

    A field that holds a table and has no docstring is explained by that of the table.
    """
    written = {
        name: found
        for base in reversed(table.__mro__)
        if dataclasses.is_dataclass(base)
        for name, found in read_fields(base).items()
    }
    hints = get_type_hints(table, include_extras=True)
    for field in dataclasses.fields(table):
        kind, text = written[field.name]
        held = [inner for inner in list_types(hints[field.name]) if dataclasses.is_dataclass(inner)]
        if not text and len(held) == 1:
            text = read_docstring(held[0])
        default = ""
        if field.default is not dataclasses.MISSING:
            default = "see its table" if held and field.default else mark_code(repr(field.default))
        elif field.default_factory is not dataclasses.MISSING:
            default = "see its table" if field.default_factory in held else "empty"
        yield field.name, mark_code(kind), default, text


def read_docstring(table: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join((ast.get_docstring(parse_class(table)) or "").partition("\n\n")[0].split())


def read_fields(table: type) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of each field that a class itself declares."""
    body = parse_class(table).body
    fields = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            fields[statement.target.id] = (ast.unparse(statement.annotation), text)
    return fields


def parse_class(table: type) -> ast.ClassDef:
    """Return the source of a class as a tree."""
    parsed = ast.parse(textwrap.dedent(inspect.getsource(table))).body[0]
    assert isinstance(parsed, ast.ClassDef), "the source of a class is a class"
    return parsed


def write_metrics() -> str:
    """Return the page of all metrics that a gateway exports."""
    return (
        "# Metrics\n\nMade from the code; `waltzrl metrics` prints the same. "
        "[Monitoring](../monitoring.md) has alerts and dashboards.\n\n"
        f"## Of every gateway\n\n{metrics_table(GATEWAY_METRICS)}\n\n"
        f"## With a memory\n\n{metrics_table(MEMORY_METRICS)}\n"
    )


def write_rules() -> str:
    """Return the page of the rules of all packs that come with waltzrl, without their patterns."""
    parts = [
        "# Rules of the packs\n\nMade from the packs. [Rules](../rules.md) says what a severity "
        "means, and what a rule reads. Every rule finds its example.\n"
    ]
    for name in SHIPPED_PACKS:
        rows = [
            (
                *(f"`{name}/{rule['id']}`", rule["side"], rule["category"]),
                *(f"{rule['severity']:g}", mark_code(" ".join(rule["example"].split()))),
            )
            for rule in tomllib.loads(read_shipped(name).decode("utf-8"))["rule"]
        ]
        head = ("rule", "reads", "category", "severity", "example")
        parts.append(f"## {name}\n\n{write_table(head, rows)}")
    return "\n".join(parts)


def write_errors() -> str:
    """Return the page of the exceptions whose messages people see."""
    parts = [
        "# Errors\n\nMade from the code. A command that ends with one of these prints one line, "
        f"which starts with `error:`, and exits with {errors.EXIT_STATUS}; so it does where the "
        "system refuses a file, a connection or memory. "
        "In a program they are in `waltzrl.errors`.\n"
    ]
    rows = [
        (f"`{error.__name__}`", f"`{error.__base__.__name__}`", escape_cell(read_docstring(error)))
        for error in vars(errors).values()
        if inspect.isclass(error) and error.__base__ and issubclass(error, errors.WaltzError)
    ]
    parts.append(write_table(("error", "is a", "meaning"), rows))
    return "\n".join(parts)


PAGES: Mapping[str, Callable[[], str]] = {
    "commands": write_commands,
    "gateway-recipe": lambda: write_recipe("The recipe of a gateway", GatewayRecipe),
    "training-recipe": lambda: write_recipe("The recipe of a training", Recipe),
    "metrics": write_metrics,
    "rules": write_rules,
    "errors": write_errors,
    "promises": write_promises,
}
"""The pages by their names: each becomes `reference/NAME.md` of the site."""


def write_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown, whose cells are ready for it."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def mark_code(text: str) -> str:
    """Return code as a cell of a Markdown table: between backticks, a bar would end the cell."""
    return f"<code>{re.sub(r'[^a-zA-Z0-9 ]', lambda mark: f'&#{ord(mark[0])};', text)}</code>"


def escape_cell(text: str) -> str:
    """Return a text as the cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
