"""Write the tasks of the specialists that write: rows to learn from, and held-out scenarios.

    python training/make_tasks.py [FOLDER]

The folder is that of the package's data by default. The same command writes the same files.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from articles import make_article
from contracts import make_contract
from emails import make_email
from facts import Facts
from functions import make_function
from invoices import make_invoice
from snippets import make_snippet
from units import make_unit
from waltzrl.evaluation.data.duplicates import near_duplicates
from waltzrl.records import Message, Prompt

DATA = Path(__file__).parents[1] / "src" / "waltzrl_specialists" / "data"
ROWS, SCENARIOS = 112, 18
TASKS: dict[str, Callable[[Facts], dict[str, object]]] = {
    "legal": make_contract,
    "builder": make_function,
    "deploy": make_unit,
    "seo": make_snippet,
    "email": make_email,
    "content": make_article,
    "billing": make_invoice,
}


def make_tasks(name: str, *, held_out: bool) -> tuple[list[dict[str, object]], Facts]:
    """Return the tasks of a specialist, none nearly like another, and the facts of all."""
    facts = Facts(f"{name}/{'scenarios' if held_out else 'rows'}", held_out=held_out)
    count = SCENARIOS if held_out else ROWS
    # Twice as many as are wanted, because some nearly repeat an earlier one and are left out.
    tasks = {str(number): TASKS[name](facts) for number in range(2 * count)}
    repeated = near_duplicates(
        Prompt(id=number, messages=(Message(role="user", content=str(task["prompt"])),))
        for number, task in tasks.items()
    )
    for leak in repeated:
        del tasks[leak.test.id]
    return list(tasks.values())[:count], facts


def write_tasks(folder: Path) -> None:
    """Write the files of all specialists that write."""
    for name in TASKS:
        for suffix, held_out in (("", False), (".scenarios", True)):
            tasks, _ = make_tasks(name, held_out=held_out)
            text = "".join(json.dumps(task) + "\n" for task in tasks)
            (folder / f"{name}{suffix}.jsonl").write_text(text)


if __name__ == "__main__":
    write_tasks(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
