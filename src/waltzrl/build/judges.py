"""Opens a judge by its name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.build.datasets import read_sets
from waltzrl.build.models import remote_policy
from waltzrl.errors import InputError
from waltzrl.judges import Judge, LabelledSetJudge, LabelRefusalJudge, LLMJudge, SavedJudge
from waltzrl.policies import Sampling


@asynccontextmanager
async def open_judge(name: str) -> AsyncIterator[Judge]:
    """Open a judge by its name.

    That is `refusal` (offline), `llm:MODEL@URL` (asks a model behind a server), `saved:FILE`
    (repeats the labels of saved replies), or `labelled:SET` (`refusal` with the labels of a set of
    prompts).

    Raises:
        InputError: the name or the server's address is invalid, or the file is damaged.
    """
    if name == "refusal":
        yield LabelRefusalJudge()
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
            f"there is no judge {name!r}; use refusal, llm:MODEL@URL with the model's name and its "
            "server, such as llm:guard@http://localhost:8000/v1, saved:FILE, or labelled:SET"
        )
    async with remote_policy(server, model) as policy:
        yield LLMJudge(policy, Sampling(max_new_tokens=8), model)
