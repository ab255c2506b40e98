"""`waltzrl judge`: labels for saved replies."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from waltzrl.build.judges import open_judge
from waltzrl.cli.options import JudgeName
from waltzrl.data.jsonl import read_text
from waltzrl.errors import InputError
from waltzrl.judges import label_lines


def judge(
    file: Annotated[Path, typer.Argument(help="JSON lines with prompt, response and label.")],
    name: JudgeName = "refusal",
) -> None:
    """Add unsafe, refuses and overrefuses (true, false or null) to saved replies.

    One line out for every line in, in order.

    **Example**

    `waltzrl judge replies.jsonl --judge refusal > labelled.jsonl`
    """
    asyncio.run(_label(file, name))


async def _label(file: Path, judge: str) -> None:
    lines = read_text(file).rstrip().split("\n")
    if lines == [""]:
        raise InputError(f"{file} holds no replies; give a file with one JSON object per line")
    async with open_judge(judge) as opened:
        async for line in label_lines(lines, opened, source=str(file)):
            print(line)
