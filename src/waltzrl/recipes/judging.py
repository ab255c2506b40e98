"""From the name of a judge to the judge."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.judges import Judge, LabelRefusalJudge, LLMJudge
from waltzrl.policies import Sampling
from waltzrl.recipes.models import remote_policy
from waltzrl.recipes.saved import saved_judge


@asynccontextmanager
async def open_judge(name: str) -> AsyncIterator[Judge]:
    """Make a judge by its name.

    That is `refusal` (offline), `llm:MODEL@URL`, which asks a model behind a server, or
    `saved:FILE`, which repeats the labels of saved replies.

    Raises:
        InputError: there is no such judge, its server's address is none, or its file is damaged.
    """
    if name == "refusal":
        yield LabelRefusalJudge()
        return
    kind, _, place = name.partition(":")
    if kind == "saved" and place:
        yield saved_judge(Path(place))
        return
    model, _, server = place.partition("@")
    if kind != "llm" or not model or not server:
        raise InputError(
            f"there is no judge {name!r}; say refusal, or llm:MODEL@URL with the model's name and "
            "its server, such as llm:guard@http://localhost:8000/v1, or saved:FILE"
        )
    async with remote_policy(server, model) as policy:
        yield LLMJudge(policy, Sampling(max_new_tokens=8), model)
