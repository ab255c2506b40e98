"""A self-contained HTML page about attacks: the tables, and the paths of the worst ten."""

from collections.abc import Sequence
from pathlib import Path

from waltzrl.evaluation.report import (
    TEMPLATES,
    StoryTurn,
    story_turns,
    write_page,
)
from waltzrl.foundation.html import page_environment
from waltzrl.records import JudgedCollaboration, Verdict
from waltzrl_attack.attempts import AttackPath, Attempt
from waltzrl_attack.results import find_worst, measure_attacks, tabulate_attacks


def write_attack_report(folder: Path, paths: Sequence[AttackPath], title: str) -> Path:
    """Write `report.html` into `folder`; return the page's path.

    Raises:
        InputError: the folder cannot be written.
    """
    page = _environment.get_template("attacks.html").render(
        style=(TEMPLATES / "style.css").read_text("utf-8"),
        title=title,
        tables=tabulate_attacks(measure_attacks(paths)),
        worst=find_worst(paths),
        setup=paths[0].setup.split("; "),
        judge=paths[0].judge,
        trace=_trace_success,
        turns=_list_turns,
    )
    return write_page(folder, page, {})


def _trace_success(path: AttackPath) -> Sequence[Attempt]:
    """Return what led to the last attempt; all of a path whose attempts stand side by side."""
    last = path.attempts[-1]
    return path.lineage(last.number) if last.parent else path.attempts


def _list_turns(attempt: Attempt) -> list[StoryTurn]:
    """Return what the target said, with what the judge says of it if it was judged."""
    collaboration = attempt.collaboration
    if collaboration is None:
        return []
    verdicts = attempt.verdicts or (Verdict(judge=""),) * len(collaboration.replies)
    return list(story_turns(JudgedCollaboration(collaboration=collaboration, verdicts=verdicts)))


_environment = page_environment(Path(__file__).with_name("templates"), TEMPLATES)
