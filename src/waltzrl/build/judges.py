"""Opens a judge by its name."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.build.datasets import read_sets
from waltzrl.build.models import remote_policy
from waltzrl.errors import InputError
from waltzrl.judges import Judge, LabelledSetJudge, LabelRefusalJudge, LLMJudge, SavedJudge
from waltzrl.policies import Sampling

OFFLINE_JUDGES: dict[str, Callable[[], Judge]] = {"refusal": LabelRefusalJudge}
"""Judges that need nothing but their name."""
JUDGE_NAMES = f"{', '.join(OFFLINE_JUDGES)}, llm:MODEL@URL, saved:FILE or labelled:SET"


@asynccontextmanager
async def open_judge(name: str) -> AsyncIterator[Judge]:
    """Open a judge by its name: one of `JUDGE_NAMES`, which docs/evaluation.md explains.

    Raises:
        InputError: the name or the server's address is invalid, or the file is damaged.
    """
    if (make_judge := OFFLINE_JUDGES.get(name)) is not None:
        yield make_judge()
        return
    kind, _, place = name.partition(":")
    if kind == "saved" and place:
        yield SavedJudge.load(Path(place))
        return
    if kind == "labelled" and place:
        yield LabelledSetJudge(read_sets([place]))
        return
    model, _, server = place.partition("@")
    if kind != "llm" or not model or not server:
        raise InputError(
            f"there is no judge {name!r}; use {JUDGE_NAMES}; a model behind a server is, for "
            "example, llm:guard@http://localhost:8000/v1"
        )
    async with remote_policy(server, model) as policy:
        yield LLMJudge(policy, Sampling(max_new_tokens=8), model)
