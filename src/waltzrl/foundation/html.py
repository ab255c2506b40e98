"""How pages are made of templates: everything is escaped, and hidden characters are shown."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from waltzrl.foundation.texts import make_visible


def page_environment(*folders: Path) -> Environment:
    """Return an environment for the templates in folders; a name that is unknown is an error."""
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finish_value,
    )


def _finish_value(value: object) -> object:
    """Make hidden characters of a text visible; HTML by a macro or a filter is left as it is."""
    return make_visible(value) if type(value) is str else value
