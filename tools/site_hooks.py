"""Hooks of the documents' site: pages that are made from code and tests, and links out of `docs`.

mkdocs calls these functions by their names; see mkdocs.yml.
"""

import ast
import dataclasses
import html
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer.main
from list_promises import write_promises
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.core import TyperGroup

from waltzrl.__main__ import app
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.training.recipe import Recipe

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
"""A link to a file of the repository that is not in `docs`."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code and its tests."""
    for name, text in (
        ("commands", write_commands()),
        ("gateway-recipe", write_recipe("The recipe of a gateway", GatewayRecipe)),
        ("training-recipe", write_recipe("The recipe of a training", Recipe)),
        ("promises", write_promises()),
    ):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name the files outside of `docs`, which the site does not have, in place of links."""
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)


def write_commands() -> str:
    """Return the page of all commands with their options."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup), "waltzrl has commands"
    parts = ["# Commands\n\nMade from the code; `waltzrl COMMAND --help` prints the same.\n"]
    for path, command in list_commands(group, ("waltzrl",)):
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        rows = [
            f"| `{' '.join((*option.opts, *option.secondary_opts))}` | "
            f"{escape_cell(getattr(option, 'help', '') or '')} |"
            for option in command.params
            if option.name != "help"
        ]
        table = "\n".join(["| option | |", "| --- | --- |", *rows]) if rows else ""
        parts.append(f"## {' '.join(path)}\n\n{help_text}\n\n{table}\n")
    return "\n".join(parts)


def list_commands(
    group: TyperGroup, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group with its path."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name), command


def write_recipe(title: str, recipe: type) -> str:
    """Return the page of all keys of a recipe, a table for each of its tables."""
    parts = [f"# {title}\n\nMade from the code. A key without a default must be given.\n"]
    for name, table in list_tables(recipe, ""):
        rows = [
            f"| `{key}` | {kind} | {default} | {escape_cell(text)} |"
            for key, kind, default, text in list_keys(table)
        ]
        heading = f"## {name}\n\n" if name else ""
        head = "| key | type | default | |\n| --- | --- | --- | --- |\n"
        parts.append(f"{heading}{head}" + "\n".join(rows) + "\n")
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
    """Yield name, type, default and docstring of the fields of a dataclass."""
    written = {
        name: found
        for base in reversed(table.__mro__)
        if dataclasses.is_dataclass(base)
        for name, found in read_fields(base).items()
    }
    for field in dataclasses.fields(table):
        kind, text = written[field.name]
        default = ""
        if field.default is not dataclasses.MISSING:
            default = mark_code(repr(field.default))
        elif field.default_factory is not dataclasses.MISSING:
            default = (
                "see its table" if dataclasses.is_dataclass(field.default_factory) else "empty"
            )
        yield field.name, mark_code(kind), default, text


def read_fields(table: type) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of each field that a class itself declares."""
    body = ast.parse(textwrap.dedent(inspect.getsource(table))).body[0]
    assert isinstance(body, ast.ClassDef), "the source of a class is a class"
    fields = {}
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            fields[statement.target.id] = (ast.unparse(statement.annotation), text)
    return fields


def mark_code(text: str) -> str:
    """Return code as a cell of a Markdown table; a bar between backticks would end the cell."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def escape_cell(text: str) -> str:
    """Return a text as the cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
