"""Hooks of the documents' site: its pages that are made from code, and links out of `docs`.

mkdocs calls these functions by their names; see mkdocs.yml.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import PAGES

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
"""A link to a file of the repository that is not in `docs`."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code and its tests."""
    for name, write_page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name the files outside of `docs`, which the site does not have, in place of links."""
    if page.file.src_uri.startswith("reference/"):  # there, `..` is `docs`
        return markdown
    return OUTSIDE.sub(r"\1 (`\2`)", markdown)
