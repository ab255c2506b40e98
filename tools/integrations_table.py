"""Writes the table in docs/integrations.md: what the laws of the adapters test.

.venv-frameworks/bin/python tools/integrations_table.py
"""

import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "packages/waltzrl-integrations/tests/frameworks"
PAGE = ROOT / "docs" / "integrations.md"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"


def table() -> str:
    """Return the table: a column of an adapter says yes if a law tests it, all of which pass."""
    sys.path[:0] = [str(ROOT / "tests"), str(TESTS)]
    import test_laws
    from drivers import COLUMNS, DRIVERS

    tested = {(driver, column) for column, driver, _ in test_laws.TESTED}
    tested |= {(driver, "async") for _, driver, mode in test_laws.TESTED if mode.startswith("a")}
    columns = (*COLUMNS, "async")
    lines = ["| framework | tested version |" + "".join(f" {column} |" for column in columns)]
    lines.append("| --- | --- |" + " :-: |" * len(columns))
    for driver in DRIVERS:
        cells = ["yes" if (driver.module, column) in tested else "-" for column in columns]
        lines.append(f"| {driver.name} | {version(driver.package)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table of today's tests."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
