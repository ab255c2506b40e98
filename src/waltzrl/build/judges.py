"""From the name of a judge to the judge."""

import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from waltzrl.build.datasets import read_sets
from waltzrl.build.models import remote_policy
from waltzrl.build.saved import saved_judge
from waltzrl.errors import InputError
from waltzrl.judges import Judge, LabelRefusalJudge, LLMJudge
from waltzrl.policies import Sampling
from waltzrl.records import Label, Prompt, Reply, Verdict


@asynccontextmanager
async def open_judge(name: str) -> AsyncIterator[Judge]:
    """Make a judge by its name.

    That is `refusal` (offline), `llm:MODEL@URL`, which asks a model behind a server,
    `saved:FILE`, which repeats the labels of saved replies, or `labelled:SET`, which is `refusal`
    with the labels of a set of prompts.

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
    if kind == "labelled" and place:
        yield LabelledSetJudge(read_sets([place]))
        return
    model, _, server = place.partition("@")
    if kind != "llm" or not model or not server:
        raise InputError(
            f"there is no judge {name!r}; say refusal, or llm:MODEL@URL with the model's name and "
            "its server, such as llm:guard@http://localhost:8000/v1, saved:FILE, or labelled:SET"
        )
    async with remote_policy(server, model) as policy:
        yield LLMJudge(policy, Sampling(max_new_tokens=8), model)


class LabelledSetJudge:
    """Knows the labels of a set of prompts by their last user turn; others stay unscored.

    So traffic whose prompts come from a known set can be judged, though it came without labels.
    """

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        """Take the labels of `prompts`; a turn that has both is unscored too."""
        self._labels: dict[str, Label | None] = {}
        for prompt in prompts:
            turn = prompt.messages[-1].content
            known = self._labels.setdefault(turn, prompt.label)
            if known != prompt.label:
                self._labels[turn] = None
        self._judge = LabelRefusalJudge()
        digest = hashlib.sha256(msgspec.json.encode(self._labels, order="sorted")).hexdigest()
        self.name = f"{self._judge.name}+labels@{digest[:8]}"

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        label = self._labels.get(prompt.messages[-1].content)
        verdict = await self._judge.judge(replace(prompt, label=label), reply)
        return replace(verdict, judge=self.name)
